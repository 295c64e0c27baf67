// The sampler against its definition in float64, with full sorts: for the same uniform number the same token.
#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "engine/generate/logprobs.h"
#include "engine/generate/sampler.h"
#include "kernels/error.h"
#include "kernels/math/philox.h"
#include "tests/catch.h"

using namespace qeng;

namespace {
using Random = std::mt19937;
View view(std::vector<float>& logits) { return View(logits.data(), DType::f32, {static_cast<int64_t>(logits.size())}); }

double uniform(uint64_t seed, uint64_t draw) {
  const Philox words = philox4x32(philox_counter(0, 0x53414d50, 4 * draw), static_cast<uint32_t>(seed),
                                  static_cast<uint32_t>(seed >> 32));
  return static_cast<double>((uint64_t{words.word[0]} << 21) ^ (words.word[1] >> 11)) * 0x1p-53;
}

struct History {
  std::vector<int32_t> prompt, output;
};

using Distribution = std::vector<std::pair<double, size_t>>;  // probability, token

void normalise(Distribution& p) {
  double total = 0;
  for (const auto& [x, token] : p) total += x;
  for (auto& [x, token] : p) x /= total;
}

// Keeps the first of p (in its order) until they reach share.
void reach(Distribution& p, double share) {
  double sum = 0;
  size_t kept = 0;
  while (kept < p.size() && sum < share) sum += p[kept++].first;
  p.resize(std::max<size_t>(kept, 1));
  normalise(p);
}

// The distribution that the options leave of the logits, by id.
Distribution expected(const SamplingOptions& o, const std::vector<float>& logits, const TokenMask* mask,
                      const History& history) {
  std::vector<double> z(logits.begin(), logits.end());
  for (const auto& [token, bias] : o.logit_bias) z[static_cast<size_t>(token)] += bias;
  std::vector<std::pair<int32_t, bool>> all;
  for (const int32_t t : history.prompt) all.emplace_back(t, false);
  for (const int32_t t : history.output) all.emplace_back(t, true);
  if (o.penalty_window > 0 && all.size() > static_cast<size_t>(o.penalty_window)) {
    all.erase(all.begin(), all.end() - o.penalty_window);
  }
  std::map<int32_t, int> seen, output;
  for (const auto& [t, is_output] : all) ++seen[t], output[t] += is_output;
  for (const auto& [t, count] : seen) {
    double& x = z[static_cast<size_t>(t)];
    x = x > 0 ? x / o.repetition_penalty : x * o.repetition_penalty;
    x -= output[t] * o.frequency_penalty + (output[t] > 0) * o.presence_penalty;
  }
  Distribution p;
  const double top = *std::max_element(z.begin(), z.end());
  for (size_t i = 0; i < z.size(); ++i) {
    if (!mask || mask->allows(static_cast<int64_t>(i))) p.emplace_back(std::exp((z[i] - top) / o.temperature), i);
  }
  normalise(p);
  const auto by_size = [](const auto& a, const auto& b) {
    return a.first > b.first || (a.first == b.first && a.second < b.second);
  };
  std::sort(p.begin(), p.end(), by_size);
  if (o.top_k > 0 && p.size() > static_cast<size_t>(o.top_k)) p.resize(static_cast<size_t>(o.top_k)), normalise(p);
  if (o.top_p < 1) reach(p, o.top_p);
  const double least = p[0].first * o.min_p;
  std::erase_if(p, [&](const auto& x) { return x.first < least; });
  normalise(p);
  if (o.typical_p < 1) {
    double entropy = 0;
    for (const auto& [x, token] : p) entropy -= x > 0 ? x * std::log(x) : 0;
    std::sort(p.begin(), p.end(), [&](const auto& a, const auto& b) {
      const double da = std::abs(-std::log(a.first) - entropy), db = std::abs(-std::log(b.first) - entropy);
      return da < db || (da == db && a.second < b.second);
    });
    reach(p, o.typical_p);
  }
  std::sort(p.begin(), p.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return p;
}
}  // namespace

TEST_CASE("sampler: every option together gives the token of a float64 reference with full sorts") {
  Random r(17);
  const auto chance = [&](int n) { return r() % static_cast<unsigned>(n) == 0; };
  const auto real = [&](double low, double high) {
    return low + (high - low) * static_cast<double>(r()) / 4294967296.0;
  };
  int compared = 0, near = 0;
  for (int round = 0; round < 1500; ++round) {
    const size_t vocab = chance(4) ? 1000 : 5 + r() % 200;
    std::vector<float> logits(vocab);
    std::normal_distribution<float> normal(0, chance(2) ? 1.0f : 4.0f);
    for (float& z : logits) z = normal(r);
    SamplingOptions o;
    o.seed = r();
    o.temperature = chance(3) ? 1 : real(0.3, 2);
    if (chance(2)) o.top_k = 1 + static_cast<int64_t>(r() % vocab);
    if (chance(2)) o.top_p = real(0.05, 1);
    if (chance(3)) o.min_p = real(0, 0.5);
    if (chance(3)) o.typical_p = real(0.1, 1);
    if (chance(3)) o.repetition_penalty = real(0.8, 1.5);
    if (chance(3)) o.presence_penalty = real(-1, 2);
    if (chance(3)) o.frequency_penalty = real(-1, 2);
    if (chance(3)) o.penalty_window = 1 + static_cast<int64_t>(r() % 12);
    const auto token = [&] { return static_cast<int32_t>(r() % std::min<size_t>(vocab, 30)); };
    for (int i = 0; i < 3 && chance(2); ++i) o.logit_bias.emplace_back(token(), real(-5, 5));
    std::sort(o.logit_bias.begin(), o.logit_bias.end());
    o.logit_bias.erase(
        std::unique(o.logit_bias.begin(), o.logit_bias.end(), [](auto& a, auto& b) { return a.first == b.first; }),
        o.logit_bias.end());
    TokenMask mask(static_cast<int64_t>(vocab) + (chance(2) ? 0 : 64) - (chance(4) ? 3 : 0));
    for (int64_t i = 0; i < mask.vocab; ++i) {
      if (chance(3)) mask.allow(i);
    }
    const bool masked = chance(3) && mask.count() > 64;
    History history;
    TokenSampler sampler(o);
    for (int i = 0; i < 6; ++i) history.prompt.push_back(token()), sampler.accept_prompt(history.prompt.back());
    for (uint64_t draw = 0; draw < 4; ++draw) {
      const Distribution p = expected(o, logits, masked ? &mask : nullptr, history);
      const int32_t drawn = sampler.next(view(logits), masked ? &mask : nullptr);
      double u = uniform(o.seed, draw), below = 0;
      size_t i = 0;
      while (i + 1 < p.size() && below + p[i].first <= u) below += p[i++].first;
      // f32 weights: at an edge the neighbour may come; and a set may differ by a token at the edge of a filter.
      const bool at_edge = u - below < 1e-4 || below + p[i].first - u < 1e-4;
      if (static_cast<size_t>(drawn) != p[i].second) ++near;
      if (!at_edge && static_cast<size_t>(drawn) != p[i].second) {
        INFO("round " << round << " drawn " << drawn << " expected " << p[i].second << " u " << u << " below " << below
                      << " of " << p[i].first);
        REQUIRE(static_cast<size_t>(drawn) == p[i].second);
      }
      ++compared;
      history.output.push_back(drawn);
      sampler.accept(drawn);
    }
  }
  CHECK(near * 100 < compared);
}

TEST_CASE("sampler: greedy follows biases, penalties and the mask") {
  SamplingOptions o;
  o.temperature = 0;
  o.logit_bias = {{2, 1.5}};
  o.presence_penalty = 1;
  o.frequency_penalty = 0.5;
  TokenSampler sampler(o);
  std::vector<float> logits = {3, 2.5f, 2, 0};  // with the bias 3, 2.5, 3.5, 0
  REQUIRE(sampler.next(view(logits)) == 2);
  sampler.accept_prompt(2);  // neither penalty looks at the prompt
  REQUIRE(sampler.next(view(logits)) == 2);
  sampler.accept(2);  // 3.5 - 1.5
  REQUIRE(sampler.next(view(logits)) == 0);
  TokenMask mask(4);
  mask.allow(1), mask.allow(3);
  REQUIRE(sampler.next(view(logits), &mask) == 1);
  TokenMask none(4);
  REQUIRE_THROWS_AS(sampler.next(view(logits), &none), Error);
  o.logit_bias = {{4, 1}};
  REQUIRE_THROWS_AS(TokenSampler(o).next(view(logits)), Error);
  o.logit_bias = {{0, NAN}};
  REQUIRE_THROWS_AS(TokenSampler(o), Error);
}

TEST_CASE("exp_of_negative is exp to 2e-7, and 0 far down") {
  for (double x = 0; x > -87; x -= 0.00737) {
    const double exact = std::exp(static_cast<double>(static_cast<float>(x)));
    REQUIRE(std::abs(exp_of_negative(static_cast<float>(x)) - exact) <= 2e-7 * exact + 1.2e-38);
  }
  REQUIRE(exp_of_negative(-INFINITY) == 0);
  REQUIRE(exp_of_negative(-88) == 0);
  REQUIRE(exp_of_negative(0) == 1);
}

TEST_CASE("logprobs: of the token, of the most probable, and the divergence of two rows") {
  std::vector<float> p = {1, 3, 3, -2, 0, 2, 2, 5}, other = {1, 1, 1, 1, 1, 4, 1, 1};
  const View rows(p.data(), DType::f32, {2, 4}), others(other.data(), DType::f32, {2, 4});
  const std::vector<int32_t> tokens = {0, -1};
  const auto found = logprobs(rows, tokens, 2);
  const double sum = std::log(std::exp(1.0) + 2 * std::exp(3.0) + std::exp(-2.0));
  CHECK(found[0].logprob == Approx(1 - sum));
  CHECK(found[0].top[0].token == 1);
  CHECK(found[0].top[1].token == 2);
  CHECK(found[0].top[1].logprob == Approx(3 - sum));
  CHECK(found[1].top[0].token == 3);
  const auto difference = compare_logits(others, rows);  // the first row of `others` is uniform
  CHECK(difference[0].divergence == Approx(-std::log(4.0) - (1 + 3 + 3 - 2 - 4 * sum) / 4));
  CHECK(!difference[0].same_top);
  CHECK(compare_logits(rows, rows)[1].divergence == Approx(0).margin(1e-15));
  CHECK(compare_logits(rows, rows)[1].same_top);
  CHECK_THROWS_AS(logprobs(rows, std::vector<int32_t>{0, 4}, 0), Error);
  CHECK_THROWS_AS(logprobs(rows, std::vector<int32_t>{0}, 0), Error);
}
