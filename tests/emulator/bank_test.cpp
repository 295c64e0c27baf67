// The count of bank conflicts finds those that are there, and no others.
#include <ostream>

#include "tests/catch.h"
#include "tests/emulator/bank_kernels.h"
#include "tests/emulator/banks.h"
#include "tests/emulator/kernel_fixture.h"

using namespace emulator_test;

namespace {

struct Sum {
  uint64_t accesses = 0, turns = 0, least = 0;
  bool operator==(const Sum&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Sum& sum) {
  return out << sum.accesses << " accesses, " << sum.turns << " turns, at least " << sum.least;
}

template <class... Params, class... Args>
Sum banks_of(void (*kernel)(Params...), int threads, Args... args) {
  Sum first;
  for (uint64_t seed = 1; seed < 4; ++seed) {  // whatever the order
    emulator::count_banks = true;
    CHECK(run(seed, kernel, 1, static_cast<unsigned>(threads), 16 << 10, args...) == cudaSuccess);
    emulator::count_banks = false;
    Sum sum;
    for (const auto& count : emulator::take_bank_counts(reinterpret_cast<const void*>(kernel)))
      sum.accesses += count.accesses, sum.turns += count.turns, sum.least += count.least;
    if (seed == 1) first = sum;
    CHECK(sum == first);
  }
  return first;
}

TEST_CASE("words that lie in one bank take as many turns, and one word for all lanes takes one") {
  const Device<float> out(64);
  CHECK(banks_of(read_words, 32, out.data, 1) == Sum{1, 1, 1});
  CHECK(banks_of(read_words, 32, out.data, 33) == Sum{1, 1, 1});
  CHECK(banks_of(read_words, 32, out.data, 2) == Sum{1, 2, 1});
  CHECK(banks_of(read_words, 32, out.data, 32) == Sum{1, 32, 1});
  CHECK(banks_of(read_words, 32, out.data, 0) == Sum{1, 1, 1});
  CHECK(banks_of(read_words, 64, out.data, 4) == Sum{2, 8, 2});
  CHECK(banks_of(write_bytes, 32, 1) == Sum{1, 1, 1});
  CHECK(banks_of(write_bytes, 32, 8) == Sum{1, 2, 1});
}

TEST_CASE("accesses of 8 and 16 bytes go by halves and quarters of a warp") {
  const Device<float> out(32);
  const Device<uint4> in(32);
  CHECK(banks_of(read_pairs, 32, out.data, 1) == Sum{1, 2, 2});
  CHECK(banks_of(read_pairs, 32, out.data, 0) == Sum{1, 2, 2});
  CHECK(banks_of(read_pairs, 32, out.data, 2) == Sum{1, 4, 2});
  CHECK(banks_of(read_pairs, 16, out.data, 16) == Sum{1, 16, 1});
  CHECK(banks_of(read_fours, 32, out.data, 1) == Sum{1, 4, 4});
  CHECK(banks_of(read_fours, 32, out.data, 2) == Sum{1, 8, 4});
  CHECK(banks_of(read_fours, 32, out.data, 8) == Sum{1, 32, 4});
  CHECK(banks_of(read_fours, 8, out.data, 9) == Sum{1, 1, 1});
  CHECK(banks_of(write_fours, 32, 1) == Sum{1, 4, 4});
  CHECK(banks_of(write_fours, 32, 4) == Sum{1, 16, 4});
  CHECK(banks_of(copy_fours, 32, in.data, 1) == Sum{1, 4, 4});
  CHECK(banks_of(copy_fours, 32, in.data, 4) == Sum{1, 16, 4});
}

TEST_CASE("lanes that take different ways meet at what they do together") {
  const Device<float> out(32);
  CHECK(banks_of(read_rows, 32, out.data, 80, 1) == Sum{4, 4, 4});
  CHECK(banks_of(read_rows, 32, out.data, 80, 32) == Sum{4, 32 + 32 + 16 + 1, 4});
}

}  // namespace
