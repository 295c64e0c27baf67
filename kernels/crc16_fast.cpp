#include "kernels/crc16_fast.h"

#include "kernels/math/crc16.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace qeng {

#if defined(__x86_64__) || defined(__aarch64__)
namespace {

// x^n modulo the polynomial.
constexpr int64_t power(int n) {
  uint16_t value = 1;
  for (int i = 0; i < n; ++i) value = static_cast<uint16_t>(value & 0x8000 ? value << 1 ^ 0x1021 : value << 1);
  return value;
}

// Bits: a register that holds 16 bytes of the message as a polynomial, the first byte highest: memory order reversed.
//   pick           byte i is byte from[i] of x, or zero where from[i] is 0x80
//   multiply_high, multiply_low    x's half times y's;  multiply_across: x's high half times y's low one
#if defined(__x86_64__)

#define QENG_CLMUL __attribute__((target("pclmul,ssse3,sse4.1")))
using Bits = __m128i;
QENG_CLMUL inline Bits make(int64_t high, int64_t low) { return _mm_set_epi64x(high, low); }
QENG_CLMUL inline uint64_t low_half(Bits x) { return static_cast<uint64_t>(_mm_cvtsi128_si64(x)); }
QENG_CLMUL inline Bits load_bytes(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const Bits*>(p)); }
QENG_CLMUL inline Bits pick(Bits x, Bits from) { return _mm_shuffle_epi8(x, from); }
QENG_CLMUL inline Bits multiply_high(Bits x, Bits y) { return _mm_clmulepi64_si128(x, y, 0x11); }
QENG_CLMUL inline Bits multiply_low(Bits x, Bits y) { return _mm_clmulepi64_si128(x, y, 0x00); }
QENG_CLMUL inline Bits multiply_across(Bits x, Bits y) { return _mm_clmulepi64_si128(x, y, 0x01); }
const bool has_clmul = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
constexpr const char* kMethod = "pclmul";

#else

#define QENG_CLMUL __attribute__((target("+crypto")))
using Bits = uint64x2_t;
QENG_CLMUL inline Bits make(int64_t high, int64_t low) {
  return Bits{static_cast<uint64_t>(low), static_cast<uint64_t>(high)};
}
QENG_CLMUL inline uint64_t low_half(Bits x) { return vgetq_lane_u64(x, 0); }
QENG_CLMUL inline Bits load_bytes(const uint8_t* p) { return vreinterpretq_u64_u8(vld1q_u8(p)); }
QENG_CLMUL inline Bits pick(Bits x, Bits from) {
  return vreinterpretq_u64_u8(vqtbl1q_u8(vreinterpretq_u8_u64(x), vreinterpretq_u8_u64(from)));
}
QENG_CLMUL inline Bits multiply_high(Bits x, Bits y) {
  return vreinterpretq_u64_p128(vmull_high_p64(vreinterpretq_p64_u64(x), vreinterpretq_p64_u64(y)));
}
QENG_CLMUL inline Bits multiply_halves(uint64_t x, uint64_t y) {
  return vreinterpretq_u64_p128(vmull_p64(static_cast<poly64_t>(x), static_cast<poly64_t>(y)));
}
QENG_CLMUL inline Bits multiply_low(Bits x, Bits y) { return multiply_halves(low_half(x), low_half(y)); }
QENG_CLMUL inline Bits multiply_across(Bits x, Bits y) { return multiply_halves(vgetq_lane_u64(x, 1), low_half(y)); }
const bool has_clmul = (::getauxval(AT_HWCAP) & HWCAP_PMULL) != 0;
constexpr const char* kMethod = "pmull";

#endif

QENG_CLMUL inline Bits load(const uint8_t* p) {
  return pick(load_bytes(p), make(0x0001020304050607, 0x08090a0b0c0d0e0f));
}

// x moved up by as many bits as `by` was made for (high half: x^(bits + 64), low half: x^bits), plus next.
QENG_CLMUL inline Bits fold(Bits x, Bits by, Bits next) { return multiply_high(x, by) ^ multiply_low(x, by) ^ next; }

// Windows into these move a register's bytes by a number known only at run time; 0x80 becomes zero.
alignas(64) constexpr uint8_t kShift[48] = {0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
                                            0x80, 0x80, 0x80, 0x80, 0,    1,    2,    3,    4,    5,    6,    7,
                                            8,    9,    10,   11,   12,   13,   14,   15,   0x80, 0x80, 0x80, 0x80,
                                            0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80};
QENG_CLMUL inline Bits up(Bits x, size_t bytes) { return pick(x, load_bytes(kShift + 16 - bytes)); }
QENG_CLMUL inline Bits down(Bits x, size_t bytes) { return pick(x, load_bytes(kShift + 16 + bytes)); }

// bytes >= 16.
QENG_CLMUL uint16_t crc16_clmul(uint16_t crc, const uint8_t* p, size_t bytes) {
  const Bits by_16 = make(power(128 + 64), power(128));
  // The sum so far stands over the message's first two bytes.
  Bits x = load(p) ^ make(static_cast<int64_t>(uint64_t{crc} << 48), 0);
  p += 16, bytes -= 16;
  if (bytes >= 112) {  // four folds under way at once: one has to wait for its predecessor's two products
    const Bits by_64 = make(power(512 + 64), power(512));
    Bits y = load(p), z = load(p + 16), w = load(p + 32);
    p += 48, bytes -= 48;
    for (; bytes >= 64; p += 64, bytes -= 64) {
      x = fold(x, by_64, load(p)), y = fold(y, by_64, load(p + 16));
      z = fold(z, by_64, load(p + 32)), w = fold(w, by_64, load(p + 48));
    }
    x = fold(fold(fold(x, by_16, y), by_16, z), by_16, w);
  }
  for (; bytes >= 16; p += 16, bytes -= 16) x = fold(x, by_16, load(p));
  if (bytes > 0) {  // the last 1 .. 15 bytes come in from below; what they push out above is folded
    const Bits tail = down(up(load(p + bytes - 16), 16 - bytes), 16 - bytes);
    x = fold(down(x, 16 - bytes), by_16, up(x, bytes) ^ tail);
  }
  // 128 bits to 79, to 64 (with room), by the upper half each; the tables do the rest.
  const Bits by_8 = make(0, power(64)), low = make(0, -1);
  for (int i = 0; i < 2; ++i) x = multiply_across(x, by_8) ^ (x & low);
  const uint64_t v = low_half(x);
  const auto& t = kCrc16Tables.at;
  return static_cast<uint16_t>(t[7][v >> 56] ^ t[6][v >> 48 & 255] ^ t[5][v >> 40 & 255] ^ t[4][v >> 32 & 255] ^
                               t[3][v >> 24 & 255] ^ t[2][v >> 16 & 255] ^ t[1][v >> 8 & 255] ^ t[0][v & 255]);
}

}  // namespace

uint16_t crc16_fast(uint16_t crc, const void* data, size_t bytes) {
  if (bytes < 16 || !has_clmul) return crc16(crc, data, bytes);
  return crc16_clmul(crc, static_cast<const uint8_t*>(data), bytes);
}
const char* crc16_method() { return has_clmul ? kMethod : "tables"; }

#else

uint16_t crc16_fast(uint16_t crc, const void* data, size_t bytes) { return crc16(crc, data, bytes); }
const char* crc16_method() { return "tables"; }

#endif

}  // namespace qeng
