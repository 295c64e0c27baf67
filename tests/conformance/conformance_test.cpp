// Every op on every backend against float64. One op only: -c NAME. Another draw: QENG_SEED=n. More or fewer:
// QENG_ROUNDS=n.
#include <cstdlib>

#include "kernels/error.h"
#include "tests/catch.h"
#include "tests/conformance/philox.h"
#include "tests/conformance/runner.h"

using namespace qeng;
using namespace qeng::conformance;

namespace {

// Draws of each op.
uint64_t rounds() {
  const char* given = std::getenv("QENG_ROUNDS");
  return given ? std::strtoull(given, nullptr, 10) : 40;
}

// Backends that have to agree to the last bit: each instruction set with one and with two threads, a GPU with itself.
std::vector<std::pair<Named*, Named*>> pairs() {
  std::vector<std::pair<Named*, Named*>> list;
  for (size_t i = 0; i < backends().size(); ++i) {
    Named& one = backends()[i];
    const bool cpu = one.name.rfind("cpu", 0) == 0;
    if (!cpu || i % 2 == 0) list.push_back({&one, cpu ? &backends()[i + 1] : &one});
  }
  return list;
}

// What a run of an op wrote, workspaces aside.
std::vector<View> results(const Outcome& outcome) {
  std::vector<View> list;
  for_each_view(outcome.rebased, [&](const std::string& label, const View& view, Access access) {
    if (access != Access::read && label != "workspace" && label != "delta") list.push_back(view);
  });
  return list;
}

void check_same_bits(const Outcome& one, const Outcome& two) {
  const std::vector<View> a = results(one), b = results(two);
  for (size_t i = 0; i < a.size(); ++i) CHECK(std::memcmp(a[i].data, b[i].data, b[i].bytes()) == 0);
}

}  // namespace

TEST_CASE("every op's test makes that op") {
  for (const OpTest& test : op_tests()) {
    Draw draw(1);
    CHECK(op_name(test.make(draw)) == std::string(test.name));
  }
}

TEST_CASE("the reference's Philox gives the numbers that its authors published") {
  const PhiloxBlock zeros = philox_block({{0, 0, 0, 0}}, 0);
  CHECK((zeros.word[0] == 0x6627e8d5 && zeros.word[1] == 0xe169c58d && zeros.word[2] == 0xbc57ac4c &&
         zeros.word[3] == 0x9b00dbd8));
  const PhiloxBlock ones = philox_block({{~0u, ~0u, ~0u, ~0u}}, ~uint64_t{0});
  CHECK((ones.word[0] == 0x408f276d && ones.word[1] == 0x41c83b0e && ones.word[2] == 0xa20bc7c6 &&
         ones.word[3] == 0x6d5451fd));
}

TEST_CASE("every op agrees with float64 on every backend") {
  for (const OpTest& test : op_tests()) DYNAMIC_SECTION(test.name) {
      for (uint64_t round = 0; round < rounds(); ++round) {
        const uint64_t seed = base_seed() + round;
        Draw draw(seed);
        const Op op = test.make(draw);
        INFO("QENG_SEED=" << seed);
        check_everywhere(op, draw);
      }
    }
}

TEST_CASE("an op gives the same bits with one thread and with two and twice on a GPU") {
  for (const OpTest& test : op_tests()) DYNAMIC_SECTION(test.name) {
      for (uint64_t round = 0; round < (rounds() + 1) / 2; ++round) {
        Draw draw(base_seed() + 1000 + round);
        const Op op = test.make(draw);
        for (auto [first, second] : pairs()) {
          if (lacks(*first, op)) continue;
          INFO("QENG_SEED=" << base_seed() + round << " on " << first->name << ": " << describe(op));
          check_same_bits(run_on(*first->backend, op, draw.buffers()), run_on(*second->backend, op, draw.buffers()));
        }
      }
    }
}

TEST_CASE("an op recorded and replayed on a GPU gives the bits of a run") {
  for (const OpTest& test : op_tests()) DYNAMIC_SECTION(test.name) {
      for (uint64_t round = 0; round < (rounds() + 7) / 8; ++round) {
        Draw draw(base_seed() + 2000 + round);
        const Op op = test.make(draw);
        for (Named& target : backends()) {
          if (target.name != "cuda") continue;
          INFO("QENG_SEED=" << base_seed() + round << ": " << describe(op));
          Backend& backend = *target.backend;
          const auto twice = [&](const Op& moved) { backend.run(moved), backend.run(moved); };
          const auto replayed = [&](const Op& moved) {
            backend.run(moved);  // memory is taken here
            backend.record([&] { backend.run(moved); })->replay();
          };
          check_same_bits(run_on(backend, op, draw.buffers(), twice), run_on(backend, op, draw.buffers(), replayed));
        }
      }
    }
}

// A device that finds it while it runs goes on, and says so when it is next waited for.
TEST_CASE("a token outside the table is an error that says where") {
  for (Named& target : backends())
    for (int64_t token : {-1, 10}) {
      INFO(target.name << ", token " << token);
      Draw draw(base_seed());
      Embedding forward;
      forward.table = draw.tensor(DType::f32, {10, 24}), forward.tokens = draw.tokens(40, 10);
      forward.y = draw.empty(DType::f32, {40, 24});
      EmbeddingGrad backward;
      backward.tokens = forward.tokens, backward.dtable = forward.table,
      backward.dy = draw.tensor(DType::f32, {40, 24});
      encode(forward.tokens, 33, static_cast<double>(token));
      for (const Op& op : {Op(forward), Op(backward)}) {
        std::string message = "none", code;
        try {
          run_on(*target.backend, op, draw.buffers());
        } catch (const Error& error) {
          message = error.what(), code = error.code;
        }
        CHECK(code == "value");
        const std::string end = "token " + std::to_string(token) + " at position 33 is outside the table of 10 rows";
        CHECK(message.substr(message.size() - std::min(message.size(), end.size())) == end);
      }
    }
}

TEST_CASE("an op with one view of a wrong shape or dtype or order of rows is refused before it writes") {
  for (const OpTest& test : op_tests()) DYNAMIC_SECTION(test.name) {
      Draw draw(base_seed());
      const Op op = test.make(draw);
      size_t count = 0;
      for_each_view(op, [&](const char*, const View&, Access) { ++count; });
      for (size_t target = 0; target < count; ++target)
        for (const std::string wrong : {"shape", "dtype", "order"}) {
          Op broken = op;
          std::string which;
          size_t i = 0;
          for_each_view(broken, [&](const char* label, View& view, Access) {
            if (i++ != target) return;
            which = label;
            if (wrong == "shape") ++view.shape[view.rank - 1];
            if (wrong == "dtype") view.dtype = view.dtype == DType::u8 ? DType::i64 : DType::u8;
            if (wrong == "order") view.interleaved = true;  // which none that is drawn can be
          });
          if (wrong == "shape" && test.free_shape.count(which)) continue;
          if (wrong == "dtype" && test.free_dtype.count(which)) continue;
          INFO(which << ", wrong " << wrong);
          std::string code = "none";
          try {
            run_on(*backends()[0].backend, broken, draw.buffers());
          } catch (const Error& error) {
            code = error.code;
          }
          CHECK((code == "shape" || code == "dtype"));
        }
    }
}
