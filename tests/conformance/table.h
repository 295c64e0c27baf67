// The table of the conformance test. An operation's part is in a file of this folder, NAME.cpp or that of its kin: what
// makes random instances, the float64 reference, and for a gradient the chain that ties it to its forward op. At its
// end stands, say,
//   QENG_CONFORMANCE(Hadamard, .make = hadamard, .derivatives = {{"hadamard", hadamard_chain}});
// An operation of kernels/ops.h without one does not link.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "tests/conformance/draw.h"

namespace qeng::conformance {

// forward maps inputs to `out`; with L = sum(out * dout), running `gradients` leaves dL/d(input) in each pair's second
// view. saved: results of forward that the gradients read (rstd, lse). more: further results and their gradients, which
// count in L likewise.
using Pairs = std::vector<std::pair<View, View>>;
struct Chain {
  Op forward;
  std::vector<Op> gradients;
  View out, dout;
  Pairs pairs;
  std::vector<View> saved = {};
  Pairs more = {};
};
struct Derivative {
  const char* name;
  Chain (*make)(Draw&);
};

struct OpTest {
  const char* name;   // the op's name
  Op (*make)(Draw&);  // a valid op with drawn inputs and poisoned outputs, in the Draw's memory: odd sizes, one row,
                      // absent views
  // Views whose shape or dtype the op cannot know to be wrong: their size alone sets how much work there is.
  std::set<std::string> free_shape = {}, free_dtype = {};
  std::vector<Derivative> derivatives = {};  // of a forward op's file, or its gradient's
};
const std::vector<OpTest>& op_tests();

#define QENG_DECLARE(Name)     \
  OpTest test_of(const Name*); \
  template <class T>           \
  void reference(const Name&, Sheet<T>&);
QENG_OPERATIONS(QENG_DECLARE)
#undef QENG_DECLARE

#define QENG_CONFORMANCE(Name, ...)                                         \
  OpTest test_of(const Name*) { return {.name = Name::name, __VA_ARGS__}; } \
  template void reference(const Name&, Sheet<double>&);                     \
  template void reference(const Name&, Sheet<Real>&)

void run_reference(const Op& op, Sheet<double>& sheet);
void run_reference(const Op& op, Sheet<Real>& sheet);

// Attention without a window over given documents, and its gradients, o and lse filled by the reference.
Attention attention_of(Draw& draw, const Documents& documents, DType dtype, int64_t kv_heads, int64_t group,
                       int64_t head_dim);
AttentionGrad attention_grad_of(Draw& draw, const Attention& forward);

}  // namespace qeng::conformance
