#include "kernels/crc16_fast.h"

#include "kernels/math/crc16.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace qeng {

#if defined(__x86_64__)
namespace {

// x^n modulo the polynomial.
constexpr int64_t power(int n) {
  uint16_t value = 1;
  for (int i = 0; i < n; ++i) value = static_cast<uint16_t>(value & 0x8000 ? value << 1 ^ 0x1021 : value << 1);
  return value;
}

// A register holds 16 bytes of the message as a polynomial, the first byte highest: memory order reversed.
#define QENG_PCLMUL __attribute__((target("pclmul,ssse3,sse4.1")))

QENG_PCLMUL inline __m128i load(const uint8_t* p) {
  const __m128i reverse = _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), reverse);
}

// x moved up by as many bits as `by` was made for (high half: x^(bits + 64), low half: x^bits), plus next.
QENG_PCLMUL inline __m128i fold(__m128i x, __m128i by, __m128i next) {
  return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, by, 0x11), _mm_clmulepi64_si128(x, by, 0x00)), next);
}

// Windows into these move a register's bytes by a number known only at run time; 0x80 becomes zero.
alignas(64) constexpr uint8_t kShift[48] = {0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
                                            0x80, 0x80, 0x80, 0x80, 0,    1,    2,    3,    4,    5,    6,    7,
                                            8,    9,    10,   11,   12,   13,   14,   15,   0x80, 0x80, 0x80, 0x80,
                                            0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80};
QENG_PCLMUL inline __m128i up(__m128i x, size_t bytes) {
  return _mm_shuffle_epi8(x, _mm_loadu_si128(reinterpret_cast<const __m128i*>(kShift + 16 - bytes)));
}
QENG_PCLMUL inline __m128i down(__m128i x, size_t bytes) {
  return _mm_shuffle_epi8(x, _mm_loadu_si128(reinterpret_cast<const __m128i*>(kShift + 16 + bytes)));
}

// bytes >= 16.
QENG_PCLMUL uint16_t crc16_pclmul(uint16_t crc, const uint8_t* p, size_t bytes) {
  const __m128i by_16 = _mm_set_epi64x(power(128 + 64), power(128));
  // The sum so far stands over the message's first two bytes.
  __m128i x = _mm_xor_si128(load(p), _mm_set_epi64x(static_cast<int64_t>(uint64_t{crc} << 48), 0));
  p += 16, bytes -= 16;
  if (bytes >= 112) {  // four folds under way at once: one has to wait for its predecessor's two products
    const __m128i by_64 = _mm_set_epi64x(power(512 + 64), power(512));
    __m128i y = load(p), z = load(p + 16), w = load(p + 32);
    p += 48, bytes -= 48;
    for (; bytes >= 64; p += 64, bytes -= 64) {
      x = fold(x, by_64, load(p)), y = fold(y, by_64, load(p + 16));
      z = fold(z, by_64, load(p + 32)), w = fold(w, by_64, load(p + 48));
    }
    x = fold(fold(fold(x, by_16, y), by_16, z), by_16, w);
  }
  for (; bytes >= 16; p += 16, bytes -= 16) x = fold(x, by_16, load(p));
  if (bytes > 0) {  // the last 1 .. 15 bytes come in from below; what they push out above is folded
    const __m128i tail = down(up(load(p + bytes - 16), 16 - bytes), 16 - bytes);
    x = fold(down(x, 16 - bytes), by_16, _mm_xor_si128(up(x, bytes), tail));
  }
  // 128 bits to 79, to 64 (with room), by the upper half each; the tables do the rest.
  const __m128i by_8 = _mm_set_epi64x(0, power(64)), low = _mm_set_epi64x(0, -1);
  for (int i = 0; i < 2; ++i) x = _mm_xor_si128(_mm_clmulepi64_si128(x, by_8, 0x01), _mm_and_si128(x, low));
  const auto v = static_cast<uint64_t>(_mm_cvtsi128_si64(x));
  const auto& t = kCrc16Tables.at;
  return static_cast<uint16_t>(t[7][v >> 56] ^ t[6][v >> 48 & 255] ^ t[5][v >> 40 & 255] ^ t[4][v >> 32 & 255] ^
                               t[3][v >> 24 & 255] ^ t[2][v >> 16 & 255] ^ t[1][v >> 8 & 255] ^ t[0][v & 255]);
}

const bool has_pclmul = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");

}  // namespace

uint16_t crc16_fast(uint16_t crc, const void* data, size_t bytes) {
  if (bytes < 16 || !has_pclmul) return crc16(crc, data, bytes);
  return crc16_pclmul(crc, static_cast<const uint8_t*>(data), bytes);
}
const char* crc16_method() { return has_pclmul ? "pclmul" : "tables"; }

#else

uint16_t crc16_fast(uint16_t crc, const void* data, size_t bytes) { return crc16(crc, data, bytes); }
const char* crc16_method() { return "tables"; }

#endif

}  // namespace qeng
