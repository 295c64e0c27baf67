#include <cstdlib>
#include <set>
#include <vector>

#include "engine/packets/sampler.h"
#include "tests/catch.h"

using namespace qeng;

TEST_CASE("a keyed permutation visits every number once at every size") {
  for (uint64_t size = 1; size < 300; ++size) {
    const Permutation order(7, size % 5, size);
    std::vector<bool> seen(size);
    for (uint64_t i = 0; i < size; ++i) {
      REQUIRE(order(i) < size);
      CHECK_FALSE(seen[order(i)]);
      seen[order(i)] = true;
    }
  }
}

// Sizes around powers of two and four, where the domain of the rounds changes, and some between. QENG_LARGE=1 goes on
// to 10 million.
TEST_CASE("a keyed permutation visits every number once at large sizes") {
  std::vector<uint64_t> sizes = {999, 4095, 4096, 4097, 65535, 65536, 65537, 100003, 262145};
  if (std::getenv("QENG_LARGE"))
    for (uint64_t size : {1000000, 1048575, 1048577, 2097152, 4194305, 7777777, 10000000}) sizes.push_back(size);
  for (uint64_t size : sizes) {
    const Permutation order(11, size % 7, size);
    std::vector<bool> seen(size);
    uint64_t visited = 0;
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t at = order(i);
      REQUIRE(at < size);
      visited += !seen[at];
      seen[at] = true;
    }
    CHECK(visited == size);
  }
}

TEST_CASE("a keyed permutation of huge size stays inside it") {
  const uint64_t size = (uint64_t{1} << 40) + 12345;
  const Permutation order(1, 2, size);
  std::set<uint64_t> seen;
  for (uint64_t i = 0; i < 1000; ++i) {
    CHECK(order(i) < size);
    seen.insert(order(i));
  }
  CHECK(seen.size() == 1000);
}

// Chi-square of where each of the first positions lands, over 4000 keys: 15 degrees of freedom, 60 is p < 1e-6.
TEST_CASE("a keyed permutation favours no place") {
  for (uint64_t size : {16u, 100u}) {
    for (uint64_t position : {uint64_t{0}, size / 2, size - 1}) {
      std::vector<double> count(16);
      for (uint64_t key = 0; key < 4000; ++key) ++count[Permutation(3, key, size)(position) * 16 / size];
      double chi = 0;
      for (uint64_t bin = 0; bin < 16; ++bin) {
        const uint64_t first = (bin * size + 15) / 16, last = ((bin + 1) * size + 15) / 16;
        const double expected = 4000.0 * static_cast<double>(last - first) / static_cast<double>(size);
        chi += (count[bin] - expected) * (count[bin] - expected) / expected;
      }
      CHECK(chi < 60);
    }
  }
}

TEST_CASE("epochs and seeds order differently, the same ones alike") {
  const Sampler a(1000, 5, Split::train, 0), b(1000, 5, Split::train, 0), c(1000, 6, Split::train, 0);
  int same_epoch = 0, same_seed = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    CHECK(a.order(3)(i) == b.order(3)(i));
    same_epoch += a.order(3)(i) == a.order(4)(i);
    same_seed += a.order(3)(i) == c.order(3)(i);
  }
  CHECK(same_epoch < 10);
  CHECK(same_seed < 10);
}

TEST_CASE("held-out records are never trained on, in any epoch") {
  for (double share : {0.001, 0.1, 0.5, 0.999}) {
    const Sampler train(777, 5, Split::train, share), eval(777, 5, Split::eval, share);
    CHECK(train.size() + eval.size() == 777);
    CHECK(train.size() >= 1);
    CHECK(eval.size() >= 1);
    std::set<uint64_t> held;
    for (uint64_t i = 0; i < eval.size(); ++i) held.insert(eval.order(0)(i));
    CHECK(held.size() == eval.size());
    for (uint64_t epoch = 0; epoch < 5; ++epoch) {
      std::set<uint64_t> trained;
      for (uint64_t i = 0; i < train.size(); ++i) trained.insert(train.order(epoch)(i));
      CHECK(trained.size() == train.size());
      for (uint64_t record : trained) CHECK(held.count(record) == 0);
    }
  }
  CHECK_THROWS(Sampler(1, 5, Split::train, 0.1));
  CHECK_THROWS(Sampler(10, 5, Split::train, 1.0));
}
