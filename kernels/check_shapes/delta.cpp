// The shapes that the gated delta rule takes.
#include "kernels/check.h"
#include "kernels/check_shapes.h"

namespace qeng {
namespace {

template <class AnyOp>
void check_delta(const Check& check, const AnyOp& op) {
  const DeltaShape& shape = op.shape;
  check.that(shape.key_heads > 0 && shape.value_heads > 0 && shape.value_heads % shape.key_heads == 0, [&] {
    return std::to_string(shape.value_heads) + " value heads are no multiple of " + std::to_string(shape.key_heads) +
           " key heads";
  });
  for (const int64_t dim : {shape.key_dim, shape.value_dim})
    check.that(dim > 0 && dim <= 256 && dim % 16 == 0, [&] {
      return "key_dim " + std::to_string(shape.key_dim) + ", value_dim " + std::to_string(shape.value_dim) +
             "; expected multiples of 16 up to 256";
    });
  check.is_float("x", op.x);
  const int64_t tokens = op.x.rows();
  check.is("x", op.x, op.x.dtype, {tokens, shape.columns()});
  check.is("g", op.g, DType::f32, {tokens, shape.value_heads});
  check.is("beta", op.beta, DType::f32, {tokens, shape.value_heads});
  check.dtype("cu", op.cu, {DType::i32});
  check.that(op.cu.rank == 1 && op.cu.elements() > 0, "cu is empty, expected [documents + 1]");
}

}  // namespace

void check_shapes(const GatedDelta& op) {
  const Check check{op.name};
  check_delta(check, op);
  check.is("o", op.o, op.x.dtype, {op.x.rows(), op.shape.value_heads * op.shape.value_dim});
  check.that(!op.state == !op.rows && !op.state == !op.pages && !op.state == !op.lengths,
             "state, rows, pages and lengths are given together or not at all");
  if (!op.state) return;
  const int64_t documents = op.cu.elements() - 1;
  check.is("state", op.state, DType::f32, {op.state.shape[0], op.shape.state()});
  check.is("rows", op.rows, DType::f32, {op.state.shape[0], op.shape.rows()});
  check_page_table(check, op.pages, op.lengths, documents, op.page_tokens, kDeltaChunk);
}

void check_shapes(const GatedDeltaGrad& op) {
  const Check check{op.name};
  check_delta(check, op);
  check.is("dout", op.dout, op.x.dtype, {op.x.rows(), op.shape.value_heads * op.shape.value_dim});
  check.like("dx", op.dx, "x", op.x);
  check.like("dg", op.dg, "g", op.g);
  check.like("dbeta", op.dbeta, "beta", op.beta);
}

}  // namespace qeng
