#include "engine/generate/carried_step.h"

#include <cstring>

#include "kernels/error.h"
#include "tests/catch.h"

using namespace qeng;

namespace {
// Two sequences of 5 and 2 tokens, of which a step runs 3 and 2, in pages of 4 tokens.
CarriedStep step_of_two() {
  PagePool pool(6, 4, false);
  const int64_t a = pool.open(0), b = pool.open(2);
  REQUIRE(pool.extend(a, {1, 2, 3, 4, 5}));
  REQUIRE(pool.extend(b, {6, 7}));
  CarriedStep step;
  step.most = 4;
  step.rows = pool.rows({{a, 3}, {b, 2}}, 5, 2, step.most);
  step.ranges = {{0, 0, 3}, {2, 3, 2}};
  step.copies = {3, 4};
  return step;
}
const CarriedLimits kLimits{6, 0, 4, 8, 4, 64};

std::string with(std::string text, size_t number, int32_t value) {
  std::memcpy(text.data() + 4 * number, &value, 4);
  return text;
}
}  // namespace

TEST_CASE("a step that is carried to another process is the one that was told, but for its tokens") {
  const CarriedStep told = step_of_two(), got = unpack_step(pack_step(told), kLimits);
  CHECK(got.rows.positions == told.rows.positions);
  CHECK(got.rows.slots == told.rows.slots);
  CHECK(got.rows.cu_q == told.rows.cu_q);
  CHECK(got.rows.lengths == told.rows.lengths);
  CHECK(got.rows.pages == told.rows.pages);
  CHECK(got.rows.before == told.rows.before);
  CHECK(got.rows.after == told.rows.after);
  CHECK(got.rows.tokens == std::vector<int32_t>(5, 0));
  CHECK(got.copies == told.copies);
  REQUIRE(got.ranges.size() == 2);
  CHECK((got.ranges[1].salt == 2 && got.ranges[1].first == 3 && got.ranges[1].count == 2));
}

TEST_CASE("no number of a carried step leads outside what was opened") {
  const std::string text = pack_step(step_of_two());
  for (size_t cut : {size_t{0}, size_t{10}, text.size() - 4})
    CHECK_THROWS_AS(unpack_step(text.substr(0, cut), kLimits), Error);
  CHECK_THROWS_AS(unpack_step(text + "1234", kLimits), Error);
  // Every number in turn becomes one that no table has: either it is refused, or it did not matter to a limit.
  for (size_t number = 0; number < text.size() / 4; ++number)
    for (int32_t value : {-2, 24, 1 << 30}) {
      try {
        const CarriedStep step = unpack_step(with(text, number, value), kLimits);
        for (int32_t page : step.rows.pages) CHECK((page >= -1 && page < kLimits.pages));
        for (int32_t slot : step.rows.slots) CHECK((slot >= 0 && slot < kLimits.pages * kLimits.page_tokens));
        for (int32_t position : step.rows.positions) CHECK((position >= 0 && position < kLimits.positions));
        for (int32_t page : step.copies) CHECK((page >= 0 && page < kLimits.pages));
        CHECK(step.rows.cu_q.back() == 5);
      } catch (const Error& error) {
        CHECK(error.code == "format");
      }
    }
  CarriedLimits narrow = kLimits;
  narrow.rows = 4;
  CHECK_THROWS_AS(unpack_step(text, narrow), Error);
  narrow = kLimits, narrow.pages = 2;
  CHECK_THROWS_AS(unpack_step(text, narrow), Error);
}
