// AdamW and the sum of squares.
#include "kernels/cpu/isa/simd/simd.h"
#include "kernels/math/adamw_codes.h"

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

void adamw_codes(const AdamWStep& step, float* w, const float* grad, uint8_t* __restrict m, uint8_t* __restrict v,
                 float* largest_m, float* largest_v, bf16* model, int64_t n) {
  float first[kMomentBlock], second[kMomentBlock];
  for (int64_t i = 0; i < n; ++i) first[i] = decode_first_moment(m[i], *largest_m);
  for (int64_t i = 0; i < n; ++i) second[i] = decode_second_moment(v[i], *largest_v);
  adamw(step, w, grad, first, second, model, n);
  float most[2][16] = {};
  for (int64_t i = 0; i < n; ++i) {
    const float size = first[i] < 0 ? -first[i] : first[i];
    float &of_m = most[0][i % 16], &of_v = most[1][i % 16];
    of_m = of_m < size ? size : of_m, of_v = of_v < second[i] ? second[i] : of_v;
  }
  for (auto& each : most)
    for (int lane = 1; lane < 16; ++lane) each[0] = each[0] < each[lane] ? each[lane] : each[0];
  *largest_m = most[0][0], *largest_v = most[1][0];
  const float inverse_m = inverse_of_largest(most[0][0]), inverse_v = inverse_of_largest(most[1][0]);
  for (int64_t i = 0; i < n; ++i) m[i] = static_cast<uint8_t>(encode_first_moment(first[i], inverse_m));
  for (int64_t i = 0; i < n; ++i) v[i] = static_cast<uint8_t>(encode_second_moment(second[i], inverse_v));
}

}  // namespace

void fill_optimizer(Table& table) {
  table.sum_squares = sum_squares;
  table.adamw = adamw;
  table.adamw_codes = adamw_codes;
}

}  // namespace qeng::isa::QENG_ISA
