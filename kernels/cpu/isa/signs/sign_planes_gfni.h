// one_bit weights for processors with GFNI and AVX-512 VNNI, which take one bit of each of 64 bytes in an instruction
// and multiply those by codes in another. The codes of x lie accordingly, those of two groups as [8, 64]: element
// 8 i + b of the first at [b, i], of the second at [b, 32 + i]. Then
//   sum_i w_i q_i = 2 sum_b sum_i (bit b of byte i) q[b, i] - sum_i q_i
// where SignTables::less is the second sum: the integers that tables of sums give.
#pragma once
#include "kernels/cpu/isa/blocks/bytes.h"
#include "kernels/cpu/isa/signs/sign_tables.h"

namespace qeng::isa::QENG_ISA {

constexpr int kPlanes = 8;                                     // bits of a byte
constexpr int64_t kPlaneBytes = 64;                            // of w together: two groups
constexpr int64_t kPlaneCodes = kPlanes * kPlaneBytes;         // that they meet
constexpr int64_t kPlaneRows = 8;                              // of w: a lane of floats each
constexpr int64_t kGroupBytes = blocks::kSignGroup / kPlanes;  // of w
static_assert(2 * kGroupBytes == kPlaneBytes);

// A group's part of a row of codes; the sum that SignTables::less wants.
inline int one_bit_tables(const int8_t* codes, int64_t, int64_t group, uint8_t* row) {
  uint8_t* to = row + group / 2 * kPlaneCodes + group % 2 * kGroupBytes;
  int less = 0;
  for (int64_t i = 0; i < kGroupBytes; ++i)
    for (int b = 0; b < kPlanes; ++b) {
      less += codes[kPlanes * i + b];
      to[b * kPlaneBytes + i] = static_cast<uint8_t>(codes[kPlanes * i + b]);
    }
  return less;
}

// Of each half of eight vectors the sum, vector r in lane r of that half.
inline __m512i totals_of_halves(const __m512i (&rows)[kPlaneRows]) {
  __m512i pairs[4];
  for (int i = 0; i < 4; ++i)
    pairs[i] = _mm512_add_epi32(_mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]),
                                _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]));
  const auto quarters = [&](int i) {  // rows 4 i .. 4 i + 3 in each four lanes
    return _mm512_add_epi32(_mm512_unpacklo_epi64(pairs[2 * i], pairs[2 * i + 1]),
                            _mm512_unpackhi_epi64(pairs[2 * i], pairs[2 * i + 1]));
  };
  const __m512i first = quarters(0), second = quarters(1);
  return _mm512_add_epi32(_mm512_permutex2var_epi64(first, _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13), second),
                          _mm512_permutex2var_epi64(first, _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15), second));
}

// kXs: the most rows; one alone is a quarter faster than as one of eight.
template <int kXs>
void plane_dots(const SignTables& x, int64_t row, int64_t rows, const uint8_t* w, int64_t n, float* out,
                int64_t stride) {
  if constexpr (kXs == 1) rows = 1;
  const int64_t row_bytes = x.k / kPlanes, groups = sign_groups(x.k), x_bytes = sign_row_bytes(DType::one_bit, x.k);
  for (int64_t j = 0; j < n; j += kPlaneRows) {
    const uint8_t* from[kPlaneRows];  // the last again where there are fewer
    for (int64_t r = 0; r < kPlaneRows; ++r) from[r] = w + (j + r < n ? j + r : n - 1) * row_bytes;
    __m256 y[kXs];
    for (int64_t q = 0; q < rows; ++q) y[q] = _mm256_setzero_ps();
    for (int64_t g = 0; g < groups; g += 2) {
      const int64_t first = g * kGroupBytes, left = row_bytes - first;
      const __mmask64 there = left < kPlaneBytes ? ~0ull >> (kPlaneBytes - left) : ~0ull;
      const uint8_t* codes = x.tables + row * x_bytes + g / 2 * kPlaneCodes;
      __m512i sums[kXs][kPlaneRows];
#pragma GCC unroll 8
      for (int64_t r = 0; r < kPlaneRows; ++r) {
        prefetch(from[r] + kPlaneRows * row_bytes + first);  // the same of the next rows
        const __m512i bytes = _mm512_maskz_loadu_epi8(there, from[r] + first);
        __m512i planes[kPlanes];
#pragma GCC unroll 8
        for (int b = 0; b < kPlanes; ++b)
          planes[b] =
              _mm512_gf2p8affine_epi64_epi8(bytes, _mm512_set1_epi64(static_cast<int64_t>(1ull << (56 + b))), 0);
        for (int64_t q = 0; q < rows; ++q) {
          __m512i sum = _mm512_setzero_si512();
#pragma GCC unroll 8
          for (int b = 0; b < kPlanes; ++b)
            sum = _mm512_dpbusd_epi32(sum, planes[b], _mm512_loadu_si512(codes + q * x_bytes + b * kPlaneBytes));
          sums[q][r] = sum;
        }
      }
      for (int64_t q = 0; q < rows; ++q) {
        const __m512i twice = _mm512_slli_epi32(totals_of_halves(sums[q]), 1);
        const int64_t at = (row + q) * groups + g;
        const auto add = [&](__m256i half, int64_t group) {
          const __m256 dots = _mm256_cvtepi32_ps(_mm256_sub_epi32(half, _mm256_set1_epi32(x.less[group])));
          y[q] = _mm256_fmadd_ps(dots, _mm256_set1_ps(x.scales[group]), y[q]);
        };
        add(_mm512_castsi512_si256(twice), at);
        if (g + 1 < groups) add(_mm512_extracti64x4_epi64(twice, 1), at + 1);
      }
    }
    const __mmask8 wanted = static_cast<__mmask8>(n - j < kPlaneRows ? 0xff >> (kPlaneRows - (n - j)) : 0xff);
    for (int64_t q = 0; q < rows; ++q) _mm256_mask_storeu_ps(out + q * stride + j, wanted, y[q]);
  }
}

inline void one_bit_dots(const SignTables& x, int64_t row, int64_t rows, const uint8_t* w, int64_t n, float* out,
                         int64_t stride) {
  if (rows == 1) return plane_dots<1>(x, row, rows, w, n, out, stride);
  plane_dots<kMostSignRows>(x, row, rows, w, n, out, stride);
}

}  // namespace qeng::isa::QENG_ISA
