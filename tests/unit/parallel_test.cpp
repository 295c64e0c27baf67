#include "kernels/cpu/parallel.h"

#include <atomic>
#include <vector>

#include "tests/catch.h"

using namespace qeng;

TEST_CASE("shares of pieces: each piece once, whoever is slow, however many threads") {
  for (const int threads : {1, 2, 3, 7})
    for (const int64_t n : {0, 1, 2, 5, 1000})
      for (const int slow : {-1, 0, 1}) {
        std::vector<std::atomic<int>> taken(static_cast<size_t>(n));
        parallel_shares(threads, n, [&](int64_t i) {
          ++taken[static_cast<size_t>(i)];
          if (team_rank() == slow)
            for (volatile int turn = 0; turn < 20000;) turn = turn + 1;
        });
        for (const std::atomic<int>& count : taken) REQUIRE(count == 1);
      }
}
