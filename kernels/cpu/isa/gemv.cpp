// One row times a transposed matrix: the dot products of decoding.
#include "kernels/cpu/isa/simd.h"

namespace qeng::isa::QENG_ISA {
namespace {

constexpr int kRows =
    4;  // rows of b at a time: so many streams of loads keep the memory busy, and share the loads of a

template <int rows, class T>
inline void dots(const float* a, const T* b, int64_t k, float* out) {
  Vec total[rows];
  for (int r = 0; r < rows; ++r) total[r] = splat(0.0f);
  for_lanes(k, [&](int64_t i, int64_t lanes) {
    const Vec x = load(a + i, lanes);
    for (int r = 0; r < rows; ++r) total[r] = fma(x, load(b + r * k + i, lanes), total[r]);
  });
  for (int r = 0; r < rows; ++r) out[r] = sum(total[r]);
}

void gemv(const float* a, Float type, const void* b, float* out, int64_t n, int64_t k) {
  for_type(type, [=](auto tag) {
    const auto* rows = static_cast<const decltype(tag)*>(b);
    int64_t j = 0;
    for (; j + kRows <= n; j += kRows) dots<kRows>(a, rows + j * k, k, out + j);
    for (; j < n; ++j) dots<1>(a, rows + j * k, k, out + j);
  });
}

}  // namespace

void fill_gemv(Table& table) { table.gemv = gemv; }

}  // namespace qeng::isa::QENG_ISA
