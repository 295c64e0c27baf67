// The order of Sort and Route (kernels/ops.h) as that of integers: a value's key above its column, so that no two are equal.
#pragma once
#include "kernels/math/bf16.h"

namespace qeng {

// Keys order as the numbers do; -0 as 0, every NaN above all of them.
QENG_HD uint32_t sort_key(float x) {
  if (x != x) return 0xffffffffu;
  const uint32_t bits = x == 0.0f ? 0u : bits_of(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
QENG_HD uint32_t sort_key(int32_t x) { return static_cast<uint32_t>(x) ^ 0x80000000u; }
// Of Route's scores: a NaN below all numbers.
QENG_HD uint32_t route_key(float x) { return x != x ? 0u : sort_key(x); }

QENG_HD uint64_t sort_word(uint32_t key, int64_t column, bool descending) {
  return static_cast<uint64_t>(descending ? ~key : key) << 32 | static_cast<uint32_t>(column);
}
QENG_HD int32_t sort_column(uint64_t word) { return static_cast<int32_t>(word & 0xffffffffu); }

}  // namespace qeng
