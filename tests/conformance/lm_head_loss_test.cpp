// What the random draws of LmHeadLoss do not compare: which rows are computed, and how many were expected.
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>

#include "kernels/error.h"
#include "tests/catch.h"
#include "tests/conformance/runner.h"

using namespace qeng;
using namespace qeng::conformance;

namespace {

constexpr int64_t kHidden = 5, kVocab = 9;

LmHeadLoss head_of(Draw& draw, const View& h, const View& w, const View& targets, const View& dw) {
  LmHeadLoss op;
  op.h = h, op.w = w, op.targets = targets, op.chunk = 48;
  op.loss_scale = draw.values(DType::f32, {0.01});
  op.nll = draw.empty(DType::f32, {h.rows()}), op.loss = draw.empty(DType::f32, {1});
  op.dh = draw.empty_like(h);
  op.dw = draw.empty_like(dw);
  std::memcpy(op.dw.data, dw.data, dw.bytes());
  op.workspace = draw.empty(DType::u8, {lm_head_workspace(h.rows(), kHidden, kVocab, op.chunk, h.dtype)});
  return op;
}

// How many elements differ in the rows: of b those listed, where the others are 0.
int64_t differing(const View& a, const View& b, const std::vector<int64_t>& rows, double tolerance) {
  const int64_t columns = a.elements() / a.shape[0];
  int64_t count = 0;
  size_t i = 0;
  for (int64_t t = 0; t < a.shape[0]; ++t) {
    const bool listed = i < rows.size() && rows[i] == t;
    for (int64_t j = 0; j < columns; ++j) {
      const double want = listed ? decode(b, static_cast<int64_t>(i) * columns + j) : 0;
      count += !(std::fabs(decode(a, t * columns + j) - want) <= (listed ? tolerance : 0));
    }
    i += listed;
  }
  return count;
}

// More rows than the block that lists them has threads, about a third of them trained, the others no numbers; and the
// same without those others.
struct Both {
  explicit Both(uint64_t seed) : draw(seed) {
    const View w = draw.tensor(DType::bf16, {kVocab, kHidden}), dw = draw.tensor(DType::f32, {kVocab, kHidden});
    const View h = draw.tensor(DType::bf16, {kTokens, kHidden}), targets = draw.tokens(kTokens, kVocab);
    for (int64_t t = 0; t < kTokens; ++t) {
      if (draw.integer(0, 2) == 0) {
        trained.push_back(t);
        continue;
      }
      encode(targets, t, -1);
      for (int64_t i = 0; i < kHidden; ++i) encode(h, t * kHidden + i, NAN);
    }
    all = head_of(draw, h, w, targets, dw);
    const int64_t count = static_cast<int64_t>(trained.size());
    const View few_h = draw.empty(DType::bf16, {count, kHidden}), few_targets = draw.empty(DType::i32, {count});
    for (int64_t i = 0; i < count; ++i) {
      const int64_t t = trained[static_cast<size_t>(i)];
      encode(few_targets, i, decode(targets, t));
      for (int64_t j = 0; j < kHidden; ++j) encode(few_h, i * kHidden + j, decode(h, t * kHidden + j));
    }
    alone = head_of(draw, few_h, w, few_targets, dw);
  }

  static constexpr int64_t kTokens = 1300;
  Draw draw;
  std::vector<int64_t> trained;
  LmHeadLoss all, alone;
};

std::string refusal(Backend& backend, const LmHeadLoss& op, Draw& draw) {
  try {
    run_on(backend, op, draw.buffers());
  } catch (const Error& error) {
    return error.code + ": " + error.what();
  }
  return "";
}

}  // namespace

// cuBLASLt's sums depend on how many rows a product has, so on a GPU the values are near, not the same.
TEST_CASE("trained rows of a head have the bits that they have alone, whatever number is expected") {
  Both both(base_seed());
  const int64_t count = static_cast<int64_t>(both.trained.size());
  for (Named& target : backends()) {
    INFO(target.name);
    const Outcome few = run_on(*target.backend, both.alone, both.draw.buffers());
    const LmHeadLoss want = std::get<LmHeadLoss>(few.rebased);
    const bool same = target.backend->description().find("emulated") == 0 || target.backend->host_memory();
    const double row_error = same ? 0 : 1e-3, sum_error = same ? 0 : 2e-2;  // dz in bf16, of 1 and of all rows
    std::vector<int64_t> each(kVocab);
    std::iota(each.begin(), each.end(), 0);
    std::optional<double> loss;
    for (const int64_t expected : {count, count + 1, count + 100, both.kTokens, int64_t{-1}}) {
      both.all.trained = expected;
      const Outcome many = run_on(*target.backend, both.all, both.draw.buffers());
      const LmHeadLoss got = std::get<LmHeadLoss>(many.rebased);
      CHECK(differing(got.nll, want.nll, both.trained, row_error) == 0);
      CHECK(differing(got.dh, want.dh, both.trained, row_error) == 0);
      CHECK(differing(got.dw, want.dw, each, sum_error) == 0);
      loss = loss.value_or(decode(got.loss, 0));
      CHECK(std::fabs(decode(got.loss, 0) - *loss) <= row_error);
    }
  }
}

TEST_CASE("more trained rows of a head than were expected are refused, and so is a target outside the vocabulary") {
  Both both(base_seed() + 1);
  const int64_t count = static_cast<int64_t>(both.trained.size());
  for (Named& target : backends()) {
    INFO(target.name);
    both.all.trained = count - 1;
    const std::string words =
        std::to_string(count) + " rows have a target, and at most " + std::to_string(count - 1) + " were expected";
    CHECK_THAT(refusal(*target.backend, both.all, both.draw), containing(words));
    both.all.trained = 0;
    CHECK_THAT(refusal(*target.backend, both.all, both.draw), containing("rows have a target"));
    both.all.trained = both.kTokens + 1;
    CHECK_THAT(refusal(*target.backend, both.all, both.draw), containing("expected at most"));
    both.all.trained = count;
    CHECK(refusal(*target.backend, both.all, both.draw).empty());
    const double before = decode(both.all.targets, 1200);
    encode(both.all.targets, 1200, kVocab);
    CHECK_THAT(refusal(*target.backend, both.all, both.draw),
               containing("target 9 at position 1200 is outside the vocabulary of 9"));
    encode(both.all.targets, 1200, before);
  }
}
