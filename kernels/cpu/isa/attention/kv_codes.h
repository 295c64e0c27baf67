// Codes of keys and values (kernels/math/kv_codes.h) to tiles of f32, and rows of f32 to codes.
#pragma once
#include <utility>

#include "kernels/cpu/isa/attention/attention.h"
#include "kernels/cpu/isa/simd/simd.h"
#include "kernels/math/kv_codes.h"

namespace qeng::isa::QENG_ISA {

using kv_codes::kLanes;
using kv_codes::kRun;

// Writes to[position's place] = table[code] of the 16 lanes of a position of a run, from bit `first` of their strings.
// table: the levels, again and again, up to 16.
template <int bits, int position>
inline void unpack_position(const uint32_t* run, const float* table, float* to) {
  constexpr int first = position * bits, word = first / 32, shift = first % 32;
  constexpr bool split = shift + bits > 32;
#if defined(QENG_ISA_avx512)
  __m512i code = _mm512_srli_epi32(_mm512_loadu_si512(run + kLanes * word), shift);
  if constexpr (split)
    code = _mm512_or_si512(code, _mm512_slli_epi32(_mm512_loadu_si512(run + kLanes * (word + 1)), 32 - shift));
  store(to, _mm512_permutexvar_ps(code, load(table)));  // by the lowest four bits
#elif defined(QENG_ISA_avx2)
  for (int half = 0; half < kLanes; half += 8) {
    const auto words = [&](int w) {
      return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(run + kLanes * w + half));
    };
    __m256i code = _mm256_srli_epi32(words(word), shift);
    if constexpr (split) code = _mm256_or_si256(code, _mm256_slli_epi32(words(word + 1), 32 - shift));
    Vec level = _mm256_permutevar8x32_ps(load(table), code);  // by the lowest three bits
    if constexpr (bits == 4)
      level = _mm256_blendv_ps(level, _mm256_permutevar8x32_ps(load(table + 8), code),
                               _mm256_castsi256_ps(_mm256_slli_epi32(code, 28)));
    store(to + half, level);
  }
#else
  for (int lane = 0; lane < kLanes; ++lane) {
    uint32_t code = run[kLanes * word + lane] >> shift;
    if constexpr (split) code |= run[kLanes * (word + 1) + lane] << (32 - shift);
    to[lane] = table[code & 15];
  }
#endif
}

// place(position): where the 16 lanes of a position go.
template <int bits, class Place, int... position>
inline void unpack_run(const uint32_t* run, const float* table, Place place, std::integer_sequence<int, position...>) {
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

inline const float* table_of(const CodeTables& tables, int run) {
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
               table_of(tables, run), [&](int position) { return to + (run * kRun + position) * stride; });
  read_scales(tile, tables, scales);
}
// 16 values as rows: to[slot * stride + d].
inline void unpack_values(const uint32_t* tile, const CodeTables& tables, float* to, int64_t stride, float* scales) {
  for (int run = 0; run < tables.shape.dim / kRun; ++run)
    unpack_run(kv_codes::bits_of(tables.shape, run), tile + kv_codes::words_before(tables.shape, run),
               table_of(tables, run),
               [&](int position) { return to + position % kLanes * stride + run * kRun + position / kLanes * kLanes; });
  read_scales(tile, tables, scales);
}

// The codes of a row x of shape.dim elements, and its scale. levels: as KvStore has them.
inline float encode_row(const float* x, const kv_codes::Shape& shape, const float* levels, uint32_t* codes) {
  double squares = 0;
  for (int d = 0; d < shape.dim; ++d) squares += static_cast<double>(x[d]) * static_cast<double>(x[d]);
  const float length = static_cast<float>(__builtin_sqrt(squares));
  if (length == 0) {
    for (int d = 0; d < shape.dim; ++d) codes[d] = 0;
    return 0;
  }
  const float factor = __builtin_sqrtf(static_cast<float>(shape.dim)) / length;
  double of_levels = 0;
  for (int run = 0; run < shape.dim / kRun; ++run) {
    const bool wide = run * kRun < shape.wide;
    const int count = 1 << kv_codes::bits_of(shape, run);
    const float* table = levels + (wide ? 1 << shape.bits : 0);
    float y[kRun];
    uint32_t* code = codes + run * kRun;
    for (int d = 0; d < kRun; ++d) y[d] = x[run * kRun + d] * factor, code[d] = 0;
    for (int i = 0; i + 1 < count; ++i) {
      const float threshold = 0.5f * (table[i] + table[i + 1]);
      for (int d = 0; d < kRun; ++d) code[d] += y[d] > threshold ? 1u : 0u;
    }
    for (int d = 0; d < kRun; ++d)
      of_levels += static_cast<double>(table[code[d]]) * static_cast<double>(table[code[d]]);
  }
  return static_cast<float>(static_cast<double>(length) / __builtin_sqrt(of_levels));
}

inline void write_scale(uint32_t* tile, const kv_codes::Shape& shape, int slot, float scale) {
  reinterpret_cast<f16*>(tile + kv_codes::tile_words(shape))[slot] = to_f16(scale);
}
// The codes of a row to its slot of a tile.
inline void pack_key(uint32_t* tile, const kv_codes::Shape& shape, int slot, const uint32_t* codes) {
  for (int run = 0; run < shape.dim / kRun; ++run) {
    const int bits = kv_codes::bits_of(shape, run);
    uint32_t* to = tile + kv_codes::words_before(shape, run) + slot;
    uint64_t string = 0;
    int held = 0;
    for (int d = 0; d < kRun; ++d) {
      string |= static_cast<uint64_t>(codes[run * kRun + d]) << held;
      held += bits;
      if (held < 32) continue;
      *to = static_cast<uint32_t>(string);
      to += kLanes, string >>= 32, held -= 32;
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
