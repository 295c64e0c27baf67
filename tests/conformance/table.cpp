#include "tests/conformance/table.h"

namespace qeng::conformance {

const std::vector<OpTest>& op_tests() {
#define QENG_TEST(Name) test_of(static_cast<const Name*>(nullptr)),
  static const std::vector<OpTest> table = {QENG_OPERATIONS(QENG_TEST)};
#undef QENG_TEST
  return table;
}

void run_reference(const Op& op, Sheet<double>& sheet) {
  std::visit([&](const auto& concrete) { reference(concrete, sheet); }, op);
}
void run_reference(const Op& op, Sheet<Real>& sheet) {
  std::visit([&](const auto& concrete) { reference(concrete, sheet); }, op);
}

}  // namespace qeng::conformance
