// ScaleColumns and its gradient.
#include "kernels/cpu/column_sums.h"

namespace qeng {

void run(const ScaleColumns& op, CpuContext& context) {
  const int64_t n = op.x.columns();
  const isa::Float bias = op.bias ? float_type(op.bias) : isa::Float::f32;
  parallel_for(context.threads, op.x.rows(), grain_rows(n), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      context.isa->scale_columns(float_type(op.x), at(op.x, r * n), op.scale.as<float>(), bias, op.bias.data,
                                 at(op.y, r * n), n);
  });
}

void run(const ScaleColumnsGrad& op, CpuContext& context) {
  const int64_t n = op.x.columns();
  const auto rows = [&](int64_t begin, int64_t end, float* sum) {
    for (int64_t r = begin; r < end; ++r)
      context.isa->scale_columns_grad(float_type(op.x), at(op.x, r * n), op.scale.as<float>(), at(op.dy, r * n),
                                      at(op.dx, r * n), sum, n);
  };
  if (op.dscale) return column_sums(context, op.x.rows(), n, op.dscale.as<float>(), op.acc, rows);
  parallel_for(context.threads, op.x.rows(), grain_rows(n),
               [&](int64_t begin, int64_t end) { rows(begin, end, nullptr); });
}

}  // namespace qeng
