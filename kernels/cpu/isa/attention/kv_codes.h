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

// Sums of squares of a row, by lanes as a warp of the CUDA kernel adds them.
struct Squares {
  double lanes[kRun] = {};
  void add(const float* run) {
    for (int d = 0; d < kRun; ++d) lanes[d] += static_cast<double>(run[d]) * static_cast<double>(run[d]);
  }
  double total() {
    for (int half = kRun / 2; half > 0; half /= 2)
      for (int d = 0; d < half; ++d) lanes[d] += lanes[d + half];
    return lanes[0];
  }
};

// The codes of a row x of shape.dim elements, and its scale. levels: as KvStore has them.
inline float encode_row(const float* x, const kv_codes::Shape& shape, const float* levels, uint32_t* codes) {
  Squares squares, of_levels;
  for (int d = 0; d < shape.dim; d += kRun) squares.add(x + d);
  const float length = static_cast<float>(__builtin_sqrt(squares.total()));
  if (length == 0) {
    for (int d = 0; d < shape.dim; ++d) codes[d] = 0;
    return 0;
  }
  const float factor = __builtin_sqrtf(static_cast<float>(shape.dim)) / length;
  for (int run = 0; run < shape.dim / kRun; ++run) {
    const float* table = levels + (run * kRun < shape.wide ? 1 << shape.bits : 0);
    const int count = 1 << kv_codes::bits_of(shape, run);
    constexpr int kVecs = kRun / kWidth;
    Vec y[kVecs], code[kVecs], level[kVecs];
    for (int v = 0; v < kVecs; ++v) {
      y[v] = load(x + run * kRun + v * kWidth) * splat(factor);
      code[v] = splat(0.0f), level[v] = splat(table[0]);
    }
    for (int i = 0; i + 1 < count; ++i) {
      const Vec half_way = splat(0.5f * (table[i] + table[i + 1]));
      for (int v = 0; v < kVecs; ++v) {
        const Mask above = below(half_way, y[v]);
        code[v] = choose(above, splat(static_cast<float>(i + 1)), code[v]);
        level[v] = choose(above, splat(table[i + 1]), level[v]);
      }
    }
    float code_of[kRun], level_of[kRun];
    for (int v = 0; v < kVecs; ++v) store(code_of + v * kWidth, code[v]), store(level_of + v * kWidth, level[v]);
    for (int d = 0; d < kRun; ++d) codes[run * kRun + d] = static_cast<uint32_t>(static_cast<int>(code_of[d]));
    of_levels.add(level_of);
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
