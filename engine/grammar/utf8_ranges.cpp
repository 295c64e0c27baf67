#include "engine/grammar/utf8_ranges.h"

#include <algorithm>

namespace qeng::grammar {
namespace {
size_t encode(uint32_t code, std::array<uint8_t, 4>& bytes) {
  const auto tail = [&](size_t i, int shift) { bytes[i] = static_cast<uint8_t>(0x80 | ((code >> shift) & 63)); };
  if (code < 0x80) return bytes[0] = static_cast<uint8_t>(code), 1;
  if (code < 0x800) return bytes[0] = static_cast<uint8_t>(0xC0 | (code >> 6)), tail(1, 0), 2;
  if (code < 0x10000) return bytes[0] = static_cast<uint8_t>(0xE0 | (code >> 12)), tail(1, 6), tail(2, 0), 3;
  return bytes[0] = static_cast<uint8_t>(0xF0 | (code >> 18)), tail(1, 12), tail(2, 6), tail(3, 0), 4;
}

// first and last have the same length in bytes. A range whose bytes are independent of one another is one sequence;
// others are cut where a low part ends.
void cut(uint32_t first, uint32_t last, std::vector<ByteRanges>& out) {
  for (const int bits : {6, 12, 18}) {
    const uint32_t low = (uint32_t{1} << bits) - 1;
    if ((first & ~low) == (last & ~low) || last < 0x80) continue;
    if ((first & low) != 0) return cut(first, first | low, out), cut((first | low) + 1, last, out);
    if ((last & low) != low) return cut(first, (last & ~low) - 1, out), cut(last & ~low, last, out);
  }
  std::array<uint8_t, 4> a{}, b{};
  ByteRanges ranges;
  ranges.count = encode(first, a);
  encode(last, b);
  for (size_t i = 0; i < ranges.count; ++i) ranges.range[i] = {a[i], b[i]};
  out.push_back(ranges);
}
}  // namespace

std::vector<ByteRanges> utf8_ranges(const CharSet& set) {
  static constexpr Range kLengths[] = {{0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xFFFF}, {0x10000, 0x10FFFF}};
  std::vector<ByteRanges> out;
  for (const Range& range : set) {
    for (const Range& length : kLengths) {
      const uint32_t first = std::max(range.first, length.first), last = std::min(range.last, length.last);
      if (first <= last) cut(first, last, out);
    }
  }
  return out;
}

Utf8State utf8_next(Utf8State state, uint8_t byte) {
  const auto within = [&](uint8_t first, uint8_t last, Utf8State then) {
    return byte >= first && byte <= last ? then : kUtf8Bad;
  };
  switch (state) {
    case kUtf8Whole:
      if (byte < 0x80) return kUtf8Whole;
      if (byte < 0xC2 || byte > 0xF4) return kUtf8Bad;
      if (byte < 0xE0) return kUtf8One;
      if (byte < 0xF0) return byte == 0xE0 ? kUtf8AfterE0 : byte == 0xED ? kUtf8AfterED : kUtf8Two;
      return byte == 0xF0 ? kUtf8AfterF0 : byte == 0xF4 ? kUtf8AfterF4 : kUtf8Three;
    case kUtf8One: return within(0x80, 0xBF, kUtf8Whole);
    case kUtf8Two: return within(0x80, 0xBF, kUtf8One);
    case kUtf8Three: return within(0x80, 0xBF, kUtf8Two);
    case kUtf8AfterE0: return within(0xA0, 0xBF, kUtf8One);
    case kUtf8AfterED: return within(0x80, 0x9F, kUtf8One);
    case kUtf8AfterF0: return within(0x90, 0xBF, kUtf8Two);
    case kUtf8AfterF4: return within(0x80, 0x8F, kUtf8Two);
    case kUtf8Bad: break;
  }
  return kUtf8Bad;
}

}  // namespace qeng::grammar
