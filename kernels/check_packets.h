// The shapes that DecodePackets asks for, on any backend.
#pragma once
#include "kernels/check.h"
#include "kernels/ops.h"

namespace qeng {

inline void check_shapes(const DecodePackets& op) {
  const Check check{op.name};
  check.dtype("frames", op.frames, {DType::u8});
  check.dtype("pieces", op.pieces, {DType::i64});
  check.that(op.pieces.rank == 2 && op.pieces.shape[1] == 6, "pieces is " + shape_text(op.pieces) + ", expected [n, 6]");
  check.dtype("tokens", op.tokens, {DType::i32});
  check.count("targets", op.targets, DType::i32, op.tokens.elements());
  check.count("positions", op.positions, DType::i32, op.tokens.elements());
}

}  // namespace qeng
