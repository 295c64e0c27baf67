// What the random draws of the gated delta rule do not compare: results in different company, and values that are wrong.
#include <cstring>

#include "kernels/error.h"
#include "tests/catch.h"
#include "tests/conformance/runner.h"

using namespace qeng;
using namespace qeng::conformance;

namespace {

// `rows` of x, g and beta from the given one on, of the sequences' first, whose number `other` has one row beside it.
GatedDelta part_of(Draw& draw, const GatedDelta& all, int64_t first, int64_t rows, bool other) {
  GatedDelta op = all;
  const auto rows_of = [&](const View& view) {
    View part = draw.empty(view.dtype, {rows + other, view.columns()});
    const size_t row = view.bytes() / static_cast<size_t>(view.rows());
    std::memcpy(part.data, view.as<char>() + static_cast<size_t>(first) * row, row * static_cast<size_t>(rows));
    if (other) std::memcpy(part.as<char>() + static_cast<size_t>(rows) * row, view.data, row);
    return part;
  };
  op.x = rows_of(all.x), op.g = rows_of(all.g), op.beta = rows_of(all.beta), op.o = draw.empty_like(rows_of(all.o));
  const int64_t most = all.pages.shape[1], sequences = other ? 2 : 1;
  std::vector<double> cu{0, static_cast<double>(rows)}, lengths{static_cast<double>(first + rows)}, pages;
  if (other) cu.push_back(static_cast<double>(rows + 1)), lengths.push_back(1);
  for (int64_t i = 0; i < sequences * most; ++i) pages.push_back(static_cast<double>(i));
  op.cu = draw.values(DType::i32, cu), op.lengths = draw.values(DType::i32, lengths);
  op.pages = draw.values(DType::i32, pages);
  op.pages.rank = 2, op.pages.shape[0] = sequences, op.pages.shape[1] = most;
  return op;
}

struct Bits {
  std::vector<unsigned char> o, state, rows;  // of the first sequence
};

// All rows, so many at a time as listed; the rest at once.
Bits in_steps(Backend& backend, Draw& draw, const GatedDelta& all, const std::vector<int64_t>& steps) {
  Bits bits;
  std::memset(all.state.data, 0, all.state.bytes()), std::memset(all.rows.data, 0, all.rows.bytes());
  const int64_t total = all.x.rows();
  const auto kept = [&](const View& view) {  // the pages of the first sequence
    return static_cast<int64_t>(view.bytes()) / view.shape[0] * all.pages.shape[1];
  };
  for (int64_t first = 0, step = 0; first < total; ++step) {
    const int64_t rows = step < static_cast<int64_t>(steps.size()) ? steps[static_cast<size_t>(step)] : total - first;
    const GatedDelta op = part_of(draw, all, first, rows, step % 2 == 1);
    const Outcome outcome = run_on(backend, op, draw.buffers());
    const GatedDelta done = std::get<GatedDelta>(outcome.rebased);
    std::memcpy(all.state.data, done.state.data, all.state.bytes());
    std::memcpy(all.rows.data, done.rows.data, all.rows.bytes());
    const auto* o = done.o.as<unsigned char>();
    bits.o.insert(bits.o.end(), o, o + static_cast<int64_t>(done.o.bytes()) / done.o.rows() * rows);
    first += rows;
  }
  bits.state.assign(all.state.as<unsigned char>(), all.state.as<unsigned char>() + kept(all.state));
  bits.rows.assign(all.rows.as<unsigned char>(), all.rows.as<unsigned char>() + kept(all.rows));
  return bits;
}

GatedDelta whole_sequence(Draw& draw, DType dtype, const DeltaShape& shape, int64_t rows, int64_t page_tokens) {
  GatedDelta op;
  const int64_t most = (rows + page_tokens - 1) / page_tokens;
  op.shape = shape, op.page_tokens = page_tokens;
  op.x = draw.tensor(dtype, {rows, shape.columns()});
  op.g = draw.tensor(DType::f32, {rows, shape.value_heads}),
  op.beta = draw.tensor(DType::f32, {rows, shape.value_heads});
  for (int64_t i = 0; i < op.g.elements(); ++i) {
    encode(op.g, i, -0.1 * std::fabs(decode(op.g, i)));
    encode(op.beta, i, draw.uniform(0, 1));
  }
  op.o = draw.empty(dtype, {rows, shape.value_heads * shape.value_dim});
  op.state = draw.empty(DType::f32, {2 * most, shape.state()}),
  op.rows = draw.empty(DType::f32, {2 * most, shape.rows()});
  op.pages.shape[1] = most;
  return op;
}

}  // namespace

TEST_CASE("gated delta gives a row the same bits however many come at a time") {
  for (Named& target : backends())
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const int64_t page_tokens : {kDeltaChunk, 2 * kDeltaChunk}) {
        INFO(target.name << ", " << dtype_name(dtype) << ", pages of " << page_tokens);
        Draw draw(base_seed());
        const GatedDelta all = whole_sequence(draw, dtype, {1, 2, 48, 80}, 2 * kDeltaChunk + 9, page_tokens);
        const Bits once = in_steps(*target.backend, draw, all, {});
        for (const std::vector<int64_t>& steps : std::vector<std::vector<int64_t>>{
                 {1, 1, 1, 2, 3, 7, 49, 1, 1, 62, 1, 1}, {63, 2, 16, 47, 2}, {kDeltaChunk, kDeltaChunk, 1, 4}}) {
          const Bits bits = in_steps(*target.backend, draw, all, steps);
          CHECK(bits.o == once.o);
          CHECK(bits.state == once.state);
          CHECK(bits.rows == once.rows);
        }
      }
}

TEST_CASE("gated delta takes more sequences than it works on at once") {
  constexpr int64_t kSequences = 70;
  for (Named& target : backends()) {
    INFO(target.name);
    Draw draw(base_seed());
    GatedDelta op = part_of(draw, whole_sequence(draw, DType::bf16, {1, 1, 16, 16}, 2, kDeltaChunk), 0, 2, false);
    const auto repeated = [&](const View& view) {
      View all = draw.empty(view.dtype, {2 * kSequences, view.columns()});
      for (int64_t s = 0; s < kSequences; ++s)
        std::memcpy(all.as<char>() + static_cast<size_t>(s) * view.bytes(), view.data, view.bytes());
      return all;
    };
    const size_t of_sequence = op.o.bytes();
    op.x = repeated(op.x), op.g = repeated(op.g), op.beta = repeated(op.beta), op.o = draw.empty_like(repeated(op.o));
    std::vector<double> cu{0}, lengths, pages;
    for (int64_t s = 0; s < kSequences; ++s) {
      cu.push_back(static_cast<double>(2 * s + 2)), lengths.push_back(2);
      pages.push_back(static_cast<double>(kSequences - 1 - s));
    }
    op.cu = draw.values(DType::i32, cu), op.lengths = draw.values(DType::i32, lengths);
    op.pages = draw.values(DType::i32, pages), op.pages.rank = 2, op.pages.shape[0] = kSequences, op.pages.shape[1] = 1;
    op.state = draw.empty(DType::f32, {kSequences, op.shape.state()});
    op.rows = draw.empty(DType::f32, {kSequences, op.shape.rows()});
    const Outcome outcome = run_on(*target.backend, op, draw.buffers());
    const View o = std::get<GatedDelta>(outcome.rebased).o;
    for (int64_t s = 1; s < kSequences; ++s)
      CHECK(std::memcmp(o.as<char>() + static_cast<size_t>(s) * of_sequence, o.data, of_sequence) == 0);
  }
}

TEST_CASE("gated delta refuses lengths, pages and boundaries that are wrong") {
  for (Named& target : backends()) {
    INFO(target.name);
    Draw draw(base_seed());
    const GatedDelta good =
        part_of(draw, whole_sequence(draw, DType::f32, {1, 1, 16, 16}, 70, kDeltaChunk), 0, 70, false);
    std::memset(good.state.data, 0, good.state.bytes()), std::memset(good.rows.data, 0, good.rows.bytes());
    const auto refused = [&](const GatedDelta& op, const char* word) {
      INFO(word);
      try {
        run_on(*target.backend, op, draw.buffers());
        FAIL("ran");
      } catch (const Error& error) {
        CHECK(error.code == "value");
        CHECK(std::string(error.what()).find(word) != std::string::npos);
      }
    };
    GatedDelta op = good;
    op.lengths = draw.values(DType::i32, {69});
    refused(op, "69");
    op.lengths = draw.values(DType::i32, {129});
    refused(op, "129");
    op = good, op.pages = draw.values(DType::i32, {0, 4});
    op.pages.rank = 2, op.pages.shape[0] = 1, op.pages.shape[1] = 2;
    refused(op, "page 4");
    op.pages = draw.values(DType::i32, {-1, 0});
    op.pages.rank = 2, op.pages.shape[0] = 1, op.pages.shape[1] = 2;
    refused(op, "page -1");
    op = good, op.cu = draw.values(DType::i32, {0, 71});
    op.lengths = draw.values(DType::i32, {71});
    refused(op, "71");
  }
}
