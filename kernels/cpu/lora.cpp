// Sums of products and the products of low-rank adapters, as products one after another: what a cache holds of x and dy is
// read from it again.
#include "kernels/cpu/matmul.h"

namespace qeng {

namespace {

void multiply(const Matmul& op, CpuContext& context) {
  const ScratchFrame frame(context.scratch);
  run(op, context);
}

}  // namespace

void run(const MatmulSum& op, CpuContext& context) {
  for (const MatmulSum::Sum& sum : op.sums)
    for (size_t i = 0; i < sum.a.size(); ++i) multiply(product_of(op, sum, i), context);
}

void run(const LoraDown& op, CpuContext& context) {
  for (size_t i = 0; i < op.a.size(); ++i)
    multiply(Matmul{.a = op.x, .b = op.a[i], .c = op.u[i], .trans_b = true, .alpha = op.alpha[i]}, context);
}

void run(const LoraDownGrad& op, CpuContext& context) {
  for (size_t i = 0; i < op.du.size(); ++i)
    multiply(Matmul{.a = op.du[i], .b = op.x, .c = op.da[i], .trans_a = true, .acc = op.acc}, context);
}

void run(const LoraUpGrad& op, CpuContext& context) {
  multiply(Matmul{.a = op.dy, .b = op.b, .c = op.du, .alpha = op.alpha}, context);
  if (op.db) multiply(Matmul{.a = op.dy, .b = op.u, .c = op.db, .trans_a = true, .acc = op.acc}, context);
}

}  // namespace qeng
