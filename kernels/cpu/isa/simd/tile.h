// Small dense products, copies and the online softmax on f32 tiles, for the attention loops.
#pragma once
#include "kernels/cpu/isa/attention/attention.h"
#include "kernels/cpu/isa/simd/functions.h"
#include "kernels/cpu/isa/simd/transpose.h"

namespace qeng::isa::QENG_ISA {

// The register block of a product: kBlockRows x (kBlockVecs * kWidth) sums, plus one row of b, fit the registers.
#if defined(QENG_ISA_avx512)
constexpr int kBlockRows = 6, kBlockVecs = 4;  // 24 + 4 of 32
#elif defined(QENG_ISA_avx2)
constexpr int kBlockRows = 6, kBlockVecs = 2;  // 12 + 2 of 16
#elif defined(QENG_ISA_neon)
constexpr int kBlockRows = 6, kBlockVecs = 2;  // two registers each: 24 + 4 of 32, and a factor
#else
constexpr int kBlockRows = 2, kBlockVecs = 4;
#endif

template <int kRows, int kVecs, bool kAccumulate>
inline void multiply_block(int64_t depth, const float* a, int64_t a_row, int64_t a_column, const float* b,
                           int64_t b_row, float* c, int64_t c_row, const float* scales) {
  Vec sums[kRows][kVecs];
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kVecs; ++j) sums[i][j] = kAccumulate ? load(c + i * c_row + j * kWidth) : splat(0.0f);
  for (int64_t l = 0; l < depth; ++l) {
    Vec row[kVecs];
    for (int j = 0; j < kVecs; ++j) row[j] = load(b + l * b_row + j * kWidth);
    for (int i = 0; i < kRows; ++i) {
      const Vec factor = splat(a[i * a_row + l * a_column]);
      for (int j = 0; j < kVecs; ++j) sums[i][j] = fma(factor, row[j], sums[i][j]);
    }
  }
  if (!kAccumulate && scales)
    for (int i = 0; i < kRows; ++i)
      for (int j = 0; j < kVecs; ++j) sums[i][j] = sums[i][j] * load(scales + j * kWidth);
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kVecs; ++j) store(c + i * c_row + j * kWidth, sums[i][j]);
}

template <int kRows, int kVecs, bool kAccumulate>
inline void multiply_rows(int64_t rows, int64_t depth, const float* a, int64_t a_row, int64_t a_column, const float* b,
                          int64_t b_row, float* c, int64_t c_row, const float* scales) {
  int64_t i = 0;
  for (; i + kRows <= rows; i += kRows)
    multiply_block<kRows, kVecs, kAccumulate>(depth, a + i * a_row, a_row, a_column, b, b_row, c + i * c_row, c_row,
                                              scales);
  if constexpr (kRows > 1) {
    constexpr int kFewer = kRows > 4 ? 4 : kRows / 2;
    if (i < rows)
      multiply_rows<kFewer, kVecs, kAccumulate>(rows - i, depth, a + i * a_row, a_row, a_column, b, b_row,
                                                c + i * c_row, c_row, scales);
  }
}

// c (+)= a b     a: [rows, depth], element (i, l) at a[i * a_row + l * a_column]   b: [depth, columns]   c: [rows,
// columns] columns: a multiple of 16. b and c have b_row and c_row floats from one row to the next. Without kAccumulate
// column j of c is multiplied by scales[j] where these are given.
template <bool kAccumulate>
inline void multiply(int64_t rows, int64_t depth, int64_t columns, const float* a, int64_t a_row, int64_t a_column,
                     const float* b, int64_t b_row, float* c, int64_t c_row, const float* scales = nullptr) {
  const auto of = [&](int64_t j) { return scales ? scales + j : nullptr; };
  int64_t j = 0;
  for (; j + kBlockVecs * kWidth <= columns; j += kBlockVecs * kWidth)
    multiply_rows<kBlockRows, kBlockVecs, kAccumulate>(rows, depth, a, a_row, a_column, b + j, b_row, c + j, c_row,
                                                       of(j));
  if constexpr (kBlockVecs * kWidth > 16)
    for (; j < columns; j += kWidth)
      multiply_rows<kBlockRows, 1, kAccumulate>(rows, depth, a, a_row, a_column, b + j, b_row, c + j, c_row, of(j));
}

// to[i, 0 .. padded(count)) = factor * from[i, 0 .. count), then zeros
template <class T>
inline void gather_row(const T* from, int64_t count, float factor, float* to) {
  const Vec scale = splat(factor);
  for (int64_t i = 0; i < padded(count); i += kWidth) store(to + i, load(from + i, count - i) * scale);
}

inline void clear(float* p, int64_t n) {
  for (int64_t i = 0; i < n; i += kWidth) store(p + i, splat(0.0f));
}

// A tile of K or V: `count` rows, `stride` elements apart, then zeros up to kTileKeys. Rows of many kv heads are pages
// apart, where the hardware does not prefetch, so the rows to come are asked for here.
template <class T>
inline void gather_keys(const T* from, int64_t stride, int64_t count, int64_t head_dim, float* to) {
  constexpr int64_t kAhead = 8, kLine = 64 / sizeof(T);
  for (int64_t j = 0; j < count; ++j) {
    if (j + kAhead < count)
      for (int64_t d = 0; d < head_dim; d += kLine) __builtin_prefetch(from + (j + kAhead) * stride + d);
    gather_row(from + j * stride, head_dim, 1.0f, to + j * padded(head_dim));
  }
  clear(to + count * padded(head_dim), (kTileKeys - count) * padded(head_dim));
}

// A tile of keys or values whose rows have `columns`, as rows of kTileKeys.
inline void transpose_keys(const float* from, int64_t columns, float* to, int64_t rows = kTileKeys) {
  transpose(from, columns, rows, columns, to, kTileKeys);
}

// The columns [low, high) of a tile of keys begin .. begin + kTileKeys that query i sees.
struct Visible {
  int64_t low, high;
};
template <class Tile>
inline Visible visible(const Tile& tile, int64_t query, int64_t begin) {
  int64_t high = tile.first_end + (query - tile.first), low = tile.window > 0 ? high - tile.window : begin;
  if (high > tile.end) high = tile.end;
  high = high - begin < kTileKeys ? high - begin : kTileKeys;
  low = low > begin ? low - begin : 0;
  return {low, high};
}

// A tile's row of scores: s becomes softcap * tanh(s / softcap); softcap 0: as it is.
inline void cap_row(float* scores, float softcap, int64_t columns = kTileKeys) {
  if (softcap == 0) return;
  const Vec cap = splat(softcap);
  for (int64_t j = 0; j < columns; j += kWidth) store(scores + j, cap * tanh(load(scores + j) / cap));
}

constexpr float kNothing = -1e30f;  // a score that no real one is below; exp(kNothing - m) is 0

// Scores outside [low, high) become kNothing. columns: a multiple of 16
alignas(64) constexpr float kLaneNumbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
inline void hide_outside(float* scores, int64_t columns, int64_t low, int64_t high) {
  if (low <= 0 && high >= columns) return;
  const Vec first = splat(static_cast<float>(low)), end = splat(static_cast<float>(high));
  for (int64_t j = 0; j < columns; j += kWidth) {
    const Vec column = load(kLaneNumbers) + splat(static_cast<float>(j));
    const Vec seen = choose(below(column, first), splat(kNothing), load(scores + j));
    store(scores + j, choose(below(column, end), seen, splat(kNothing)));
  }
}

// One row of scores becomes exp(score - top), times factors where these are given, and 0 where it is kNothing; `top` and
// `total` advance, `o` is rescaled. There is one score at least that is not kNothing.
inline void softmax_columns(float* scores, int64_t columns, const float* factors, float& top, float& total, float* o,
                            int64_t dim) {
  Vec most = load(scores);
  for (int64_t j = kWidth; j < columns; j += kWidth) most = max(most, load(scores + j));
  const float tile_top = largest(most);
  if (tile_top > top) {
    const float factor = __builtin_expf(top - tile_top);
    top = tile_top;
    total *= factor;
    for (int64_t d = 0; d < dim; d += kWidth) store(o + d, load(o + d) * splat(factor));
  }
  Vec sums = splat(0.0f);
  for (int64_t j = 0; j < columns; j += kWidth) {
    const Vec p = exp_normal(load(scores + j) - splat(top));
    store(scores + j, factors ? p * load(factors + j) : p);
    sums = sums + p;
  }
  total += sum(sums);
}

// The same of a tile's row, of which the columns outside `seen` are masked.
inline void softmax_row(float* scores, Visible seen, float& top, float& total, float* o, int64_t dim,
                        const float* factors = nullptr) {
  if (seen.low >= seen.high) return clear(scores, kTileKeys);
  hide_outside(scores, kTileKeys, seen.low, seen.high);
  softmax_columns(scores, kTileKeys, factors, top, total, o, dim);
}

// Once a row's keys are all in: the factor for its sums of values. A sink, of which null is none, takes its part of the
// softmax and has no value. A row that saw no key has none either; a NaN among the scores stays one. Not inlined, so
// that it rounds one way wherever it is called.
__attribute__((noinline)) inline float finish_row(const float* sink, float& top, float& total) {
  if (!(total > 0)) return total;
  if (!sink) return 1.0f / total;
  const float highest = *sink > top ? *sink : top, factor = __builtin_expf(top - highest);
  total = total * factor + __builtin_expf(*sink - highest);
  top = highest;
  return factor / total;
}

}  // namespace qeng::isa::QENG_ISA
