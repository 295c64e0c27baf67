#include "kernels/cpu/column_sums.h"

namespace qeng {

void run(const RmsNorm& op, CpuContext& context) {
  const Check check{op.name};
  check.is_float("x", op.x);
  const int64_t dim = op.x.columns(), rows = op.x.rows();
  check.is("w", op.w, op.x.dtype, {dim});
  check.like("y", op.y, "x", op.x);
  check.count("rstd", op.rstd, DType::f32, rows);
  parallel_for(context.threads, rows, grain_rows(dim), [&](int64_t begin, int64_t end) {
    context.isa->rmsnorm(float_type(op.x), at(op.x, begin * dim), op.w.data, at(op.y, begin * dim),
                         op.rstd.as<float>() + begin, end - begin, dim, op.eps, op.plus_one);
  });
}

void run(const RmsNormGrad& op, CpuContext& context) {
  const Check check{op.name};
  check.is_float("x", op.x);
  const int64_t dim = op.x.columns(), rows = op.x.rows();
  check.is("w", op.w, op.x.dtype, {dim});
  check.count("rstd", op.rstd, DType::f32, rows);
  check.like("dy", op.dy, "x", op.x);
  check.like("dx", op.dx, "x", op.x);
  if (op.dw) check.is("dw", op.dw, DType::f32, {dim});
  const auto rows_grad = [&](int64_t begin, int64_t end, float* dw) {
    context.isa->rmsnorm_grad(float_type(op.x), at(op.x, begin * dim), op.w.data, op.rstd.as<float>() + begin,
                              at(op.dy, begin * dim), at(op.dx, begin * dim), dw, end - begin, dim, op.plus_one,
                              op.acc_dx);
  };
  if (op.dw)
    column_sums(context, rows, dim, op.dw.as<float>(), op.acc_dw, rows_grad);
  else
    parallel_for(context.threads, rows, grain_rows(dim),
                 [&](int64_t begin, int64_t end) { rows_grad(begin, end, nullptr); });
}

}  // namespace qeng
