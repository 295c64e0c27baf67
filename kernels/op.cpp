#include "kernels/op.h"

namespace qeng {

const char* op_name(const Op& op) {
  return std::visit([](const auto& o) { return o.name; }, op);
}

void visit_views(Op& op, void (*call)(void* f, const char* label, View& view, Access access), void* f) {
  std::visit(
      [&](auto& o) {
        o.views([&](const char* label, View& view, Access access) {
          if (view) call(f, label, view, access);
        });
      },
      op);
}

}  // namespace qeng
