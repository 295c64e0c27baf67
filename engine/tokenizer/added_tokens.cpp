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
  std::stable_sort(tokens_.begin(), tokens_.end(), [](const AddedToken& a, const AddedToken& b) {
    return first_byte(a) != first_byte(b) ? first_byte(a) < first_byte(b) : a.content.size() > b.content.size();
  });
  for (const AddedToken& token : tokens_) ++first_[first_byte(token) + 1u];
  for (size_t byte = 0; byte < 256; ++byte) first_[byte + 1] += first_[byte];
  if (!tokens_.empty() && first_byte(tokens_.front()) == first_byte(tokens_.back()))
    only_first_byte_ = first_byte(tokens_.front());
}

const AddedToken* AddedTokenFinder::find(std::string_view text, bool with_special, size_t& from) const {
  if (tokens_.empty()) return nullptr;
  for (; from < text.size(); ++from) {
    if (only_first_byte_ >= 0) {
      const void* hit = std::memchr(text.data() + from, only_first_byte_, text.size() - from);
      if (!hit) return nullptr;
      from = static_cast<size_t>(static_cast<const char*>(hit) - text.data());
    }
    uint8_t byte = static_cast<uint8_t>(text[from]);
    for (uint32_t i = first_[byte]; i < first_[byte + 1u]; ++i)
      if ((with_special || !tokens_[i].special) && text.substr(from).starts_with(tokens_[i].content)) {
        const size_t end = from + tokens_[i].content.size();
        if (!tokens_[i].single_word || !(word_ends(text.substr(0, from)) || word_begins(text.substr(end))))
          return &tokens_[i];
        from = end - 1;  // as Hugging Face's, which go on behind it
        break;
      }
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
