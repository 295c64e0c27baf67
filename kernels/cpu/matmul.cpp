#include "kernels/cpu/cpu.h"

namespace qeng {

namespace {

// One row times a transposed matrix, as in decoding: every element of b is used once, so the time is that of reading b,
// and oneDNN, which copies b into tiles first, takes twice as long.
void run_row(const Matmul& op, int64_t n, int64_t k, CpuContext& context) {
  float *a = context.scratch.take<float>(k), *dots = context.scratch.take<float>(n);
  context.isa->scale(float_type(op.a), op.a.data, isa::Float::f32, a, op.alpha, k);
  parallel_for(context.threads, n, grain_rows(k), [&](int64_t begin, int64_t end) {
    context.isa->gemv(a, float_type(op.b), at(op.b, begin * k), dots + begin, end - begin, k);
    if (op.bias) context.isa->accumulate(float_type(op.bias), at(op.bias, begin), dots + begin, end - begin);
    if (op.acc) context.isa->accumulate(float_type(op.c), at(op.c, begin), dots + begin, end - begin);
    context.isa->scale(isa::Float::f32, dots + begin, float_type(op.c), at(op.c, begin), 1.0f, end - begin);
  });
}

}  // namespace

void run(const Matmul& op, CpuContext& context) {
  const Check check{op.name};
  check.is_float("a", op.a);
  check.dtype("b", op.b, {op.a.dtype});
  check.dtype("c", op.c, {op.a.dtype, DType::f32});
  GemmShape shape;
  shape.m = op.trans_a ? op.a.columns() : op.a.rows();
  shape.k = op.trans_a ? op.a.rows() : op.a.columns();
  const int64_t depth = op.trans_b ? op.b.columns() : op.b.rows();
  shape.n = op.trans_b ? op.b.rows() : op.b.columns();
  const auto sides = [&] {
    return "a is " + shape_text(op.a) + (op.trans_a ? " transposed" : "") + ", b is " + shape_text(op.b) +
           (op.trans_b ? " transposed" : "");
  };
  check.that(shape.k == depth,
             sides() + ": inner dimensions differ, " + std::to_string(shape.k) + " and " + std::to_string(depth));
  check.that(op.c.rows() == shape.m && op.c.columns() == shape.n, "c is " + shape_text(op.c) + ", expected [" +
                                                                      std::to_string(shape.m) + ", " +
                                                                      std::to_string(shape.n) + "]; " + sides());
  if (op.bias) {
    check.dtype("bias", op.bias, {op.a.dtype, DType::f32});
    check.count("bias", op.bias, op.bias.dtype, shape.n);
    shape.bias = op.bias.dtype;
  }
  shape.in = op.a.dtype, shape.out = op.c.dtype;
  shape.trans_a = op.trans_a, shape.trans_b = op.trans_b, shape.acc = op.acc;
  shape.has_bias = static_cast<bool>(op.bias);
  shape.alpha = op.alpha;
  if (shape.m == 0 || shape.n == 0) return;
  check.that(shape.k > 0, sides() + ": the inner dimension is 0");
  if (shape.m == 1 && op.trans_b) return run_row(op, shape.n, shape.k, context);
  multiply(shape, op.a.data, op.b.data, op.bias.data, op.c.data, context);
}

}  // namespace qeng
