// TQ2_0: w = d (q - 1),  q: 2 bits in the order of q2_k.h.
// TQ1_0, PTQ1_0: w = d (t - 1),  t: a digit of base 3. A byte holds five digits, the first most significant, as
// ceil(256 v / 243) of their number v < 243; digit n is then the whole part of 3 (3^n byte mod 256) / 256. Bytes come
// in runs: digit n of byte m of a run of r bytes is the weight r n + m of that run. The last run (qh) has four digits a
// byte.
#pragma once
#include "kernels/math/blocks/q2_0.h"
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

// 256 codes of two bits.
static inline void put_codes(const uint8_t* codes, TQ2_0& b) {
  for (int j = 0; j < 64; ++j) {
    const uint8_t* first = codes + j / 32 * 128 + j % 32;
    b.qs[j] = static_cast<uint8_t>(first[0] | first[32] << 2 | first[64] << 4 | first[96] << 6);
  }
}

static inline void encode(const float* x, const float*, TQ2_0& b) {
  uint8_t codes[256];
  b.d = encode_ternary(256, x, codes);
  put_codes(codes, b);
}

// A run of bytes of `digits` trits each; byte m holds codes m, m + run, ... Returns where the next run's codes start.
static inline const uint8_t* put_trits(const uint8_t* codes, int run, int digits, uint8_t* bytes) {
  for (int m = 0; m < run; ++m) {
    int v = 0;
    for (int n = 0; n < 5; ++n) v = 3 * v + (n < digits ? codes[n * run + m] : 0);
    bytes[m] = static_cast<uint8_t>((256 * v + 242) / 243);
  }
  return codes + run * digits;
}

static inline void encode(const float* x, const float*, TQ1_0& b) {
  uint8_t codes[256];
  b.d = encode_ternary(256, x, codes);
  put_trits(put_trits(put_trits(codes, 32, 5, b.qs), 16, 5, b.qs + 32), 4, 4, b.qh);
}

static inline void encode(const float* x, const float*, PTQ1_0& b) {
  uint8_t codes[128];
  b.d = encode_ternary(128, x, codes);
  put_trits(put_trits(put_trits(codes, 16, 5, b.qs), 8, 5, b.qs + 16), 2, 4, b.qh);
}

}  // namespace qeng::blocks
