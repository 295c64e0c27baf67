#include "engine/grammar/text_reader.h"

#include <algorithm>

#include "engine/grammar/expression.h"
#include "engine/grammar/gbnf.h"
#include "kernels/error.h"

namespace qeng::grammar {

TextReader::TextReader(std::string_view text, std::string what) : text_(text), what_(std::move(what)) {
  if (text.size() > kMaxText) fail("format", what_, ": ", text.size(), " bytes, at most ", kMaxText, " are read");
  for (size_t i = 0; i < text.size();) {
    const int length = utf8_length(text.substr(i));
    if (length <= 0) fail_at(i, "this is not UTF-8");
    i += static_cast<size_t>(length);
  }
}

uint32_t TextReader::next() {
  uint32_t code;
  at_ += static_cast<size_t>(decode_utf8(text_.data() + at_, code));
  return code;
}

bool TextReader::take(std::string_view expected) {
  if (!rest().starts_with(expected)) return false;
  at_ += expected.size();
  return true;
}

uint32_t TextReader::hex(size_t begin, int digits) {
  uint64_t code = 0;
  for (int i = 0; i < digits; ++i) {
    const char c = at_end() ? '\0' : peek();
    const int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
    if (digit < 0) fail_at(begin, "this escape needs " + std::to_string(digits) + " hexadecimal digits");
    code = code * 16 + static_cast<uint64_t>(digit);
    ++at_;
  }
  if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF))
    fail_at(begin, "this escape is not a character of Unicode");
  return static_cast<uint32_t>(code);
}

bool TextReader::take_repeat(uint32_t most, int& min, int& max) {
  const size_t begin = at_;
  min = 0, max = Expr::kUnlimited;
  if (take("*")) return true;
  if (take("+")) return min = 1, true;
  if (take("?")) return max = 1, true;
  if (!take("{")) return false;
  bounds(begin, most, min, max);
  return true;
}

void TextReader::bounds(size_t begin, uint32_t most, int& min, int& max) {
  const auto number = [&](int& value) {
    uint64_t n = 0;
    const size_t first = at_;
    while (!at_end() && peek() >= '0' && peek() <= '9')
      n = std::min<uint64_t>(n * 10 + static_cast<uint64_t>(text_[at_++] - '0'), most + 1);
    if (n > most) fail_at(begin, "repetitions over " + std::to_string(most) + " are refused");
    value = static_cast<int>(n);
    return at_ > first;
  };
  if (!number(min)) fail_at(begin, "expected {m}, {m,} or {m,n}");
  max = min;
  if (take(",") && !number(max)) max = Expr::kUnlimited;
  if (!take("}")) fail_at(begin, "expected {m}, {m,} or {m,n}");
  if (max != Expr::kUnlimited && max < min) fail_at(begin, "these repetitions end before they begin");
}

void TextReader::fail_at(size_t position, const std::string& message) const {
  const std::string_view before = text_.substr(0, position);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const size_t begin = before.rfind('\n') + 1;  // npos + 1 is 0
  const auto column = std::count_if(before.begin() + static_cast<std::ptrdiff_t>(begin), before.end(),
                                    [](char c) { return (c & 0xC0) != 0x80; }) +
                      1;
  fail("format", what_, ", line ", line, ", column ", column, ": ", message);
}

}  // namespace qeng::grammar
