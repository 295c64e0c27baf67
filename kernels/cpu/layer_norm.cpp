// LayerNorm and its gradient.
#include <algorithm>

#include "kernels/cpu/column_sums.h"

namespace qeng {

void run(const LayerNorm& op, CpuContext& context) {
  const int64_t dim = op.x.columns();
  parallel_for(context.threads, op.x.rows(), grain_rows(dim), [&](int64_t begin, int64_t end) {
    context.isa->layer_norm(float_type(op.x), at(op.x, begin * dim), float_type(op.w), op.w.data, op.b.data,
                            at(op.y, begin * dim), op.mean.as<float>() + begin, op.rstd.as<float>() + begin,
                            end - begin, dim, op.eps);
  });
}

void run(const LayerNormGrad& op, CpuContext& context) {
  const int64_t dim = op.x.columns(), rows = op.x.rows();
  const auto grad = [&](int64_t begin, int64_t end, float* sums) {  // sums: [2, dim] of dw and db, or null
    context.isa->layer_norm_grad(float_type(op.x), at(op.x, begin * dim), float_type(op.w), op.w.data,
                                 op.mean.as<float>() + begin, op.rstd.as<float>() + begin, at(op.dy, begin * dim),
                                 op.dresidual ? at(op.dresidual, begin * dim) : nullptr, at(op.dx, begin * dim), sums,
                                 end - begin, dim);
  };
  if (!op.dw && !op.db)
    return parallel_for(context.threads, rows, grain_rows(dim),
                        [&](int64_t begin, int64_t end) { grad(begin, end, nullptr); });
  float* sums = context.scratch.take<float>(2 * dim);
  column_sums(context, rows, 2 * dim, sums, false, grad);
  for (const auto& [view, sum] : {std::pair{op.dw, sums}, std::pair{op.db, sums + dim}}) {
    if (!view) continue;
    if (!op.acc) std::fill_n(view.as<float>(), dim, 0.0f);
    context.isa->accumulate(isa::Float::f32, sum, view.as<float>(), dim);
  }
}

}  // namespace qeng
