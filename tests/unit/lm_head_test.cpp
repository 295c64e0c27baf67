#include "kernels/lm_head.h"

#include <set>

#include "tests/catch.h"

using namespace qeng;

TEST_CASE("the rows of a head are enough for the trained ones, and of few different numbers") {
  for (const int64_t tokens : {1, 5, 16, 100, 127, 128, 2048, 3000, 8192, 65537}) {
    std::set<int64_t> numbers;
    for (int64_t trained = 0; trained <= tokens; ++trained) {
      const int64_t rows = head_rows(tokens, trained);
      const int64_t share = tokens / kHeadShares + LmHeadParts::kRowsStep;
      if (rows < trained || rows > tokens || rows - trained > share) FAIL(rows << " for " << trained);
      if (rows != tokens && rows % LmHeadParts::kRowsStep != 0) FAIL(rows << " are no whole step");
      numbers.insert(rows);
    }
    CHECK(numbers.size() <= kHeadShares);
    CHECK(head_rows(tokens, -1) == tokens);
    CHECK(head_rows(tokens, tokens) == tokens);
  }
}
