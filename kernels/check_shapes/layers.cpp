#include "kernels/check.h"
#include "kernels/check_shapes.h"

namespace qeng {

void check_shapes(const RmsNorm& op) {
  const Check check{op.name};
  check.is_float("x", op.x);
  check.is("w", op.w, op.x.dtype, {op.x.columns()});
  check.like("y", op.y, "x", op.x);
  check.count("rstd", op.rstd, DType::f32, op.x.rows());
}

void check_shapes(const AddRmsNorm& op) {
  const Check check{op.name};
  check.is_float("a", op.a);
  check.like("b", op.b, "a", op.a);
  check.is("w", op.w, op.a.dtype, {op.a.columns()});
  check.like("sum", op.sum, "a", op.a);
  check.like("y", op.y, "a", op.a);
  check.count("rstd", op.rstd, DType::f32, op.a.rows());
}

void check_shapes(const RmsNormGrad& op) {
  const Check check{op.name};
  check.is_float("x", op.x);
  const int64_t dim = op.x.columns();
  check.is("w", op.w, op.x.dtype, {dim});
  check.count("rstd", op.rstd, DType::f32, op.x.rows());
  check.like("dy", op.dy, "x", op.x);
  if (op.dresidual) check.like("dresidual", op.dresidual, "x", op.x);
  check.like("dx", op.dx, "x", op.x);
  if (op.dw) check.is("dw", op.dw, DType::f32, {dim});
}

void check_shapes(const SwiGlu& op) {
  const Check check{op.name};
  check.is_float("gate", op.gate);
  check.like("up", op.up, "gate", op.gate);
  check.like("y", op.y, "gate", op.gate);
}

void check_shapes(const SwiGluGrad& op) {
  const Check check{op.name};
  check.is_float("gate", op.gate);
  check.like("up", op.up, "gate", op.gate);
  check.like("dy", op.dy, "gate", op.gate);
  check.like("dgate", op.dgate, "gate", op.gate);
  check.like("dup", op.dup, "gate", op.gate);
}

void check_shapes(const Dropout& op) {
  const Check check{op.name};
  check.is_float("x", op.x);
  check.like("y", op.y, "x", op.x);
  check.is("rng", op.rng, DType::i64, {2});
  if (!(op.p >= 0 && op.p < 1)) fail("value", op.name, ": p is ", op.p, ", expected 0 <= p < 1");
}

void check_shapes(const EmbeddingNoise& op) {
  const Check check{op.name};
  check.is_float("x", op.x);
  check.that(op.x.rank == 2, [&] { return "x is " + shape_text(op.x) + ", expected [tokens, n]"; });
  check.like("y", op.y, "x", op.x);
  check.dtype("cu", op.cu, {DType::i32});
  check.that(op.cu.rank == 1, [&] { return "cu is " + shape_text(op.cu) + ", expected [documents + 1]"; });
  check.is("rng", op.rng, DType::i64, {2});
  if (!(op.strength >= 0)) fail("value", op.name, ": strength is ", op.strength, ", expected 0 or more");
}

void check_shapes(const DoraScale& op) {
  const Check check{op.name};
  check.is_float("b", op.b);
  check.that(op.b.rank == 2, [&] { return "b is " + shape_text(op.b) + ", expected [out, rank]"; });
  const int64_t out = op.b.shape[0];
  check.is("cross", op.cross, DType::f32, {op.b.shape[1], out});
  check.is("squares", op.squares, DType::f32, {out});
  check.is("magnitude", op.magnitude, DType::f32, {out});
  check.is("inverse", op.inverse, DType::f32, {out});
  check.is("scale", op.scale, DType::f32, {out});
}

void check_shapes(const ScaleColumns& op) {
  const Check check{op.name};
  check.is_float("x", op.x);
  check.like("y", op.y, "x", op.x);
  check.is("scale", op.scale, DType::f32, {op.x.columns()});
  if (!op.bias) return;
  check.dtype("bias", op.bias, {op.x.dtype, DType::f32});
  check.count("bias", op.bias, op.bias.dtype, op.x.columns());
}

void check_shapes(const ScaleColumnsGrad& op) {
  const Check check{op.name};
  check.is_float("x", op.x);
  check.like("dy", op.dy, "x", op.x);
  check.like("dx", op.dx, "x", op.x);
  check.is("scale", op.scale, DType::f32, {op.x.columns()});
  if (op.dscale) check.is("dscale", op.dscale, DType::f32, {op.x.columns()});
}

}  // namespace qeng
