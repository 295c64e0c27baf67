// Any operation of ops.h. Files of kernels, which know theirs, do without.
#pragma once
#include <variant>

#include "kernels/ops.h"

namespace qeng {

#define QENG_ALTERNATIVE(Name) , Name
template <class, class... Ops>  // the list puts a comma before each
using OpOf = std::variant<Ops...>;
using Op = OpOf<void QENG_OPERATIONS(QENG_ALTERNATIVE)>;
#undef QENG_ALTERNATIVE

const char* op_name(const Op& op);

// Calls f(label, View&, Access) for each view of the op that is present.
void visit_views(Op& op, void (*call)(void* f, const char* label, View& view, Access access), void* f);
template <class F>
void for_each_view(Op& op, F f) {
  visit_views(
      op,
      [](void* each, const char* label, View& view, Access access) { (*static_cast<F*>(each))(label, view, access); },
      &f);
}
// The same of an op that stays as it is: f(label, const View&, Access).
template <class F>
void for_each_view(const Op& op, F f) {
  const auto read = [&](const char* label, const View& view, Access access) { f(label, view, access); };
  for_each_view(const_cast<Op&>(op), read);
}

Cost cost(const Op& op);  // of views in host memory; kernels/backend.h has the form for any device

}  // namespace qeng
