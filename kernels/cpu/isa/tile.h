// Small dense products, copies and the online softmax on f32 tiles, for the attention loops.
#pragma once
#include "kernels/cpu/isa/attention.h"
#include "kernels/cpu/isa/simd.h"

namespace qeng::isa::QENG_ISA {

// The register block of a product: kBlockRows x (kBlockVecs * kWidth) sums, plus one row of b, fit the registers.
#if defined(QENG_ISA_avx512)
constexpr int kBlockRows = 6, kBlockVecs = 4;  // 24 + 4 of 32
#elif defined(QENG_ISA_avx2)
constexpr int kBlockRows = 6, kBlockVecs = 2;  // 12 + 2 of 16
#else
constexpr int kBlockRows = 2, kBlockVecs = 4;
#endif

template <int kRows, int kVecs, bool kAccumulate>
inline void multiply_block(int64_t depth, const float* a, int64_t a_row, int64_t a_column, const float* b,
                           int64_t b_row, float* c, int64_t c_row) {
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
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kVecs; ++j) store(c + i * c_row + j * kWidth, sums[i][j]);
}

template <int kRows, int kVecs, bool kAccumulate>
inline void multiply_rows(int64_t rows, int64_t depth, const float* a, int64_t a_row, int64_t a_column, const float* b,
                          int64_t b_row, float* c, int64_t c_row) {
  int64_t i = 0;
  for (; i + kRows <= rows; i += kRows)
    multiply_block<kRows, kVecs, kAccumulate>(depth, a + i * a_row, a_row, a_column, b, b_row, c + i * c_row, c_row);
  if constexpr (kRows > 1) {
    constexpr int kFewer = kRows > 4 ? 4 : kRows / 2;
    if (i < rows)
      multiply_rows<kFewer, kVecs, kAccumulate>(rows - i, depth, a + i * a_row, a_row, a_column, b, b_row,
                                                c + i * c_row, c_row);
  }
}

// c (+)= a b     a: [rows, depth], element (i, l) at a[i * a_row + l * a_column]   b: [depth, columns]   c: [rows,
// columns] columns: a multiple of 16. b and c have b_row and c_row floats from one row to the next.
template <bool kAccumulate>
inline void multiply(int64_t rows, int64_t depth, int64_t columns, const float* a, int64_t a_row, int64_t a_column,
                     const float* b, int64_t b_row, float* c, int64_t c_row) {
  int64_t j = 0;
  for (; j + kBlockVecs * kWidth <= columns; j += kBlockVecs * kWidth)
    multiply_rows<kBlockRows, kBlockVecs, kAccumulate>(rows, depth, a, a_row, a_column, b + j, b_row, c + j, c_row);
  if constexpr (kBlockVecs * kWidth > 16)
    for (; j < columns; j += kWidth)
      multiply_rows<kBlockRows, 1, kAccumulate>(rows, depth, a, a_row, a_column, b + j, b_row, c + j, c_row);
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

// to[column, row] = from[row, column], columns and rows multiples of 16; a row of the result has kTileKeys columns.
inline void transpose_keys(const float* from, int64_t columns, float* to, int64_t rows = kTileKeys) {
#if defined(QENG_ISA_avx512)
  for (int64_t row = 0; row < rows; row += 16)
    for (int64_t column = 0; column < columns; column += 16) {
      Vec a[16], b[16];
      for (int i = 0; i < 16; ++i) a[i] = load(from + (row + i) * columns + column);
      for (int i = 0; i < 8; ++i) {  // pairs, then quadruples within each 128 bits
        b[2 * i] = _mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]);
      }
      for (int i = 0; i < 4; ++i)
        for (int half = 0; half < 2; ++half) {
          const __m512d low = _mm512_castps_pd(b[4 * i + half]), high = _mm512_castps_pd(b[4 * i + 2 + half]);
          a[4 * i + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
          a[4 * i + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
        }
      for (int i = 0; i < 4;
           ++i) {  // then the 128-bit parts: a[4 * j + i] holds columns i, 4 + i, 8 + i, 12 + i of rows 4 * j ..
        const Vec low0 = _mm512_shuffle_f32x4(a[i], a[4 + i], 0x88), high0 = _mm512_shuffle_f32x4(a[i], a[4 + i], 0xdd);
        const Vec low1 = _mm512_shuffle_f32x4(a[8 + i], a[12 + i], 0x88),
                  high1 = _mm512_shuffle_f32x4(a[8 + i], a[12 + i], 0xdd);
        float* out = to + (column + i) * kTileKeys + row;
        store(out, _mm512_shuffle_f32x4(low0, low1, 0x88));
        store(out + 4 * kTileKeys, _mm512_shuffle_f32x4(high0, high1, 0x88));
        store(out + 8 * kTileKeys, _mm512_shuffle_f32x4(low0, low1, 0xdd));
        store(out + 12 * kTileKeys, _mm512_shuffle_f32x4(high0, high1, 0xdd));
      }
    }
#elif defined(QENG_ISA_avx2)
  for (int64_t row = 0; row < rows; row += 8)
    for (int64_t column = 0; column < columns; column += 8) {
      Vec a[8], b[8];
      for (int i = 0; i < 8; ++i) a[i] = load(from + (row + i) * columns + column);
      for (int i = 0; i < 4; ++i) {  // pairs of rows, then quadruples, within each 128 bits
        b[2 * i] = _mm256_unpacklo_ps(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm256_unpackhi_ps(a[2 * i], a[2 * i + 1]);
      }
      for (int i = 0; i < 2; ++i)
        for (int half = 0; half < 2; ++half) {
          a[4 * i + 2 * half] = _mm256_shuffle_ps(b[4 * i + half], b[4 * i + 2 + half], 0x44);
          a[4 * i + 2 * half + 1] = _mm256_shuffle_ps(b[4 * i + half], b[4 * i + 2 + half], 0xee);
        }
      for (int i = 0; i < 4; ++i) {  // a[i] holds columns i and 4 + i of the first four rows, a[4 + i] of the others
        store(to + (column + i) * kTileKeys + row, _mm256_permute2f128_ps(a[i], a[4 + i], 0x20));
        store(to + (column + 4 + i) * kTileKeys + row, _mm256_permute2f128_ps(a[i], a[4 + i], 0x31));
      }
    }
#else
  for (int64_t column = 0; column < columns;
       column += 8)  // 8 rows of the result stay in L1 while a column block is read
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t i = 0; i < 8; ++i) to[(column + i) * kTileKeys + row] = from[row * columns + column + i];
#endif
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

constexpr float kNothing = -1e30f;  // a score that no real one is below; exp(kNothing - m) is 0

// One row of scores becomes exp(score - top) and 0 where it is masked; `top` and `total` advance, `o` is rescaled.
inline void softmax_row(float* scores, Visible seen, float& top, float& total, float* o, int64_t dim) {
  if (seen.low >= seen.high) return clear(scores, kTileKeys);
  for (int64_t j = 0; j < seen.low; ++j) scores[j] = kNothing;
  for (int64_t j = seen.high; j < kTileKeys; ++j) scores[j] = kNothing;
  Vec most = load(scores);
  for (int64_t j = kWidth; j < kTileKeys; j += kWidth) most = max(most, load(scores + j));
  const float tile_top = largest(most);
  if (tile_top > top) {
    const float factor = __builtin_expf(top - tile_top);
    top = tile_top;
    total *= factor;
    for (int64_t d = 0; d < dim; d += kWidth) store(o + d, load(o + d) * splat(factor));
  }
  Vec sums = splat(0.0f);
  for (int64_t j = 0; j < kTileKeys; j += kWidth) {
    const Vec p = exp(load(scores + j) - splat(top));
    store(scores + j, p);
    sums = sums + p;
  }
  total += sum(sums);
}

}  // namespace qeng::isa::QENG_ISA
