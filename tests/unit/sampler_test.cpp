#include "engine/generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>

#include "kernels/error.h"
#include "kernels/math/bf16.h"
#include "tests/catch.h"

using namespace qeng;

namespace {
View view(std::vector<float>& logits) { return View(logits.data(), DType::f32, {static_cast<int64_t>(logits.size())}); }

std::vector<double> softmax(const std::vector<float>& logits, double temperature) {
  std::vector<double> p;
  double total = 0;
  for (float z : logits) p.push_back(std::exp(z / temperature)), total += p.back();
  for (double& x : p) x /= total;
  return p;
}

// Draws n tokens; fails unless their frequencies fit p: chi-square over the tokens with p > 0, and none of the others.
void check_frequencies(const SamplingOptions& options, std::vector<float> logits, const std::vector<double>& p) {
  constexpr int kDraws = 20000;
  TokenSampler sampler(options);
  std::vector<int> count(p.size());
  for (int i = 0; i < kDraws; ++i) ++count[static_cast<size_t>(sampler.next(view(logits)))];
  double chi2 = 0;
  int degrees = -1;
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] == 0) {
      REQUIRE(count[i] == 0);
      continue;
    }
    chi2 += std::pow(count[i] - kDraws * p[i], 2) / (kDraws * p[i]);
    ++degrees;
  }
  // Five standard deviations of chi-square: the seed is fixed, a right sampler passes for good.
  REQUIRE(chi2 < degrees + 5 * std::sqrt(2.0 * std::max(degrees, 1)));
}

const std::vector<float> kLogits = {0.5f, 2.0f, -1.0f, 1.5f, 0.0f, 2.5f, -3.0f, 1.0f};

std::vector<double> only(std::vector<double> p, const std::set<size_t>& kept) {
  double total = 0;
  for (size_t i = 0; i < p.size(); ++i) total += kept.count(i) ? p[i] : 0;
  for (size_t i = 0; i < p.size(); ++i) p[i] = kept.count(i) ? p[i] / total : 0;
  return p;
}
}  // namespace

TEST_CASE("sampler: frequencies are those of the softmax at each temperature") {
  for (double temperature : {0.5, 1.0, 2.0}) {
    SamplingOptions options;
    options.temperature = temperature;
    options.seed = 7;
    check_frequencies(options, kLogits, softmax(kLogits, temperature));
  }
}

TEST_CASE("sampler: top-k, top-p and min-p leave the tokens they should, renormalised") {
  const auto p = softmax(kLogits, 1);  // by size: 5 (.41), 1 (.25), 3 (.15), 7 (.09), 0 (.06), 4, 2, 6
  SamplingOptions options;
  options.top_k = 3;
  check_frequencies(options, kLogits, only(p, {5, 1, 3}));
  options = {};
  options.top_p = 0.7;  // .41 + .25 < .7 <= + .15
  check_frequencies(options, kLogits, only(p, {5, 1, 3}));
  options.top_p = 0.01;  // always at least one
  check_frequencies(options, kLogits, only(p, {5}));
  options = {};
  options.min_p = 0.3;  // exp(-0.5) = .61, exp(-1) = .37, exp(-1.5) = .22 of the largest
  check_frequencies(options, kLogits, only(p, {5, 1, 3}));
  options.top_k = 2;
  options.top_p = 0.9;
  check_frequencies(options, kLogits, only(p, {5, 1}));
}

TEST_CASE("sampler: top-p over a large vocabulary keeps what a full sort keeps") {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> logits(5000);
  for (float& z : logits) z = normal(random);
  const auto p = softmax(logits, 1);
  std::vector<size_t> order(p.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] > p[b]; });
  std::set<size_t> kept;
  for (double reached = 0; reached < 0.4; reached += p[order[kept.size() - 1]]) kept.insert(order[kept.size()]);
  SamplingOptions options;
  options.top_p = 0.4;
  TokenSampler sampler(options);
  std::set<size_t> drawn;
  for (int i = 0; i < 20000; ++i) drawn.insert(static_cast<size_t>(sampler.next(view(logits))));
  for (size_t token : drawn) REQUIRE(kept.count(token) == 1);
  REQUIRE(drawn.size() > kept.size() * 9 / 10);
}

TEST_CASE("sampler: greedy takes the largest logit, the lowest id of equal ones") {
  SamplingOptions options;
  options.temperature = 0;
  TokenSampler sampler(options);
  std::vector<float> logits = {1, 3, 2, 3};
  REQUIRE(sampler.next(view(logits)) == 1);
  std::vector<bf16> half = {to_bf16(1), to_bf16(9), to_bf16(4), to_bf16(5)};
  REQUIRE(sampler.next(View(half.data(), DType::bf16, {4})) == 1);
  REQUIRE(sampler.next(View(half.data(), DType::bf16, {2, 2})) == 1);  // the last row: 4, 5
}

TEST_CASE("sampler: a temperature of next to nothing takes the largest logit, under every filter") {
  for (const double temperature : {1e-39, 1e-320, 3e-39, 1e-30}) {
    for (const int64_t top_k : {0, 2}) {
      for (const double p : {1.0, 0.5}) {
        SamplingOptions options;
        options.temperature = temperature, options.top_k = top_k, options.top_p = options.typical_p = p;
        std::vector<float> logits = {1, -INFINITY, 4.5f, 3};
        REQUIRE(TokenSampler(options).next(view(logits)) == 2);
      }
    }
  }
}

TEST_CASE("sampler: the repetition penalty divides positive and multiplies negative logits of accepted tokens") {
  SamplingOptions options;
  options.temperature = 0;
  options.repetition_penalty = 2;
  TokenSampler sampler(options);
  std::vector<float> logits = {4, 3, 1};
  REQUIRE(sampler.next(view(logits)) == 0);
  sampler.accept(0);
  REQUIRE(sampler.next(view(logits)) == 1);  // 2, 3, 1
  std::vector<float> negative = {-1, -1.5f, -4};
  REQUIRE(sampler.next(view(negative)) == 1);  // -2, -1.5, -4
  sampler.accept(1000);                        // outside these logits: harmless
  REQUIRE(sampler.next(view(logits)) == 1);
}

TEST_CASE("sampler: a seed gives the same tokens again, another seed others") {
  auto draw = [](uint64_t seed) {
    SamplingOptions options;
    options.seed = seed;
    TokenSampler sampler(options);
    std::vector<float> logits = kLogits;
    std::vector<int32_t> tokens;
    for (int i = 0; i < 50; ++i) tokens.push_back(sampler.next(view(logits)));
    return tokens;
  };
  REQUIRE(draw(1) == draw(1));
  REQUIRE(draw(1) != draw(2));
  REQUIRE(draw(1) != draw(1 + (uint64_t{1} << 32)));
}

TEST_CASE("sampler: refuses options out of range and logits that mean nothing") {
  auto refused = [](SamplingOptions options) { REQUIRE_THROWS_AS(TokenSampler(options), Error); };
  SamplingOptions options;
  refused((options.temperature = -1, options));
  refused((options = {}, options.top_k = -1, options));
  refused((options = {}, options.top_p = -0.1, options));
  refused((options = {}, options.top_p = 1.5, options));
  refused((options = {}, options.min_p = 2, options));
  refused((options = {}, options.repetition_penalty = 0, options));
  refused((options = {}, options.temperature = NAN, options));

  TokenSampler sampler(SamplingOptions{});
  std::vector<float> nan = {1, NAN}, infinite = {-INFINITY, -INFINITY}, some = {-INFINITY, 0, -INFINITY};
  REQUIRE_THROWS_AS(sampler.next(view(nan)), Error);
  REQUIRE_THROWS_AS(sampler.next(view(infinite)), Error);
  REQUIRE(sampler.next(view(some)) == 1);
  std::vector<int32_t> integers = {1, 2};
  REQUIRE_THROWS_AS(sampler.next(View(integers.data(), DType::i32, {2})), Error);
  REQUIRE_THROWS_AS(sampler.next(View(nan.data(), DType::f32, {0})), Error);
}

TEST_CASE("sampler: the largest logits alone give the token that all give, or say that they do not decide") {
  constexpr int64_t kVocab = 700, kTop = 48;
  std::mt19937 engine(7);
  const auto random = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(engine);
  };
  int decided = 0, undecided = 0, drawn = 0;
  for (int round = 0; round < 400; ++round) {
    const auto sometimes = [&](double value, double otherwise) { return random(0, 1) < 0.4 ? value : otherwise; };
    SamplingOptions options;
    options.seed = static_cast<uint64_t>(round), options.temperature = sometimes(0, random(0.2, 2));
    options.top_k = static_cast<int64_t>(random(1, 30)), options.top_p = sometimes(random(0.3, 1), 1);
    options.min_p = sometimes(random(0, 0.3), 0), options.typical_p = sometimes(random(0.3, 1), 1);
    options.repetition_penalty = sometimes(random(1, 1.5), 1), options.presence_penalty = sometimes(random(0, 2), 0);
    options.frequency_penalty = sometimes(random(0, 1), 0), options.penalty_window = round % 3 ? 0 : 20;
    options.dry.multiplier = sometimes(random(0, 3), 0), options.dry.allowed_length = 1;
    if (options.temperature > 0) options.xtc_probability = sometimes(0.7, 0);
    if (round % 4 == 0) options.logit_bias = {{static_cast<int32_t>(random(0, kVocab)), -random(0, 5)}};
    TokenSampler of_top(options), of_all(options);
    REQUIRE(!of_top.needs_all());
    for (int step = 0; step < 12; ++step, ++drawn) {
      std::vector<float> logits;
      for (int64_t i = 0; i < kVocab; ++i) logits.push_back(static_cast<float>(random(-8, 8)));
      if (round % 5 == 0)
        for (float& z : logits) z = std::nearbyint(z);  // many equal ones
      TokenMask mask(kVocab);
      for (int64_t i = 0; i < kVocab; ++i)
        if (random(0, 1) < (round % 2 ? 0.5 : 0.02) || i == 3) mask.allow(i);
      const TokenMask* given = round % 3 == 1 ? &mask : nullptr;
      std::vector<int32_t> order(kVocab);
      for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
      });
      order.resize(kTop);
      std::vector<float> values;
      for (const int32_t token : order) values.push_back(logits[static_cast<size_t>(token)]);
      const auto token = of_top.next_of_top({values, order, kVocab}, given);
      const int32_t wanted = of_all.next(view(logits), given);
      if (token) {
        REQUIRE(*token == wanted);
        ++decided;
      } else {
        REQUIRE(of_top.next(view(logits), given) == wanted);
        ++undecided;
      }
      of_top.accept(wanted), of_all.accept(wanted);
    }
  }
  CHECK(decided > drawn / 2);
  CHECK(undecided > drawn / 20);  // few may come, or many are equal
}

TEST_CASE("sampler: where a logit may rise, or all of them count, the largest alone decide nothing") {
  const std::vector<float> values = {2, 1};
  const std::vector<int32_t> tokens = {1, 0};
  const auto refuses = [&](const SamplingOptions& options) {
    TokenSampler sampler(options);
    return sampler.needs_all() && !sampler.next_of_top({values, tokens, 5});
  };
  SamplingOptions greedy;
  greedy.temperature = 0;
  CHECK(!refuses(greedy));
  SamplingOptions changed = greedy;
  CHECK((changed.repetition_penalty = 0.9, refuses(changed)));
  CHECK((changed = greedy, changed.presence_penalty = -1, refuses(changed)));
  CHECK((changed = greedy, changed.frequency_penalty = -1, refuses(changed)));
  CHECK((changed = greedy, changed.logit_bias = {{4, 1.0}}, refuses(changed)));
  CHECK((changed = greedy, changed.top_n_sigma = 1, refuses(changed)));
  CHECK((changed = greedy, changed.mirostat = 2, refuses(changed)));
  CHECK(refuses({}));  // all of them may come
  CHECK((changed = {}, changed.top_k = 129, refuses(changed)));
  TokenSampler sampler(greedy);
  CHECK(sampler.next_of_top({values, tokens, 5}) == 1);
  CHECK(!sampler.next_of_top({{}, {}, 5}));
  const std::vector<float> bad = {NAN, 1};
  CHECK(!sampler.next_of_top({bad, tokens, 5}));  // which next() refuses
}
