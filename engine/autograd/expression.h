// Arithmetic on tensors, fused. `a * b + c` makes tensors that are pending: each knows what would compute it. What reads
// one has it computed first, by one Pointwise (kernels/ops.h) for the whole of the expression, with one record on the
// tape, whose gradient is derived from the expression and is one Pointwise too. Arithmetic inside is f32; the result is
// rounded once.
//
// A pending tensor has the values that its operands had when it was made: before an operand is written to, what is
// pending of it is computed. Those that were but a step of another expression are not (they may have been temporaries);
// reading one of them later, or making another expression of it, is Error("state").
#pragma once
#include <memory>
#include <vector>

#include "engine/autograd/tape.h"

namespace qeng {

// Immutable, shared by the expressions that it is a part of.
struct Expression {
  Tape* tape = nullptr;  // of what is not a leaf
  Fn fn = Fn::input;
  float value = 0;                                      // of a constant
  TensorPtr leaf;                                       // of an input
  std::vector<std::shared_ptr<const Expression>> args;  // of the other functions
  Shape shape;
  DType dtype = DType::f32;
  bool records = false;               // gradients flow through it
  int nodes = 1;                      // at most, of the whole expression
  std::vector<const Tensor*> leaves;  // of the whole, each once
  bool sums = false;  // over dimensions but the last, which are 1 in `shape` and not in that of its one argument
  mutable bool used = false;                  // it is part of another one
  mutable std::weak_ptr<Tensor> made, inner;  // what has its values: rounded, or as part of another expression
  mutable bool stale = false;                 // an operand has other values now
  bool captured = false;                      // made while a program was captured
};
using ExpressionPtr = std::shared_ptr<const Expression>;

// A tensor, or a number, which takes the dtype of what it stands with.
struct Operand {
  TensorPtr tensor;
  float number = 0;
};

// fn of operands of broadcast shapes (NumPy's rules: aligned at the last dimension, 1 stands for any), pending.
// Its dtype is f32 where an operand is f32 or none is of a float type, else theirs (bf16 with f16: f32); u8 of a
// comparison. Row functions reduce the last dimension to 1. Error("shape") with both shapes.
TensorPtr pointwise(Tape& tape, Fn fn, const std::vector<Operand>& operands);

// The sum over dimensions (from 0), which stay as 1; pending.
TensorPtr sum(Tape& tape, const TensorPtr& x, const std::vector<int>& dims);

// x, computed if it was pending.
const TensorPtr& settled(const TensorPtr& x);

// Computes a pending tensor into the memory of x, of its shape, where that is all there is to do: it has x's dtype and no
// gradient, and reads of x's memory nothing but each element for itself. Then x's values are pending in its place.
bool settle_into(const TensorPtr& pending, const TensorPtr& x);

// Computes all that is pending, also steps of other expressions.
void settle_pending(Tape& tape);

// Computes what is pending and reads this memory, or with null everything, but steps of other expressions. Those are
// stale then; with null, those that were made in the program whose capture ends.
void settle_readers(Tape& tape, const View* written);

}  // namespace qeng
