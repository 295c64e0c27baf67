#include "engine/tokenizer/base64.h"

#include <cstdint>

namespace qeng {
namespace {

int base64_digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

}  // namespace

bool decode_base64(std::string_view text, std::string& bytes) {
  bytes.clear();
  if (text.empty() || text.size() % 4 != 0) return false;
  size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  uint32_t bits = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    int digit = i + padding >= text.size() ? 0 : base64_digit(text[i]);
    if (digit < 0) return false;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    if (i % 4 == 3) bytes += {static_cast<char>(bits >> 16), static_cast<char>(bits >> 8), static_cast<char>(bits)};
  }
  bytes.resize(bytes.size() - padding);
  return true;
}

}  // namespace qeng
