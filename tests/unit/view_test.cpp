#include "kernels/view.h"

#include "kernels/view_text.h"
#include "tests/catch.h"

using namespace qeng;

TEST_CASE("a view counts its elements, rows and bytes") {
  View view(nullptr, DType::bf16, {3, 5, 7});
  CHECK(view.elements() == 105);
  CHECK(view.rows() == 15);
  CHECK(view.columns() == 7);
  CHECK(view.bytes() == 210);
  CHECK(shape_text(view) == "bf16 [3, 5, 7]");
  CHECK_FALSE(view);
}
