// Rows times a transposed matrix by dot products, whose order of sums depends on k alone: decoding, and RowLinear.
#include "kernels/cpu/isa/simd/simd.h"

namespace qeng::isa::QENG_ISA {
namespace {

constexpr int kRows =
    4;  // rows of b at a time: so many streams of loads keep the memory busy, and share the loads of a

template <int kAs, int kBs, class T>
inline void dots(const float* a, const T* b, int64_t k, float* out, int64_t stride) {
  Vec totals[kAs][kBs];
  for (auto& row : totals)
    for (Vec& total : row) total = splat(0.0f);
  for_lanes(k, [&](int64_t i, int64_t lanes) {
    Vec x[kAs];
    for (int r = 0; r < kAs; ++r) x[r] = load(a + r * k + i, lanes);
    for (int j = 0; j < kBs; ++j) {
      const Vec w = load(b + j * k + i, lanes);
      for (int r = 0; r < kAs; ++r) totals[r][j] = fma(x[r], w, totals[r][j]);
    }
  });
  for (int r = 0; r < kAs; ++r)
    for (int j = 0; j < kBs; ++j) out[r * stride + j] = sum(totals[r][j]);
}

template <int kAs, class T>
inline void rows_of(const float* a, const T* b, float* out, int64_t stride, int64_t n, int64_t k) {
  int64_t j = 0;
  for (; j + kRows <= n; j += kRows) dots<kAs, kRows>(a, b + j * k, k, out + j, stride);
  for (; j < n; ++j) dots<kAs, 1>(a, b + j * k, k, out + j, stride);
}

void gemv(const float* a, Float type, const void* b, float* out, int64_t n, int64_t k) {
  for_type(type, [=](auto tag) { rows_of<1>(a, static_cast<const decltype(tag)*>(b), out, n, n, k); });
}

void row_dots(const float* a, int64_t rows, Float type, const void* b, float* out, int64_t stride, int64_t n,
              int64_t k) {
  for_type(type, [=](auto tag) {
    const auto* w = static_cast<const decltype(tag)*>(b);
    int64_t r = 0;
    for (; r + 3 <= rows; r += 3)
      rows_of<3>(a + r * k, w, out + r * stride, stride, n, k);  // 12 sums and 4 operands fit
    for (; r < rows; ++r) rows_of<1>(a + r * k, w, out + r * stride, stride, n, k);
  });
}

}  // namespace

void fill_gemv(Table& table) {
  table.gemv = gemv;
  table.row_dots = row_dots;
}

}  // namespace qeng::isa::QENG_ISA
