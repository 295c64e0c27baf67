// The programs that Pointwise (ops.h) runs: a list of nodes, each a function of nodes before it.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/math/fn.h"
#include "kernels/view.h"

namespace qeng {

constexpr int operands_of(Fn fn) {
  constexpr int kOperands[] = {
#define QENG_OPERANDS(name, operands) operands,
      QENG_POINTWISE(QENG_OPERANDS)
#undef QENG_OPERANDS
  };
  return kOperands[static_cast<int>(fn)];
}
constexpr bool is_row_fn(Fn fn) { return fn >= Fn::row_sum; }
constexpr bool is_comparison(Fn fn) { return fn >= Fn::less && fn <= Fn::not_equal; }
const char* fn_name(Fn fn);

struct PointwiseNode {
  Fn fn = Fn::constant;
  uint16_t a = 0, b = 0, c = 0;
  float value = 0;
};

// A result: the node's values in a view whose dimensions are the space's, or 1:
//   all of the space's       each element
//   a last dimension of 1    one element a row, of a node that is the same in all of it
//   others, side by side, 1  the sums over these dimensions, for each column
struct PointwiseOutput {
  View view;
  uint16_t node = 0;
  bool acc = false;
};

constexpr int kMostPointwiseNodes = 512, kMostPointwiseInputs = 16, kMostPointwiseOutputs = 16;

// The space with as few dimensions as tell the views apart.
struct PointwiseSpace {
  // Where a view lies: elements from one index of a dimension to the next, 0 where it has but one.
  struct Place {
    int64_t stride[kMaxRank] = {};
    bool dense = false;  // element i of the space is element i of the view
  };
  bool reduces = false;  // there are row functions
  std::vector<Place> in, out;
  std::vector<bool> is_row, is_sum;  // of each output: one element a row; summed over dimensions
  int rank = 0;                      // at least 1
  int64_t shape[kMaxRank] = {};
  int sum_begin = 0, sum_end = 0;  // the dimensions that outputs are summed over, none of them the last

  int64_t columns() const { return shape[rank - 1]; }
  int64_t rows() const {
    int64_t rows = 1;
    for (int d = 0; d + 1 < rank; ++d) rows *= shape[d];
    return rows;
  }
};

// The nodes in registers: one is free for another node after its last use; those of outputs stay.
struct PointwisePlan : PointwiseSpace {
  struct Load {
    uint8_t input, to;
  };
  std::vector<Load> loads;  // all come first
  std::vector<PointwiseStep> steps;
  int registers = 0;
  std::vector<uint8_t> results;  // the register of each output
};

// Of each node: whether outputs need it.
std::vector<bool> needed_nodes(const std::vector<PointwiseNode>& nodes, const std::vector<PointwiseOutput>& out);
// f(operand) for each of a node.
template <class F>
void each_operand(const PointwiseNode& node, F f) {
  const int operands = operands_of(node.fn);
  if (operands > 0) f(node.a);
  if (operands > 1) f(node.b);
  if (operands > 2) f(node.c);
}

// Of each node: whether it is the same in all of a row.
std::vector<bool> same_in_rows(const std::vector<PointwiseNode>& nodes, const std::vector<View>& in);

struct Pointwise;
// Of one that check_shapes has seen.
PointwiseSpace space_of(const Pointwise& op);
PointwisePlan plan_of(const Pointwise& op);

}  // namespace qeng
