// The shapes that Rope asks for, on any backend.
#pragma once
#include "kernels/check.h"
#include "kernels/ops.h"

namespace qeng {

inline void check_shapes(const Rope& op) {
  const Check check{op.name};
  check.is_float("x", op.x);
  check.that(op.x.rank == 3, "x is " + shape_text(op.x) + ", expected [tokens, heads, head_dim]");
  check.like("y", op.y, "x", op.x);
  const int64_t tokens = op.x.shape[0], dim = op.x.shape[2];
  check.is("positions", op.positions, DType::i32, {tokens});
  check.dtype("inv_freq", op.inv_freq, {DType::f32});
  check.that(
      op.inv_freq.rank == 1 && 2 * op.inv_freq.elements() <= dim,
      "inv_freq is " + shape_text(op.inv_freq) + ", expected [rotary/2] of a head_dim of " + std::to_string(dim));
  if (!op.x2 && !op.y2) return;
  check.is("x2", op.x2, op.x.dtype, {tokens, op.x2.rank == 3 ? op.x2.shape[1] : 0, dim});
  check.like("y2", op.y2, "x2", op.x2);
}

}  // namespace qeng
