// What tokenizing needs of Unicode: character classes, validity, normal form C. Properties are utf8proc's (Unicode 14
// on Debian 12, 15 on Ubuntu 24.04); the table is built once, on first use.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace qeng {

// The classes that pre-tokenizer patterns tell apart: [\p{Lu}\p{Lt}], \p{Ll}, [\p{Lm}\p{Lo}], \p{M}, \p{N}, \s without
// [\r\n], [\r\n], the rest.
enum CharClass : uint8_t { kOther, kUpper, kLower, kOtherLetter, kMark, kNumber, kSpace, kNewline };
constexpr bool is_letter(uint8_t kind) { return kind >= kUpper && kind <= kOtherLetter; }
constexpr uint8_t kClassMask = 7;
constexpr uint8_t kMayChangeInNfc =
    0x80;  // set on code points that NFC may change, or that may join what precedes them

// One byte a code point: its CharClass, and kMayChangeInNfc. Valid for the life of the process.
const uint8_t* unicode_table();

// Length of the character at p, and its code point. [p, end) is valid UTF-8 and not empty.
inline int decode_utf8(const char* p, uint32_t& code) {
  auto byte = [p](int i) { return static_cast<uint32_t>(static_cast<uint8_t>(p[i])); };
  if (byte(0) < 0x80) return code = byte(0), 1;
  if (byte(0) < 0xE0) return code = (byte(0) & 31) << 6 | (byte(1) & 63), 2;
  if (byte(0) < 0xF0) return code = (byte(0) & 15) << 12 | (byte(1) & 63) << 6 | (byte(2) & 63), 3;
  return code = (byte(0) & 7) << 18 | (byte(1) & 63) << 12 | (byte(2) & 63) << 6 | (byte(3) & 63), 4;
}
void append_utf8(uint32_t code, std::string& text);

bool is_word(uint32_t code);  // \w: a letter, mark, decimal digit, connector as _, or joiner

bool is_ascii(std::string_view text);

// The first byte of [p, end) that is not ASCII, or end; eight bytes a step.
inline const char* skip_ascii(const char* p, const char* end) {
  for (uint64_t word; end - p >= 8; p += 8) {
    std::memcpy(&word, p, 8);
    if (word & 0x8080808080808080u) break;
  }
  while (p < end && static_cast<uint8_t>(*p) < 0x80) ++p;
  return p;
}

// Length of the character that text begins with if it is well-formed (no surrogates, no overlong forms, at most
// U+10FFFF); otherwise minus the length of the longest piece that could have begun one (at least 1). 0 for "": nothing
// there.
int utf8_length(std::string_view text);

// text itself if it is valid UTF-8; otherwise a copy in storage, where each ill-formed piece is U+FFFD, as in Python's
// bytes.decode(errors="replace") and the WHATWG decoder.
std::string_view valid_utf8(std::string_view text, std::string& storage);

// text itself if it is in normal form C (found by a quick check), otherwise a normalised copy in storage. text is valid
// UTF-8.
std::string_view nfc(std::string_view text, std::string& storage);

// text in a normal form of Unicode (annex 15). Error("format") where it is not valid UTF-8.
enum class NormalForm { c, d, kc, kd };
std::string normal_form(std::string_view text, NormalForm form);

// Cuts bytes into whole characters, for printing tokens as they are generated.
class Utf8Cutter {
 public:
  std::string push(std::string_view bytes);  // the characters that are complete now; ill-formed pieces become U+FFFD
  std::string finish();                      // U+FFFD if a character was left incomplete, else ""
 private:
  std::string pending_;
};

}  // namespace qeng
