#include "engine/tokenizer/added_tokens.h"

#include <cstring>

#include "engine/tokenizer/unicode.h"

namespace qeng {
namespace {

uint8_t first_byte(const AddedToken& token) { return static_cast<uint8_t>(token.content[0]); }

bool is_space(uint32_t code) {
  uint8_t kind = unicode_table()[code] & kClassMask;
  return kind == kSpace || kind == kNewline;
}

bool word_begins(std::string_view text) {
  uint32_t code;
  return !text.empty() && (decode_utf8(text.data(), code), is_word(code));
}
bool word_ends(std::string_view text) {
  size_t start = text.size();
  while (start > 0 && (text[--start] & 0xC0) == 0x80) {
  }
  return word_begins(text.substr(start));
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
  for (const AddedToken& token : tokens_) ++first_[first_byte(token) + 1u];
  for (size_t byte = 0; byte < 256; ++byte) first_[byte + 1] += first_[byte];
  if (!tokens_.empty() && first_byte(tokens_.front()) == first_byte(tokens_.back()))
    only_first_byte_ = first_byte(tokens_.front());
}

// Byte by byte, of those that have begun like text so far.
const AddedToken* AddedTokenFinder::longest(std::string_view text, bool with_special) const {
  const auto byte = static_cast<uint8_t>(text[0]);
  auto low = tokens_.begin() + first_[byte], high = tokens_.begin() + first_[byte + 1u];
  const AddedToken* found = nullptr;
  for (size_t depth = 1; low != high; ++depth) {
    for (; low != high && low->content.size() == depth; ++low) {
      const bool alike = found && found->content.size() == depth;
      if ((with_special || !low->special) && !alike) found = &*low;
    }
    if (depth == text.size()) break;
    const auto at = [&](const AddedToken& token) { return static_cast<uint8_t>(token.content[depth]); };
    const auto next = static_cast<uint8_t>(text[depth]);
    low = std::partition_point(low, high, [&](const AddedToken& token) { return at(token) < next; });
    high = std::partition_point(low, high, [&](const AddedToken& token) { return at(token) == next; });
  }
  return found;
}

const AddedToken* AddedTokenFinder::find(std::string_view text, bool with_special, size_t& from) const {
  if (tokens_.empty()) return nullptr;
  for (; from < text.size(); ++from) {
    if (only_first_byte_ >= 0) {
      const void* hit = std::memchr(text.data() + from, only_first_byte_, text.size() - from);
      if (!hit) return nullptr;
      from = static_cast<size_t>(static_cast<const char*>(hit) - text.data());
    }
    const AddedToken* token = longest(text.substr(from), with_special);
    if (!token) continue;
    const size_t end = from + token->content.size();
    if (!token->single_word || !(word_ends(text.substr(0, from)) || word_begins(text.substr(end)))) return token;
    from = end - 1;  // as Hugging Face's, which go on behind it
  }
  return nullptr;
}

size_t AddedTokenFinder::before_white_space(std::string_view text, size_t at) {
  while (at > 0) {
    size_t start = at - 1;
    while (start > 0 && (text[start] & 0xC0) == 0x80) --start;
    uint32_t code;
    decode_utf8(text.data() + start, code);
    if (!is_space(code)) break;
    at = start;
  }
  return at;
}

size_t AddedTokenFinder::after_white_space(std::string_view text, size_t at) {
  while (at < text.size()) {
    uint32_t code;
    int bytes = decode_utf8(text.data() + at, code);
    if (!is_space(code)) break;
    at += static_cast<size_t>(bytes);
  }
  return at;
}

}  // namespace qeng
