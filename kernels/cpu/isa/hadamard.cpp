// The Walsh-Hadamard transform of a run of floats, in place, by log2(n) rounds of sums and differences.
#include "kernels/cpu/isa/simd/simd.h"

namespace qeng::isa::QENG_ISA {
namespace {

void multiply(float* x, const float* y, int64_t n) {
  for_lanes(n, [=](int64_t i, int64_t lanes) { store(x + i, load(x + i, lanes) * load(y + i, lanes), lanes); });
}

// Rounds are exact but for the rounding of sums; the factor 1 / sqrt(n) comes last.
void hadamard(float* x, int64_t n) {
  for (int64_t half = 1; half < n; half *= 2)
    for (int64_t first = 0; first < n; first += 2 * half) {
      float *a = x + first, *b = a + half;
      if (half < kWidth) {
        for (int64_t i = 0; i < half; ++i) {
          const float sum = a[i] + b[i], difference = a[i] - b[i];
          a[i] = sum, b[i] = difference;
        }
        continue;
      }
      for (int64_t i = 0; i < half; i += kWidth) {
        const Vec left = load(a + i), right = load(b + i);
        store(a + i, left + right), store(b + i, left - right);
      }
    }
  const Vec factor = splat(1.0f / __builtin_sqrtf(static_cast<float>(n)));
  for_lanes(n, [=](int64_t i, int64_t lanes) { store(x + i, load(x + i, lanes) * factor, lanes); });
}

}  // namespace

void fill_hadamard(Table& table) {
  table.multiply = multiply;
  table.hadamard = hadamard;
}

}  // namespace qeng::isa::QENG_ISA
