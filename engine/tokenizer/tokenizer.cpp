#include "engine/tokenizer/tokenizer.h"

#include <xxhash.h>

#include "engine/tokenizer/unicode.h"
#include "kernels/error.h"

namespace qeng {

Tokenizer::Tokenizer(TokenizerProperties properties, TokenBytes bytes, uint64_t model_hash)
    : properties_(std::move(properties)), bytes_(std::move(bytes)), special_(bytes_.size()) {
  std::string content(reinterpret_cast<const char*>(&model_hash), sizeof model_hash);
  for (const AddedToken& token : properties_.added) {
    if (token.special) special_[static_cast<size_t>(token.id)] = true;
    content += std::to_string(token.id) + (token.special ? "s" : "-") + (token.lstrip ? "l" : "-") +
               (token.rstrip ? "r" : "-") + (token.normalized ? "n" : "-") + std::to_string(token.content.size()) +
               ":" + token.content;
  }
  uint64_t parts[] = {XXH3_64bits(content.data(), content.size()), XXH3_64bits(bytes_.blob.data(), bytes_.blob.size()),
                      XXH3_64bits(bytes_.ends.data(), bytes_.ends.size() * sizeof(uint32_t))};
  hash_ = XXH3_64bits(parts, sizeof parts);
}

void Tokenizer::encode(std::string_view text, std::vector<int32_t>& ids, bool parse_special, bool goes_on) const {
  if (text.size() > INT32_MAX)
    fail("value", "a text of ", text.size(), " bytes: one of less than 2 GB can be encoded; cut it into documents");
  std::string storage;
  encode_valid(valid_utf8(text, storage), ids, parse_special, goes_on);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool parse_special) const {
  std::vector<int32_t> ids;
  encode(text, ids, parse_special);
  return ids;
}

std::string_view Tokenizer::bytes(int32_t id) const {
  if (id < 0 || id >= vocab_size())
    fail("value", "token ", id, " is outside the vocabulary of ", name(), " (", vocab_size(), " ids)");
  return bytes_[static_cast<size_t>(id)];
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string text;
  for (int32_t id : ids) {
    std::string_view token = bytes(id);
    if (!skip_special || !is_special(id)) text += token;
  }
  return text;
}

std::optional<int32_t> Tokenizer::id_of(std::string_view added_token) const {
  for (const AddedToken& token : properties_.added)
    if (token.content == added_token) return token.id;
  return std::nullopt;
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < vocab_size() && special_[static_cast<size_t>(id)];
}

}  // namespace qeng
