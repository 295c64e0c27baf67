// Sets of characters as sequences of byte ranges: [U+0000, U+07FF] is [00-7F] and [C2-DF][80-BF].
#pragma once
#include <array>
#include <utility>
#include <vector>

#include "engine/grammar/expression.h"

namespace qeng::grammar {

struct ByteRanges {
  std::array<std::pair<uint8_t, uint8_t>, 4> range;  // first and last of each byte
  size_t count = 0;
};

// Exactly the UTF-8 of the set, each character in one of them.
std::vector<ByteRanges> utf8_ranges(const CharSet& set);

// Well-formed UTF-8 byte by byte: kUtf8Whole between characters, kUtf8Bad after what is none.
enum Utf8State : uint8_t {
  kUtf8Whole,
  kUtf8One,
  kUtf8Two,
  kUtf8Three,
  kUtf8AfterE0,
  kUtf8AfterED,
  kUtf8AfterF0,
  kUtf8AfterF4,
  kUtf8Bad
};
Utf8State utf8_next(Utf8State state, uint8_t byte);

}  // namespace qeng::grammar
