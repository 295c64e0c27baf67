// AdamW and the sum of squares.
#include "kernels/cpu/isa/simd/simd.h"

namespace qeng::isa::QENG_ISA {
namespace {

double sum_squares(const float* x, int64_t n) {
  double part[16] = {};  // one chain of additions each, so that any instruction set may vectorize them
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int lane = 0; lane < 16; ++lane)
      part[lane] += static_cast<double>(x[i + lane]) * static_cast<double>(x[i + lane]);
  double total = 0;
  for (int lane = 0; lane < 16; ++lane) total += part[lane];
  for (; i < n; ++i) total += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return total;
}

void adamw(const AdamWStep& step, float* __restrict w, const float* __restrict grad, float* __restrict m,
           float* __restrict v, bf16* __restrict model, int64_t n) {
  for (int64_t i = 0; i < n; ++i) w[i] = adamw_update(step, w[i], grad[i], m + i, v + i);
  if (model)
    for (int64_t i = 0; i < n; ++i) model[i] = to_bf16(w[i]);
}

}  // namespace

void fill_optimizer(Table& table) {
  table.sum_squares = sum_squares;
  table.adamw = adamw;
}

}  // namespace qeng::isa::QENG_ISA
