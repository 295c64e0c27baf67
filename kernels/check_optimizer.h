// The shapes that the optimizer's operations ask for, on any backend.
#pragma once
#include "kernels/check.h"
#include "kernels/ops.h"

namespace qeng {

inline void check_shapes(const SumSquares& op) {
  const Check check{op.name};
  for (const View& x : op.x) check.dtype("x", x, {DType::f32});
  check.is("out", op.out, DType::f32, {static_cast<int64_t>(op.x.size())});
}

inline void check_shapes(const ClipScale& op) {
  const Check check{op.name};
  check.dtype("partials", op.partials, {DType::f32});
  check.is("out", op.out, DType::f32, {3});
}

inline void check_shapes(const AdamW& op) {
  const Check check{op.name};
  const size_t count = op.w.size();
  check.that(op.grad.size() == count && op.m.size() == count && op.v.size() == count &&
                 (op.model.empty() || op.model.size() == count),
             "the lists differ in length: w " + std::to_string(count) + ", grad " + std::to_string(op.grad.size()) + ", m " +
                 std::to_string(op.m.size()) + ", v " + std::to_string(op.v.size()) + ", model " + std::to_string(op.model.size()));
  for (size_t i = 0; i < count; ++i) {
    const int64_t n = op.w[i].elements();
    check.dtype("w", op.w[i], {DType::f32});
    check.count("grad", op.grad[i], DType::f32, n);
    check.count("m", op.m[i], DType::f32, n);
    check.count("v", op.v[i], DType::f32, n);
    if (!op.model.empty() && op.model[i]) check.count("model", op.model[i], DType::bf16, n);
  }
  check.is("hyper", op.hyper, DType::f32, {2});
  check.is("clip", op.clip, DType::f32, {3});
}

}  // namespace qeng
