#include "kernels/check.h"
#include "kernels/check_shapes.h"
#include "kernels/view_text.h"

namespace qeng {

namespace {

// The weights of a norm: a row of them, or one for each group of a token's columns.
void check_norm_weights(const Check& check, const char* label, const View& w, DType dtype, const View& x) {
  if (w.rank != 2) return check.is(label, w, dtype, {x.columns()});
  check.dtype(label, w, {dtype});
  const View row(nullptr, dtype, {x.columns()}),
      by_group(nullptr, dtype, {x.rank > 1 ? x.shape[x.rank - 2] : 1, x.columns()});
  check.that(w.same_shape(by_group), [&] {
    return label + (" is " + shape_text(w)) + ", expected " + shape_text(row) + ", or " + shape_text(by_group) +
           " by group";
  });
}

// One number for each column, f32 or of x's dtype.
void check_columns(const Check& check, const char* label, const View& view, const View& x) {
  check.dtype(label, view, {x.dtype, DType::f32});
  check.is(label, view, view.dtype, {x.columns()});
}

void check_conv(const Check& check, const View& x, const View& w, const View& cu) {
  check.is_float("x", x);
  check.that(x.rank == 2, [&] { return "x is " + shape_text(x) + ", expected [rows, channels]"; });
  check.dtype("w", w, {x.dtype, DType::f32});
  check.that(w.rank == 2 && w.shape[0] == x.columns() && w.columns() >= 2 && w.columns() <= 8, [&] {
    return "w is " + shape_text(w) + ", x is " + shape_text(x) + "; expected [channels, width], width 2 to 8";
  });
  check.dtype("cu", cu, {DType::i32});
  check.that(cu.rank == 1 && cu.elements() > 0,
             [&] { return "cu is " + shape_text(cu) + ", expected [documents + 1]"; });
}

}  // namespace

void check_shapes(const RmsNorm& op) {
  const Check check{op.name};
  check.is_float("x", op.x);
  check_norm_weights(check, "w", op.w, op.x.dtype, op.x);
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
  check_norm_weights(check, "w", op.w, op.x.dtype, op.x);
  check.count("rstd", op.rstd, DType::f32, op.x.rows());
  check.like("dy", op.dy, "x", op.x);
  if (op.dresidual) check.like("dresidual", op.dresidual, "x", op.x);
  check.like("dx", op.dx, "x", op.x);
  if (op.dw) check.like("dw", op.dw, "w", op.w, false), check.dtype("dw", op.dw, {DType::f32});
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

void check_shapes(const LayerNorm& op) {
  const Check check{op.name};
  check.is_float("x", op.x);
  check_columns(check, "w", op.w, op.x);
  if (op.b) check.like("b", op.b, "w", op.w);
  check.like("y", op.y, "x", op.x);
  check.count("mean", op.mean, DType::f32, op.x.rows());
  check.count("rstd", op.rstd, DType::f32, op.x.rows());
}

void check_shapes(const LayerNormGrad& op) {
  const Check check{op.name};
  check.is_float("x", op.x);
  check_columns(check, "w", op.w, op.x);
  check.count("mean", op.mean, DType::f32, op.x.rows());
  check.count("rstd", op.rstd, DType::f32, op.x.rows());
  check.like("dy", op.dy, "x", op.x);
  if (op.dresidual) check.like("dresidual", op.dresidual, "x", op.x);
  check.like("dx", op.dx, "x", op.x);
  if (op.dw) check.is("dw", op.dw, DType::f32, {op.x.columns()});
  if (op.db) check.is("db", op.db, DType::f32, {op.x.columns()});
}

void check_shapes(const CausalConv& op) {
  const Check check{op.name};
  check_conv(check, op.x, op.w, op.cu);
  if (op.bias) check.is("bias", op.bias, op.w.dtype, {op.x.columns()});
  check.that(!op.state == !op.pages && !op.state == !op.lengths,
             "state, pages and lengths are given together or not at all");
  if (op.state) {
    check.dtype("state", op.state, {DType::f32});
    check.that(op.state.rank == 3 && op.state.shape[1] >= op.w.columns() - 1,
               [&] { return "state is " + shape_text(op.state) + ", expected [n, width - 1 or more, channels]"; });
    check.is("state", op.state, DType::f32, {op.state.shape[0], op.state.shape[1], op.x.columns()});
    check_page_table(check, op.pages, op.lengths, op.cu.elements() - 1, op.page_tokens, 1);
  }
  check.like("y", op.y, "x", op.x);
}

void check_shapes(const CausalConvGrad& op) {
  const Check check{op.name};
  check_conv(check, op.x, op.w, op.cu);
  check.like("dy", op.dy, "x", op.x);
  if (op.dx) check.like("dx", op.dx, "x", op.x);
  if (op.dw) check.is("dw", op.dw, DType::f32, {op.w.shape[0], op.w.shape[1]});
  if (op.dbias) check.is("dbias", op.dbias, DType::f32, {op.x.columns()});
}

}  // namespace qeng
