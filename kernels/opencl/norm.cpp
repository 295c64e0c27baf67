// RmsNorm, AddRmsNorm, RmsNormGrad.
#include "kernels/opencl/opencl.h"

namespace qeng::opencl {

namespace {

cl_kernel kernel_of(Context& context, const char* name, const View& x) {
  return context.programs->kernel("norm.cl", name, {{"X", type_of(x)}});
}

}  // namespace

void run(const RmsNorm& op, Context& context) {
  const int64_t dim = op.w.columns();
  launch(context, kernel_of(context, "rmsnorm", op.x), groups(op.rstd.elements()), op.x, op.w, op.y, op.rstd, dim,
         op.w.rows(), op.eps, int{op.plus_one});
}

void run(const AddRmsNorm& op, Context& context) {
  launch(context, kernel_of(context, "add_rmsnorm", op.a), groups(op.rstd.elements()), op.a, op.b, op.w, op.sum, op.y,
         op.rstd, op.w.columns(), op.eps, int{op.plus_one});
}

void run(const RmsNormGrad& op, Context& context) {
  const int64_t dim = op.w.columns(), groups_of_w = op.w.rows();
  const View& residual = op.dresidual ? op.dresidual : op.x;
  // Before dx, which may be where dresidual is, but reads nothing that dw needs otherwise.
  if (op.dw)
    launch(context, kernel_of(context, "rmsnorm_dw", op.x), items(op.w.elements()), op.x, op.rstd, op.dy, op.dw,
           op.rstd.elements(), dim, groups_of_w, int{op.acc_dw});
  launch(context, kernel_of(context, "rmsnorm_dx", op.x), groups(op.rstd.elements()), op.x, op.w, op.rstd, op.dy,
         residual, op.dx, dim, groups_of_w, int{op.plus_one}, int{bool(op.dresidual)});
}

}  // namespace qeng::opencl
