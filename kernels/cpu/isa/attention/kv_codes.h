// Codes of keys and values (kernels/math/kv_codes.h) to tiles of f32, and rows of f32 to codes.
#pragma once
#include <utility>

#include "kernels/cpu/isa/attention/attention.h"
#include "kernels/cpu/isa/simd/simd.h"
#include "kernels/math/kv_codes.h"

namespace qeng::isa::QENG_ISA {

using kv_codes::kLanes;
using kv_codes::kRun;

// kWidth codes, of the lanes of a Vec.
//   look_up(table, codes): table[code], of the lowest `bits` bits of each; table: levels, again and again, up to 16
//   plus(codes, n), plus_where(mask, codes, n): a sum, in the second where the mask holds
#if defined(QENG_ISA_avx512)
using Codes = __m512i;
inline Codes no_codes() { return _mm512_setzero_si512(); }
inline Codes plus(Codes codes, int n) { return _mm512_add_epi32(codes, _mm512_set1_epi32(n)); }
inline Codes plus_where(Mask mask, Codes codes, int n) {
  return _mm512_mask_add_epi32(codes, mask, codes, _mm512_set1_epi32(n));
}
inline Codes load_codes(const uint32_t* from) { return _mm512_loadu_si512(from); }
inline void store_codes(uint32_t* to, Codes codes) { _mm512_storeu_si512(to, codes); }
template <int bits>
inline Vec look_up(const float* table, Codes codes) {
  return _mm512_permutexvar_ps(codes, load(table));
}
template <int shift, bool split>
inline Codes shifted(const uint32_t* low, const uint32_t* high) {
  const Codes codes = _mm512_srli_epi32(load_codes(low), shift);
  if constexpr (split) return _mm512_or_si512(codes, _mm512_slli_epi32(load_codes(high), 32 - shift));
  return codes;
}
#elif defined(QENG_ISA_avx2)
using Codes = __m256i;
inline Codes no_codes() { return _mm256_setzero_si256(); }
inline Codes plus(Codes codes, int n) { return _mm256_add_epi32(codes, _mm256_set1_epi32(n)); }
inline Codes plus_where(Mask mask, Codes codes, int n) {
  return _mm256_add_epi32(codes, _mm256_and_si256(_mm256_castps_si256(mask), _mm256_set1_epi32(n)));
}
inline Codes load_codes(const uint32_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
inline void store_codes(uint32_t* to, Codes codes) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), codes); }
template <int bits>
inline Vec look_up(const float* table, Codes codes) {
  const Vec level = _mm256_permutevar8x32_ps(load(table), codes);  // by the lowest three bits
  if constexpr (bits < 4) return level;
  return _mm256_blendv_ps(level, _mm256_permutevar8x32_ps(load(table + 8), codes),
                          _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28)));
}
template <int shift, bool split>
inline Codes shifted(const uint32_t* low, const uint32_t* high) {
  const Codes codes = _mm256_srli_epi32(load_codes(low), shift);
  if constexpr (split) return _mm256_or_si256(codes, _mm256_slli_epi32(load_codes(high), 32 - shift));
  return codes;
}
#elif defined(QENG_ISA_neon)
struct Codes {
  uint32x4_t low, high;
};
inline Codes no_codes() { return {vdupq_n_u32(0), vdupq_n_u32(0)}; }
inline Codes plus(Codes codes, int n) {
  const uint32x4_t all = vdupq_n_u32(static_cast<uint32_t>(n));
  return {vaddq_u32(codes.low, all), vaddq_u32(codes.high, all)};
}
inline Codes plus_where(Mask mask, Codes codes, int n) {
  const uint32x4_t all = vdupq_n_u32(static_cast<uint32_t>(n));
  return {vaddq_u32(codes.low, vandq_u32(mask.low, all)), vaddq_u32(codes.high, vandq_u32(mask.high, all))};
}
inline Codes load_codes(const uint32_t* from) { return {vld1q_u32(from), vld1q_u32(from + 4)}; }
inline void store_codes(uint32_t* to, Codes codes) { vst1q_u32(to, codes.low), vst1q_u32(to + 4, codes.high); }
template <int bits>
inline Vec look_up(const float* table, Codes codes) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(table);
  const uint8x16x4_t levels = {vld1q_u8(bytes), vld1q_u8(bytes + 16), vld1q_u8(bytes + 32), vld1q_u8(bytes + 48)};
  const auto four = [&](uint32x4_t code) {  // a level is bytes 4 code to 4 code + 3
    const uint32x4_t at = vmulq_n_u32(vandq_u32(code, vdupq_n_u32(15)), 0x04040404) + vdupq_n_u32(0x03020100);
    return vreinterpretq_f32_u8(vqtbl4q_u8(levels, vreinterpretq_u8_u32(at)));
  };
  return {four(codes.low), four(codes.high)};
}
template <int shift, bool split>
inline Codes shifted(const uint32_t* low, const uint32_t* high) {
  Codes codes = load_codes(low);
  if constexpr (shift > 0) codes = {vshrq_n_u32(codes.low, shift), vshrq_n_u32(codes.high, shift)};
  if constexpr (split) {
    const Codes more = load_codes(high);
    codes = {vsliq_n_u32(codes.low, more.low, 32 - shift), vsliq_n_u32(codes.high, more.high, 32 - shift)};
  }
  return codes;
}
#else
using Codes = uint32_t;
inline Codes no_codes() { return 0; }
inline Codes plus(Codes codes, int n) { return codes + static_cast<uint32_t>(n); }
inline Codes plus_where(Mask mask, Codes codes, int n) { return mask ? plus(codes, n) : codes; }
inline void store_codes(uint32_t* to, Codes codes) { *to = codes; }
template <int bits>
inline Vec look_up(const float* table, Codes codes) {
  return table[codes & 15];
}
template <int shift, bool split>
inline Codes shifted(const uint32_t* low, const uint32_t* high) {
  if constexpr (split) return *low >> shift | *high << (32 - shift);
  return *low >> shift;
}
#endif

// Writes to[position's place] = table[code] of the 16 lanes of a position of a run, from bit `first` of their strings.
template <int bits, int position>
inline void unpack_position(const uint32_t* run, const float* table, float* to) {
  constexpr int first = position * bits, word = first / 32, shift = first % 32;
  const uint32_t *low = run + kLanes * word, *high = low + kLanes;
  for (int lane = 0; lane < kLanes; lane += kWidth)
    store(to + lane, look_up<bits>(table, shifted<shift, (shift + bits > 32)>(low + lane, high + lane)));
}

#if defined(QENG_ISA_avx2)
// A run of 4 bits, where a look-up of floats takes two permutations and a choice: instead each byte of the levels is looked
// up for 32 codes at once, and the bytes are put together to floats.
template <class Place>
inline void unpack_nibbles(const uint32_t* run, const float* table, Place place) {
  const __m128i turn = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);  // 4 x 4 bytes
  const auto of_four = [&](int level) {  // the first bytes of four levels, their second bytes ..
    return _mm_castsi128_ps(_mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table + level)), turn));
  };
  __m128 plane[4] = {of_four(0), of_four(4), of_four(8), of_four(12)};
  _MM_TRANSPOSE4_PS(plane[0], plane[1], plane[2], plane[3]);
  __m256i bytes[4];
  for (int i = 0; i < 4; ++i) bytes[i] = _mm256_broadcastsi128_si256(_mm_castps_si128(plane[i]));
  const auto put = [&](int position, int lane, __m256i floats) {
    store(place(position) + lane, _mm256_castsi256_ps(floats));
  };
  for (int word = 0; word < 4; ++word)
    for (int lane = 0; lane < kLanes; lane += kWidth) {
      const __m256i codes =
          _mm256_shuffle_epi8(load_codes(run + kLanes * word + lane), _mm256_broadcastsi128_si256(turn));
      for (int odd = 0; odd < 2; ++odd) {
        const __m256i code = _mm256_and_si256(odd ? _mm256_srli_epi16(codes, 4) : codes, _mm256_set1_epi8(15));
        __m256i b[4];
        for (int i = 0; i < 4; ++i) b[i] = _mm256_shuffle_epi8(bytes[i], code);
        const __m256i low01 = _mm256_unpacklo_epi8(b[0], b[1]), high01 = _mm256_unpackhi_epi8(b[0], b[1]),
                      low23 = _mm256_unpacklo_epi8(b[2], b[3]), high23 = _mm256_unpackhi_epi8(b[2], b[3]);
        const int first = 8 * word + odd;
        put(first, lane, _mm256_unpacklo_epi16(low01, low23)),
            put(first + 2, lane, _mm256_unpackhi_epi16(low01, low23));
        put(first + 4, lane, _mm256_unpacklo_epi16(high01, high23));
        put(first + 6, lane, _mm256_unpackhi_epi16(high01, high23));
      }
    }
}
#endif

// place(position): where the 16 lanes of a position go.
template <int bits, class Place, int... position>
inline void unpack_run(const uint32_t* run, const float* table, Place place, std::integer_sequence<int, position...>) {
#if defined(QENG_ISA_avx2)
  if constexpr (bits == 4) return unpack_nibbles(run, table, place);
#endif
  (unpack_position<bits, position>(run, table, place(position)), ...);
}
template <class Place>
inline void unpack_run(int bits, const uint32_t* run, const float* table, Place place) {
  const auto positions = std::make_integer_sequence<int, kRun>();
  switch (bits) {
    case 1: return unpack_run<1>(run, table, place, positions);
    case 2: return unpack_run<2>(run, table, place, positions);
    case 3: return unpack_run<3>(run, table, place, positions);
    default: return unpack_run<4>(run, table, place, positions);
  }
}

inline const CodeTable& table_of(const CodeTables& tables, int run) {
  return run * kRun < tables.shape.wide ? tables.wide : tables.narrow;
}
inline void read_scales(const uint32_t* tile, const CodeTables& tables, float* scales) {
  const f16* from = reinterpret_cast<const f16*>(tile + kv_codes::tile_words(tables.shape));
  for (int lane = 0; lane < kLanes; lane += kWidth) store(scales + lane, load(from + lane));
}

// 16 keys of a tile as columns: to[d * stride + slot] is a level, the key is scales[slot] times it.
inline void unpack_keys(const uint32_t* tile, const CodeTables& tables, float* to, int64_t stride, float* scales) {
  for (int run = 0; run < tables.shape.dim / kRun; ++run)
    unpack_run(kv_codes::bits_of(tables.shape, run), tile + kv_codes::words_before(tables.shape, run),
               table_of(tables, run).levels, [&](int position) { return to + (run * kRun + position) * stride; });
  read_scales(tile, tables, scales);
}
// 16 values as rows: to[slot * stride + d].
inline void unpack_values(const uint32_t* tile, const CodeTables& tables, float* to, int64_t stride, float* scales) {
  for (int run = 0; run < tables.shape.dim / kRun; ++run)
    unpack_run(kv_codes::bits_of(tables.shape, run), tile + kv_codes::words_before(tables.shape, run),
               table_of(tables, run).levels,
               [&](int position) { return to + position % kLanes * stride + run * kRun + position / kLanes * kLanes; });
  read_scales(tile, tables, scales);
}

// Sums of squares of a row, by lanes as a warp of the CUDA kernel adds them.
struct Squares {
  double lanes[kRun] = {};
  void add(const float* run) {
    for (int d = 0; d < kRun; ++d) lanes[d] += static_cast<double>(run[d]) * static_cast<double>(run[d]);
  }
  template <int half = kRun / 2>
  double total() {
    for (int d = 0; d < half; ++d) lanes[d] += lanes[d + half];
    if constexpr (half > 1) return total<half / 2>();
    return lanes[0];
  }
};

// The codes of a run of a row, which is multiplied by factor: kv_codes::nearest, as half ways ascend. Its levels are added.
template <int bits>
inline void encode_run(const float* x, float factor, const CodeTable& table, uint32_t* codes, Squares& of_levels) {
  float levels[kRun];
  for (int d = 0; d < kRun; d += kWidth) {
    const Vec y = load(x + d) * splat(factor);
    Codes code = no_codes();
#pragma GCC unroll 4
    for (int step = 1 << bits >> 1; step > 0; step >>= 1)
      code = plus_where(below(look_up<bits>(table.half_ways, plus(code, step - 1)), y), code, step);
    store_codes(codes + d, code);
    store(levels + d, look_up<bits>(table.levels, code));
  }
  of_levels.add(levels);
}

// The codes of a row x of shape.dim elements, and its scale.
inline float encode_row(const float* x, const CodeTables& tables, uint32_t* codes) {
  const int dim = tables.shape.dim;
  Squares squares, of_levels;
  for (int d = 0; d < dim; d += kRun) squares.add(x + d);
  const float length = static_cast<float>(__builtin_sqrt(squares.total()));
  if (length == 0) {
    for (int d = 0; d < dim; ++d) codes[d] = 0;
    return 0;
  }
  const float factor = __builtin_sqrtf(static_cast<float>(dim)) / length;
  for (int run = 0; run < dim / kRun; ++run, x += kRun, codes += kRun) {
    const CodeTable& table = table_of(tables, run);
    switch (kv_codes::bits_of(tables.shape, run)) {
      case 1: encode_run<1>(x, factor, table, codes, of_levels); break;
      case 2: encode_run<2>(x, factor, table, codes, of_levels); break;
      case 3: encode_run<3>(x, factor, table, codes, of_levels); break;
      default: encode_run<4>(x, factor, table, codes, of_levels);
    }
  }
  return static_cast<float>(static_cast<double>(length) / __builtin_sqrt(of_levels.total()));
}

inline void write_scale(uint32_t* tile, const kv_codes::Shape& shape, int slot, float scale) {
  reinterpret_cast<f16*>(tile + kv_codes::tile_words(shape))[slot] = to_f16(scale);
}
// The codes of a row to its slot of a tile.
template <int bits>
inline void pack_lane(uint32_t* to, const uint32_t* codes) {
  uint64_t string = 0;
  int held = 0;
#pragma GCC unroll 32
  for (int i = 0; i < kRun; ++i) {
    string |= static_cast<uint64_t>(codes[i]) << held;
    held += bits;
    if (held < 32) continue;
    *to = static_cast<uint32_t>(string);
    to += kLanes, string >>= 32, held -= 32;
  }
}
inline void pack_key(uint32_t* tile, const kv_codes::Shape& shape, int slot, const uint32_t* codes) {
  for (int run = 0; run < shape.dim / kRun; ++run, codes += kRun) {
    uint32_t* to = tile + kv_codes::words_before(shape, run) + slot;
    switch (kv_codes::bits_of(shape, run)) {
      case 1: pack_lane<1>(to, codes); break;
      case 2: pack_lane<2>(to, codes); break;
      case 3: pack_lane<3>(to, codes); break;
      default: pack_lane<4>(to, codes);
    }
  }
}
inline void pack_value(uint32_t* tile, const kv_codes::Shape& shape, int slot, const uint32_t* codes) {
  for (int run = 0; run < shape.dim / kRun; ++run) {
    const int bits = kv_codes::bits_of(shape, run);
    const uint32_t mask = (1u << bits) - 1;
    for (int half = 0; half < kRun / kLanes; ++half) {
      const int first = (half * kLanes + slot) * bits, shift = first % 32;
      uint32_t* low = tile + kv_codes::words_before(shape, run) + kLanes * (first / 32);
      const uint32_t* code = codes + run * kRun + half * kLanes;
      for (int lane = 0; lane < kLanes; ++lane) low[lane] = (low[lane] & ~(mask << shift)) | code[lane] << shift;
      if (shift + bits <= 32) continue;
      uint32_t* high = low + kLanes;
      for (int lane = 0; lane < kLanes; ++lane)
        high[lane] = (high[lane] & ~(mask >> (32 - shift))) | code[lane] >> (32 - shift);
    }
  }
}

}  // namespace qeng::isa::QENG_ISA
