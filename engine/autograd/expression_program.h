// An expression as one Pointwise, and its gradient as another.
#pragma once
#include "engine/autograd/expression.h"

namespace qeng {

// Runs the expression's program into y, of its shape and dtype, and records its gradient where the tape wants it. What
// is of another space (row functions of other rows, functions of a quarter of the elements or fewer) is computed before.
void compute(Tape& tape, const Expression& root, const TensorPtr& y);

// What has the values of a part of an expression that is computed on its own, unrounded in f32 unless it is there
// already.
TensorPtr apart(Tape& tape, const Expression& e);

// Nodes without doubles, with what is known of constants: x + 0, x * 1, 2 * 3.
class PointwiseNodes {
 public:
  std::vector<PointwiseNode> nodes;

  uint16_t add(Fn fn, uint16_t a = 0, uint16_t b = 0, uint16_t c = 0);
  uint16_t constant(float value);
  uint16_t input(uint16_t index);
  uint16_t copy(uint16_t node);  // the same values, in a node that is no other's

 private:
  uint16_t find_or_add(const PointwiseNode& node);
  bool is(uint16_t node, float value) const { return nodes[node].fn == Fn::constant && nodes[node].value == value; }
};

// For each node, where that of its gradient stands, or -1: of the sum of out over all elements, where the gradient of
// node `out` is node `gradient`, of what `wanted` nodes depend on. of_row: nodes that are the same in all of a row, for
// whose gradients rows are summed.
std::vector<int> append_gradients(PointwiseNodes& program, uint16_t out, uint16_t gradient,
                                  const std::vector<bool>& wanted, const std::vector<bool>& of_row);

}  // namespace qeng
