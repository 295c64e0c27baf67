#include "kernels/cpu/column_sums.h"

namespace qeng {

void run(const RmsNorm& op, CpuContext& context) {
  const int64_t dim = op.x.columns(), rows = op.x.rows();
  parallel_for(context.threads, rows, grain_rows(dim), [&](int64_t begin, int64_t end) {
    context.isa->rmsnorm(float_type(op.x), at(op.x, begin * dim), op.w.data, at(op.y, begin * dim),
                         op.rstd.as<float>() + begin, end - begin, dim, op.eps, op.plus_one);
  });
}

void run(const AddRmsNorm& op, CpuContext& context) {
  const int64_t dim = op.a.columns(), rows = op.a.rows();
  parallel_for(context.threads, rows, grain_rows(dim), [&](int64_t begin, int64_t end) {
    const isa::Float type = float_type(op.a);
    for (int64_t r = begin; r < end; ++r) {  // row by row: the norm finds the sum in the first cache
      void* sum = at(op.sum, r * dim);
      context.isa->add(type, at(op.a, r * dim), at(op.b, r * dim), sum, dim);
      context.isa->rmsnorm(type, sum, op.w.data, at(op.y, r * dim), op.rstd.as<float>() + r, 1, dim, op.eps,
                           op.plus_one);
    }
  });
}

void run(const RmsNormGrad& op, CpuContext& context) {
  const int64_t dim = op.x.columns(), rows = op.x.rows();
  const auto rows_grad = [&](int64_t begin, int64_t end, float* dw) {
    context.isa->rmsnorm_grad(float_type(op.x), at(op.x, begin * dim), op.w.data, op.rstd.as<float>() + begin,
                              at(op.dy, begin * dim), op.dresidual ? at(op.dresidual, begin * dim) : nullptr,
                              at(op.dx, begin * dim), dw, end - begin, dim, op.plus_one);
  };
  if (op.dw)
    column_sums(context, rows, dim, op.dw.as<float>(), op.acc_dw, rows_grad);
  else
    parallel_for(context.threads, rows, grain_rows(dim),
                 [&](int64_t begin, int64_t end) { rows_grad(begin, end, nullptr); });
}

}  // namespace qeng
