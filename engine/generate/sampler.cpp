#include "engine/generate/sampler.h"

#include <algorithm>
#include <cmath>

#include "kernels/error.h"
#include "kernels/math/bf16.h"
#include "kernels/math/philox.h"

namespace qeng {
namespace {

// Large first; of equal logits the lower id, so that the order does not depend on the sort.
constexpr auto kLarger = [](const auto& a, const auto& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
};

// Draw n of a seed: 53 bits of one Philox counter.
double uniform(uint64_t seed, uint64_t draw) {
  constexpr uint32_t kStream = 0x53414d50;  // "SAMP": apart from dropout's and the initial values' streams
  const Philox words = philox4x32(philox_counter(0, kStream, 4 * draw), static_cast<uint32_t>(seed),
                                  static_cast<uint32_t>(seed >> 32));
  return static_cast<double>((uint64_t{words.word[0]} << 21) ^ (words.word[1] >> 11)) * 0x1p-53;
}

void check(bool good, const char* option, double value, const char* range) {
  if (!good) fail("value", "sampler: ", option, " is ", value, ", expected ", range);
}
}  // namespace

TokenSampler::TokenSampler(const SamplingOptions& options) : options_(options) {
  check(std::isfinite(options.temperature) && options.temperature >= 0, "temperature", options.temperature, "0 or more");
  check(options.top_k >= 0, "top_k", static_cast<double>(options.top_k), "0 (all) or more");
  check(options.top_p > 0 && options.top_p <= 1, "top_p", options.top_p, "more than 0, at most 1");
  check(options.min_p >= 0 && options.min_p <= 1, "min_p", options.min_p, "0 to 1");
  check(std::isfinite(options.repetition_penalty) && options.repetition_penalty > 0, "repetition_penalty",
        options.repetition_penalty, "more than 0");
}

void TokenSampler::read(const View& logits) {
  if (logits.rank < 1 || logits.rank > 2 || logits.elements() == 0) {
    fail("shape", "sampler: logits are ", shape_text(logits), ", expected [vocab] or [tokens, vocab]");
  }
  const int64_t vocab = logits.columns(), last = logits.elements() - vocab;
  logits_.resize(static_cast<size_t>(vocab));
  for (int64_t i = 0; i < vocab; ++i) {
    float& z = logits_[static_cast<size_t>(i)];
    if (logits.dtype == DType::f32) z = logits.as<float>()[last + i];
    else if (logits.dtype == DType::bf16) z = to_f32(logits.as<bf16>()[last + i]);
    else fail("dtype", "sampler: logits are ", shape_text(logits), ", expected f32 or bf16");
    if (std::isnan(z)) fail("value", "sampler: the logit of token ", i, " is NaN: the model's weights or activations overflowed");
  }
}

void TokenSampler::penalise() {
  const float penalty = static_cast<float>(options_.repetition_penalty);
  if (penalty == 1) return;
  for (const int32_t token : accepted_) {
    if (token < 0 || static_cast<size_t>(token) >= logits_.size()) continue;
    float& z = logits_[static_cast<size_t>(token)];
    z = z > 0 ? z / penalty : z * penalty;
  }
}

int32_t TokenSampler::largest() const {
  return static_cast<int32_t>(std::max_element(logits_.begin(), logits_.end()) - logits_.begin());  // the first of equals
}

// Leaves in candidates_ what may be drawn, with weights.
void TokenSampler::filter() {
  const float top = logits_[static_cast<size_t>(largest())];
  candidates_.clear();
  for (size_t i = 0; i < logits_.size(); ++i) {
    const double weight = std::exp((static_cast<double>(logits_[i]) - top) / options_.temperature);
    if (weight > 0) candidates_.push_back({logits_[i], static_cast<int32_t>(i), weight});
  }
  if (options_.top_k > 0 && candidates_.size() > static_cast<size_t>(options_.top_k)) {
    std::nth_element(candidates_.begin(), candidates_.begin() + options_.top_k, candidates_.end(), kLarger);
    candidates_.resize(static_cast<size_t>(options_.top_k));
  }
  if (options_.top_p < 1) {
    double total = 0;
    for (const Candidate& candidate : candidates_) total += candidate.weight;
    // Sorts only as many of the largest as it takes, most often a few of a hundred thousand.
    double reached = 0;
    size_t kept = 0;
    for (size_t sorted = 0; reached < options_.top_p * total && kept < candidates_.size();) {
      const size_t more = std::min(candidates_.size(), std::max<size_t>(64, 2 * sorted));
      const auto begin = candidates_.begin() + static_cast<std::ptrdiff_t>(sorted);
      std::partial_sort(begin, candidates_.begin() + static_cast<std::ptrdiff_t>(more), candidates_.end(), kLarger);
      sorted = more;
      while (kept < sorted && reached < options_.top_p * total) reached += candidates_[kept++].weight;
    }
    candidates_.resize(kept);
  }
  std::erase_if(candidates_, [&](const Candidate& candidate) { return candidate.weight < options_.min_p; });
  // In order of ids, so that the draw does not depend on how the filters arranged them.
  std::sort(candidates_.begin(), candidates_.end(), [](const auto& a, const auto& b) { return a.token < b.token; });
}

int32_t TokenSampler::next(const View& logits) {
  read(logits);
  penalise();
  const int32_t best = largest();
  if (!std::isfinite(logits_[static_cast<size_t>(best)])) fail("value", "sampler: no logit is finite");
  if (options_.temperature == 0) return best;
  filter();
  double total = 0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  double left = uniform(options_.seed, draws_++) * total;
  for (const Candidate& candidate : candidates_) {
    left -= candidate.weight;
    if (left < 0) return candidate.token;
  }
  return candidates_.back().token;  // rounding of the sum
}

}  // namespace qeng
