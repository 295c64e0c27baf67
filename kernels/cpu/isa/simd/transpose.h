// Transposed f32 matrices.
#pragma once
#include "kernels/cpu/isa/simd/simd.h"

namespace qeng::isa::QENG_ISA {

// to[column, row] = from[row, column]; rows and columns multiples of 16; a stride: elements from one row to the next
inline void transpose(const float* from, int64_t from_stride, int64_t rows, int64_t columns, float* to,
                      int64_t to_stride) {
#if defined(QENG_ISA_avx512)
  for (int64_t row = 0; row < rows; row += 16)
    for (int64_t column = 0; column < columns; column += 16) {
      Vec a[16], b[16];
      for (int i = 0; i < 16; ++i) a[i] = load(from + (row + i) * from_stride + column);
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
      // then the 128-bit parts: a[4 * j + i] holds columns i, 4 + i, 8 + i, 12 + i of rows 4 * j ..
      for (int i = 0; i < 4; ++i) {
        const Vec low0 = _mm512_shuffle_f32x4(a[i], a[4 + i], 0x88), high0 = _mm512_shuffle_f32x4(a[i], a[4 + i], 0xdd);
        const Vec low1 = _mm512_shuffle_f32x4(a[8 + i], a[12 + i], 0x88),
                  high1 = _mm512_shuffle_f32x4(a[8 + i], a[12 + i], 0xdd);
        float* out = to + (column + i) * to_stride + row;
        store(out, _mm512_shuffle_f32x4(low0, low1, 0x88));
        store(out + 4 * to_stride, _mm512_shuffle_f32x4(high0, high1, 0x88));
        store(out + 8 * to_stride, _mm512_shuffle_f32x4(low0, low1, 0xdd));
        store(out + 12 * to_stride, _mm512_shuffle_f32x4(high0, high1, 0xdd));
      }
    }
#elif defined(QENG_ISA_avx2)
  for (int64_t row = 0; row < rows; row += 8)
    for (int64_t column = 0; column < columns; column += 8) {
      Vec a[8], b[8];
      for (int i = 0; i < 8; ++i) a[i] = load(from + (row + i) * from_stride + column);
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
        store(to + (column + i) * to_stride + row, _mm256_permute2f128_ps(a[i], a[4 + i], 0x20));
        store(to + (column + 4 + i) * to_stride + row, _mm256_permute2f128_ps(a[i], a[4 + i], 0x31));
      }
    }
#elif defined(QENG_ISA_neon)
  for (int64_t row = 0; row < rows; row += 4)
    for (int64_t column = 0; column < columns; column += 4) {
      float32x4_t a[4], b[4];
      for (int i = 0; i < 4; ++i) a[i] = vld1q_f32(from + (row + i) * from_stride + column);
      for (int i = 0; i < 4; i += 2) b[i] = vtrn1q_f32(a[i], a[i + 1]), b[i + 1] = vtrn2q_f32(a[i], a[i + 1]);
      for (int i = 0; i < 2; ++i) {  // b[i] holds columns i and 2 + i of the first two rows, b[2 + i] of the others
        const float64x2_t top = vreinterpretq_f64_f32(b[i]), bottom = vreinterpretq_f64_f32(b[2 + i]);
        vst1q_f32(to + (column + i) * to_stride + row, vreinterpretq_f32_f64(vtrn1q_f64(top, bottom)));
        vst1q_f32(to + (column + 2 + i) * to_stride + row, vreinterpretq_f32_f64(vtrn2q_f64(top, bottom)));
      }
    }
#else
  for (int64_t column = 0; column < columns; column += 8)  // 8 rows of the result stay in L1 while columns are read
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t i = 0; i < 8; ++i) to[(column + i) * to_stride + row] = from[row * from_stride + column + i];
#endif
}

}  // namespace qeng::isa::QENG_ISA
