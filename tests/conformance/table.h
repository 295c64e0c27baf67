// The table of the conformance test: for each op a generator of random instances, and for each gradient a chain that
// ties it to its forward op. To add an op: an overload reference(const NewOp&, Sheet<T>&) in a reference_*.h, and one
// row here (generators.cpp, derivatives.cpp).
#pragma once
#include <vector>

#include "tests/conformance/draw.h"

namespace qeng::conformance {

struct Generator {
  const char* name;   // the op's name
  Op (*make)(Draw&);  // a valid op with drawn inputs and poisoned outputs, in the Draw's memory
};
const std::vector<Generator>& generators();
Op kv_store(Draw& draw);  // generators_paged.cpp
Op copy_pages(Draw& draw);
Op paged_attention(Draw& draw);
Op scale_columns(Draw& draw);  // generators_onebit.cpp
Op scale_columns_grad(Draw& draw);
Op pulse_grad(Draw& draw);
Op inertia(Draw& draw);
Op count_levels(Draw& draw);
Op pack_signs(Draw& draw);
Op clip_to_grid(Draw& draw);

// Attention without a window over given documents, and its gradients, o and lse filled by the reference.
Attention attention_of(Draw& draw, const Documents& documents, DType dtype, int64_t kv_heads, int64_t group,
                       int64_t head_dim);
AttentionGrad attention_grad_of(Draw& draw, const Attention& forward);

// forward maps inputs to `out`; with L = sum(out * dout), running `gradients` leaves dL/d(input) in each pair's second
// view. saved: results of forward that the gradients read (rstd, lse). more: further results and their gradients, which
// count in L likewise.
struct Chain {
  Op forward;
  std::vector<Op> gradients;
  View out, dout;
  std::vector<std::pair<View, View>> pairs;
  std::vector<View> saved;
  std::vector<std::pair<View, View>> more = {};
};
struct Derivative {
  const char* name;
  Chain (*make)(Draw&);
};
const std::vector<Derivative>& derivatives();

void run_reference(const Op& op, Sheet<double>& sheet);
void run_reference(const Op& op, Sheet<Real>& sheet);

}  // namespace qeng::conformance
