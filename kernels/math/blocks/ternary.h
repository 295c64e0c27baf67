// TQ2_0: w = d (q - 1),  q: 2 bits in the order of q2_k.h.
// TQ1_0, PTQ1_0: w = d (t - 1),  t: a digit of base 3. A byte holds five digits, the first most significant, as
// ceil(256 v / 243) of their number v < 243; digit n is then the whole part of 3 (3^n byte mod 256) / 256. Bytes come
// in runs: digit n of byte m of a run of r bytes is the weight r n + m of that run. The last run (qh) has four digits a
// byte.
#pragma once
#include "kernels/math/blocks/q2_k.h"

namespace qeng::blocks {

struct TQ2_0 {
  static constexpr int kElements = 256, kGroup = 256;
  static constexpr bool kHasMin = false;
  uint8_t qs[64];
  f16 d;
};
static_assert(sizeof(TQ2_0) == 66);

struct TQ1_0 {
  static constexpr int kElements = 256, kGroup = 256;
  static constexpr bool kHasMin = false;
  uint8_t qs[48];  // a run of 32 bytes and one of 16
  uint8_t qh[4];
  f16 d;
};
static_assert(sizeof(TQ1_0) == 54);

struct PTQ1_0 {
  static constexpr int kElements = 128, kGroup = 128;
  static constexpr bool kHasMin = false;
  uint8_t qs[24];  // a run of 16 bytes and one of 8
  uint8_t qh[2];
  f16 d;
};
static_assert(sizeof(PTQ1_0) == 28);

// Digit n of a byte.
QENG_HD int trit(uint8_t byte, int n) {
  const uint32_t power = static_cast<uint32_t>(0x511b090301u >> (8 * n)) & 255u;  // 3^n
  return static_cast<int>((byte * power & 255u) * 3u >> 8);
}
// Weight k of runs of `run` and run / 2 bytes, then qh's.
QENG_HD int trit_of_runs(const uint8_t* qs, const uint8_t* qh, int run, int k) {
  if (k < 5 * run) return trit(qs[k % run], k / run);
  k -= 5 * run;
  const int half = run / 2, last = run / 8;
  if (k < 5 * half) return trit(qs[run + k % half], k / half);
  k -= 5 * half;
  return trit(qh[k % last], k / last);
}

QENG_HD int code(const TQ2_0& b, int k) { return two_bits(b.qs, k) - 1; }
QENG_HD float scale(const TQ2_0& b, int) { return to_f32(b.d); }

QENG_HD int code(const TQ1_0& b, int k) { return trit_of_runs(b.qs, b.qh, 32, k) - 1; }
QENG_HD float scale(const TQ1_0& b, int) { return to_f32(b.d); }

QENG_HD int code(const PTQ1_0& b, int k) { return trit_of_runs(b.qs, b.qh, 16, k) - 1; }
QENG_HD float scale(const PTQ1_0& b, int) { return to_f32(b.d); }

}  // namespace qeng::blocks
