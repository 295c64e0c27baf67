#include "kernels/check_places.h"
#include "kernels/check_shapes.h"
#include "kernels/view_text.h"

namespace qeng {

namespace {

// [outer, count, inner] of a gather; index: of some of them.
void check_index(const Check& check, const View& whole, const View& some, const View& index, const char* whole_label,
                 const char* some_label) {
  check.dtype("index", index, {DType::i32});
  const auto fits = [](int64_t size, int64_t its) { return size == its || size == 1; };
  check.that(whole.rank == 3 && some.rank == 3 && index.rank == 3 && whole.shape[0] == some.shape[0] &&
                 whole.shape[2] == some.shape[2] && fits(index.shape[0], some.shape[0]) &&
                 index.shape[1] == some.shape[1] && fits(index.shape[2], some.shape[2]),
             [&] {
               return std::string(whole_label) + " is " + shape_text(whole) + ", " + some_label + " is " +
                      shape_text(some) + ", index is " + shape_text(index) +
                      "; expected [outer, n, inner], [outer, m, "
                      "inner] and [outer or 1, m, inner or 1]";
             });
}

}  // namespace

void check_shapes(const Rearrange& op) {
  const Check check{op.name};
  if (op.acc)
    check.dtype("x", op.x, {DType::f32, DType::bf16, DType::f16});
  else
    check.dtype("x", op.x, {DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8});
  check.dtype("y", op.y, {op.x.dtype});
  check_inside(check, "x", op.x, op.x.elements(), op.space, op.from);
  check_inside(check, "y", op.y, op.y.elements(), op.space, op.to);
  check_apart(check, "y", op.y, op.space, op.to);
}

void check_shapes(const Gather& op) {
  const Check check{op.name};
  check.dtype("x", op.x, {DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8});
  check.dtype("y", op.y, {op.x.dtype});
  check_index(check, op.x, op.y, op.index, "x", "y");
}

void check_shapes(const ScatterAdd& op) {
  const Check check{op.name};
  check.dtype("x", op.x, {DType::f32, DType::bf16, DType::f16});
  check.dtype("y", op.y, {DType::f32});
  check_index(check, op.y, op.x, op.index, "y", "x");
}

void check_shapes(const Sort& op) {
  const Check check{op.name};
  check.dtype("x", op.x, {DType::f32, DType::bf16, DType::f16, DType::i32});
  check.dtype("y", op.y, {op.x.dtype});
  check.dtype("index", op.index, {DType::i32});
  check.that(op.x.rank == 2 && op.y.rank == 2 && op.y.same_shape(op.index) && op.y.shape[0] == op.x.shape[0] &&
                 op.y.shape[1] <= op.x.shape[1],
             [&] {
               return "x is " + shape_text(op.x) + ", y is " + shape_text(op.y) + ", index is " + shape_text(op.index) +
                      "; expected [rows, n] and twice [rows, k], k at most n";
             });
}

void check_shapes(const CumulativeSum& op) {
  const Check check{op.name};
  check.dtype("x", op.x, {DType::f32, DType::bf16, DType::f16});
  check.that(op.x.rank == 2, [&] { return "x is " + shape_text(op.x) + ", expected [rows, n]"; });
  check.like("y", op.y, "x", op.x);
}

void check_shapes(const Add& op) {
  const Check check{op.name};
  check.is_float("a", op.a);
  check.like("b", op.b, "a", op.a);
  check.like("y", op.y, "a", op.a);
}

void check_shapes(const Scale& op) {
  const Check check{op.name};
  check.dtype("x", op.x, {DType::f32, DType::bf16, DType::f16});
  check.dtype("y", op.y, {DType::f32, DType::bf16, DType::f16});
  check.like("y", op.y, "x", op.x, false);
}

void check_shapes(const Cast& op) {
  const Check check{op.name};
  check.is_stored("x", op.x);
  check.dtype("y", op.y, {DType::f32, DType::bf16, DType::f16});
  check.count("y", op.y, op.y.dtype, op.x.elements());
}

void check_shapes(const Copy& op) {
  const Check check{op.name};
  check.present("x", op.x);
  check.count("y", op.y, op.x.dtype, op.x.elements());
}

void check_shapes(const Fill& op) {
  Check{op.name}.present_in_any_order("y", op.y);
  if (is_block(op.y.dtype) && op.value != 0)
    fail("value", op.name, ": y is ", shape_text(op.y), ", which can be filled with 0 only, not ", op.value);
}

void check_shapes(const Embedding& op) {
  const Check check{op.name};
  check.dtype("tokens", op.tokens, {DType::i32});
  check.is_stored("table", op.table);
  check.that(op.table.rank == 2, [&] { return "table is " + shape_text(op.table) + ", expected [vocab, hidden]"; });
  if (op.table.dtype == DType::f32)
    check.dtype("y", op.y, {op.table.dtype});
  else
    check.is_float("y", op.y);
  check.count("y", op.y, op.y.dtype, op.tokens.elements() * op.table.columns());
}

void check_shapes(const EmbeddingGrad& op) {
  const Check check{op.name};
  check.dtype("tokens", op.tokens, {DType::i32});
  check.dtype("dtable", op.dtable, {DType::f32});
  check.that(op.dtable.rank == 2, [&] { return "dtable is " + shape_text(op.dtable) + ", expected [vocab, hidden]"; });
  check.is_float("dy", op.dy);
  check.count("dy", op.dy, op.dy.dtype, op.tokens.elements() * op.dtable.columns());
}

void check_shapes(const DecodePackets& op) {
  const Check check{op.name};
  check.dtype("frames", op.frames, {DType::u8});
  check.dtype("pieces", op.pieces, {DType::i64});
  check.that(op.pieces.rank == 2 && op.pieces.shape[1] == 6,
             [&] { return "pieces is " + shape_text(op.pieces) + ", expected [n, 6]"; });
  check.dtype("tokens", op.tokens, {DType::i32});
  check.count("targets", op.targets, DType::i32, op.tokens.elements());
  check.count("positions", op.positions, DType::i32, op.tokens.elements());
}

}  // namespace qeng
