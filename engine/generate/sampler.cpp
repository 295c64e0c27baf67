#include "engine/generate/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "engine/generate/logprobs.h"
#include "kernels/error.h"
#include "kernels/math/philox.h"
#include "kernels/view_text.h"

namespace qeng {
namespace {
constexpr float kNone = -std::numeric_limits<float>::infinity();

// Large first; of equal ones the lower id, so that the order does not depend on the sort.
constexpr auto kLarger = [](const auto& a, const auto& b) {
  return a.weight > b.weight || (a.weight == b.weight && a.token < b.token);
};

constexpr uint32_t kTokens = 0x53414d50;   // "SAMP": subsequences apart from dropout's and the initial values'
constexpr uint32_t kChances = 0x58544353;  // "XTCS"

// Draw n of a seed: 53 bits of one Philox counter.
double uniform(uint64_t seed, uint64_t draw, uint32_t subsequence) {
  const Philox words = philox4x32(philox_counter(0, subsequence, 4 * draw), static_cast<uint32_t>(seed),
                                  static_cast<uint32_t>(seed >> 32));
  return static_cast<double>((uint64_t{words.word[0]} << 21) ^ (words.word[1] >> 11)) * 0x1p-53;
}

void check(bool good, const char* option, double value, const char* range) {
  if (!good) fail("value", "sampler: ", option, " is ", value, ", expected ", range);
}

// Of items put in order, the last of the fewest first ones whose weights reach `share`, by halving rather than sorting.
template <class Item, class Before>
Item last_to_reach(std::vector<Item> items, Before before, double share) {
  auto begin = items.begin(), end = items.end();
  while (end - begin > 32) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, before);
    double first = 0;
    for (auto i = begin; i != middle; ++i) first += i->weight;
    if (first >= share)
      end = middle;
    else
      share -= first, begin = middle;
  }
  std::sort(begin, end, before);
  auto last = begin;
  for (share -= last->weight; share > 0 && last + 1 != end; share -= last->weight) ++last;
  return *last;
}

template <class List>
double total_of(const List& list) {
  double total = 0;
  for (const auto& candidate : list) total += candidate.weight;
  return total;
}
}  // namespace

TokenSampler::TokenSampler(const SamplingOptions& options) : options_(options), mu_(2 * options.mirostat_tau) {
  check(std::isfinite(options.temperature) && options.temperature >= 0, "temperature", options.temperature,
        "0 or more");
  check(options.top_k >= 0, "top_k", static_cast<double>(options.top_k), "0 (all) or more");
  check(options.top_p >= 0 && options.top_p <= 1, "top_p", options.top_p, "0 (the most probable) to 1");
  check(options.min_p >= 0 && options.min_p <= 1, "min_p", options.min_p, "0 to 1");
  check(options.typical_p > 0 && options.typical_p <= 1, "typical_p", options.typical_p, "more than 0, at most 1");
  check(std::isfinite(options.repetition_penalty) && options.repetition_penalty > 0, "repetition_penalty",
        options.repetition_penalty, "more than 0");
  check(std::isfinite(options.presence_penalty), "presence_penalty", options.presence_penalty, "a number");
  check(std::isfinite(options.frequency_penalty), "frequency_penalty", options.frequency_penalty, "a number");
  check(options.penalty_window >= 0, "penalty_window", static_cast<double>(options.penalty_window), "0 (all) or more");
  check(std::isfinite(options.dry.multiplier) && options.dry.multiplier >= 0, "dry_multiplier", options.dry.multiplier,
        "0 (off) or more");
  check(std::isfinite(options.dry.base) && options.dry.base >= 1, "dry_base", options.dry.base, "1 or more");
  check(options.dry.allowed_length >= 0, "dry_allowed_length", static_cast<double>(options.dry.allowed_length),
        "0 or more");
  check(options.dry.last_n >= -1, "dry_penalty_last_n", static_cast<double>(options.dry.last_n), "-1 (all) or more");
  check(std::isfinite(options.top_n_sigma) && options.top_n_sigma >= 0, "top_n_sigma", options.top_n_sigma,
        "0 (off) or more");
  check(options.xtc_probability >= 0 && options.xtc_probability <= 1, "xtc_probability", options.xtc_probability,
        "0 to 1");
  check(options.xtc_threshold >= 0 && options.xtc_threshold <= 1, "xtc_threshold", options.xtc_threshold,
        "0 to 1 (over 0.5: off)");
  check(options.xtc_probability == 0 || options.temperature > 0, "temperature", options.temperature,
        "more than 0 beside xtc_probability");
  check(options.mirostat >= 0 && options.mirostat <= 2, "mirostat", static_cast<double>(options.mirostat),
        "0 (off), 1 or 2");
  check(std::isfinite(options.mirostat_tau) && options.mirostat_tau >= 0, "mirostat_tau", options.mirostat_tau,
        "0 or more");
  check(std::isfinite(options.mirostat_eta) && options.mirostat_eta >= 0, "mirostat_eta", options.mirostat_eta,
        "0 or more");
  if (options.mirostat > 0) {
    const auto alone = [](bool off, const char* option) {
      if (!off)
        fail("value", "sampler: ", option,
             " is not used beside mirostat, which chooses by itself; leave one of them out");
    };
    alone(options.top_k == 0, "top_k"), alone(options.top_p == 1, "top_p"), alone(options.min_p == 0, "min_p");
    alone(options.typical_p == 1, "typical_p"), alone(options.top_n_sigma == 0, "top_n_sigma");
    alone(options.xtc_probability == 0, "xtc_probability"), alone(options.dry.multiplier == 0, "dry_multiplier");
    alone(options.repetition_penalty == 1, "repetition_penalty"),
        alone(options.presence_penalty == 0, "presence_penalty");
    alone(options.frequency_penalty == 0, "frequency_penalty");
  }
  for (const auto& [token, bias] : options.logit_bias) {
    check(token >= 0, "a token of logit_bias", token, "0 or more");
    check(std::isfinite(bias), "a bias", bias, "a number (-100 all but forbids a token)");
  }
}

void TokenSampler::accept(int32_t token) {
  if (options_.mirostat > 0) {
    const auto at =
        std::find_if(candidates_.begin(), candidates_.end(), [&](const Candidate& c) { return c.token == token; });
    if (at != candidates_.end()) {
      const double surprise = -std::log2(at->weight / total_of(candidates_));
      mu_ -= options_.mirostat_eta * (surprise - options_.mirostat_tau);
    }
  }
  remember(token, true);
}

void TokenSampler::remember(int32_t token, bool output) {
  if (options_.dry.multiplier > 0) {
    history_.push_back(token);
    const auto most = static_cast<size_t>(options_.dry.last_n);
    if (options_.dry.last_n >= 0 && history_.size() > 2 * most + 64)
      history_.erase(history_.begin(), history_.end() - options_.dry.last_n);
  }
  Count& count = counts_[token];
  ++count.seen, count.output += output;
  if (options_.penalty_window == 0) return;
  window_.emplace_back(token, output);
  if (window_.size() <= static_cast<size_t>(options_.penalty_window)) return;
  const auto [oldest, was_output] = window_.front();
  window_.pop_front();
  Count& left = counts_[oldest];
  --left.seen, left.output -= was_output;
  if (left.seen == 0) counts_.erase(oldest);
}

void TokenSampler::read(const View& logits) {
  if (logits.rank < 1 || logits.rank > 2 || logits.elements() == 0) {
    fail("shape", "sampler: logits are ", shape_text(logits), ", expected [vocab] or [tokens, vocab]");
  }
  const int64_t rows = logits.elements() / logits.columns();
  read_logits(logits, rows - 1, "sampler", logits_);
}

void TokenSampler::adjust() {
  const auto vocab = static_cast<int64_t>(logits_.size());
  for (const auto& [token, bias] : options_.logit_bias) {
    if (token >= vocab) fail("value", "sampler: logit_bias is of token ", token, ", and there are ", vocab, " logits");
    logits_[static_cast<size_t>(token)] += static_cast<float>(bias);
  }
  adjust_by_counts();
  for (const auto& [token, penalty] : dry_penalties(history_, options_.dry)) {
    if (token >= 0 && token < vocab) logits_[static_cast<size_t>(token)] -= penalty;
  }
}

void TokenSampler::adjust_by_counts() {
  const auto vocab = static_cast<int64_t>(logits_.size());
  const auto penalty = static_cast<float>(options_.repetition_penalty);
  if (penalty == 1 && options_.presence_penalty == 0 && options_.frequency_penalty == 0) return;
  for (const auto& [token, count] : counts_) {
    if (token < 0 || token >= vocab) continue;
    float& z = logits_[static_cast<size_t>(token)];
    z = z > 0 ? z / penalty : z * penalty;
    if (count.output == 0) continue;
    z -= static_cast<float>(options_.presence_penalty + options_.frequency_penalty * static_cast<double>(count.output));
  }
}

void TokenSampler::apply(const TokenMask& mask) {
  weights_.assign(logits_.size(), kNone);
  for (size_t w = 0; w < mask.words.size(); ++w) {
    for (uint64_t bits = mask.words[w]; bits != 0; bits &= bits - 1) {
      const size_t token = w * 64 + static_cast<size_t>(std::countr_zero(bits));
      if (token < logits_.size()) weights_[token] = logits_[token];
    }
  }
  logits_.swap(weights_);
}

int32_t TokenSampler::largest() const {
  const float top = largest_logit(logits_);
  return static_cast<int32_t>(std::find(logits_.begin(), logits_.end(), top) - logits_.begin());  // the first of equals
}

void TokenSampler::weigh(float top) {
  weights_.resize(logits_.size());
  const auto scale = static_cast<float>(1 / options_.temperature);
  const float* z = logits_.data();
  float* weight = weights_.data();
  const size_t count = logits_.size();
#pragma omp simd
  for (size_t i = 0; i < count; ++i) weight[i] = exp_of_negative((z[i] - top) * scale);
}

void TokenSampler::gather(float least) {
  candidates_.clear();
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] >= least && weights_[i] > 0) candidates_.push_back({weights_[i], static_cast<int32_t>(i)});
  }
}

// Keeps a bound under which nothing can be among the k largest, raised whenever many have passed it: of logits in any
// ordinary order few do. The candidates hold logits until the end.
void TokenSampler::keep_top_k(float top) {
  const auto k = static_cast<size_t>(options_.top_k);
  const size_t room = 2 * k + 64;
  float bound = kNone;
  const auto cut = [&] {
    std::nth_element(candidates_.begin(), candidates_.begin() + options_.top_k - 1, candidates_.end(), kLarger);
    candidates_.resize(k);
    bound = candidates_[k - 1].weight;
  };
  candidates_.clear();
  for (size_t i = 0; i < logits_.size(); ++i) {
    if (logits_[i] <= bound) continue;  // of equal logits the first id stays
    candidates_.push_back({logits_[i], static_cast<int32_t>(i)});
    if (candidates_.size() == room) cut();
  }
  if (candidates_.size() > k) cut();
  weigh_candidates(top);
}

void TokenSampler::weigh_candidates(float top) {
  const auto scale = static_cast<float>(1 / options_.temperature);
  for (Candidate& candidate : candidates_) candidate.weight = exp_of_negative((candidate.weight - top) * scale);
  std::erase_if(candidates_, [](const Candidate& candidate) { return candidate.weight == 0; });
  std::sort(candidates_.begin(), candidates_.end(),
            [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
}

void TokenSampler::keep_top_p(double total) {
  const Candidate last = last_to_reach(candidates_, kLarger, options_.top_p * total);
  std::erase_if(candidates_, [&](const Candidate& candidate) { return kLarger(last, candidate); });
}

void TokenSampler::keep_typical(float top) {
  struct Surprise {
    double distance;
    float weight;
    int32_t token;
  };
  const auto nearer = [](const Surprise& a, const Surprise& b) {
    return a.distance < b.distance || (a.distance == b.distance && a.token < b.token);
  };
  const double total = total_of(candidates_), log_total = std::log(total);
  const auto information = [&](const Candidate& c) {
    return log_total - (static_cast<double>(logits_[static_cast<size_t>(c.token)]) - top) / options_.temperature;
  };
  double entropy = 0;
  for (const Candidate& c : candidates_) entropy += c.weight / total * information(c);
  std::vector<Surprise> all;
  all.reserve(candidates_.size());
  for (const Candidate& c : candidates_) all.push_back({std::abs(information(c) - entropy), c.weight, c.token});
  const Surprise last = last_to_reach(all, nearer, options_.typical_p * total);
  std::erase_if(all, [&](const Surprise& surprise) { return nearer(last, surprise); });
  candidates_.clear();
  for (const Surprise& surprise : all) candidates_.push_back({surprise.weight, surprise.token});
}

int32_t TokenSampler::draw() {
  double left = uniform(options_.seed, draws_++, kTokens) * total_of(candidates_);
  for (const Candidate& candidate : candidates_) {
    left -= candidate.weight;
    if (left < 0) return candidate.token;
  }
  return candidates_.back().token;  // rounding of the sum
}

// Of the population of logits that there are, as llama.cpp's.
void TokenSampler::keep_top_n_sigma(float top) {
  double sum = 0, squares = 0;
  size_t count = 0;
  for (const float z : logits_) {
    if (z != kNone) sum += z, ++count;
  }
  const double mean = sum / static_cast<double>(count);
  for (const float z : logits_) {
    if (z != kNone) squares += (z - mean) * (z - mean);
  }
  const auto least = static_cast<float>(top - options_.top_n_sigma * std::sqrt(squares / static_cast<double>(count)));
  for (float& z : logits_) {
    if (z < least) z = kNone;
  }
}

void TokenSampler::keep_xtc(float top) {
  if (options_.xtc_threshold > 0.5 || candidates_.size() < 2) return;  // two cannot reach it
  if (uniform(options_.seed, draws_, kChances) >= options_.xtc_probability) return;
  const auto plain = [&](const Candidate& c) {  // without the temperature
    return Candidate{exp_of_negative(logits_[static_cast<size_t>(c.token)] - top), c.token};
  };
  double total = 0;
  for (const Candidate& c : candidates_) total += plain(c).weight;
  Candidate last = {kNone, 0};  // of those that reach the threshold the least
  for (const Candidate& c : candidates_) {
    const Candidate one = plain(c);
    if (one.weight >= options_.xtc_threshold * total && (last.weight == kNone || kLarger(last, one))) last = one;
  }
  if (last.weight != kNone)
    std::erase_if(candidates_, [&](const Candidate& candidate) { return kLarger(plain(candidate), last); });
}

void TokenSampler::keep_by_mirostat() {
  constexpr size_t kEstimate = 100;  // tokens that the exponent is estimated from
  std::sort(candidates_.begin(), candidates_.end(), kLarger);
  size_t kept = 0;
  if (options_.mirostat == 2) {
    const double total = total_of(candidates_);
    while (kept < candidates_.size() && -std::log2(candidates_[kept].weight / total) <= mu_) ++kept;
  } else {
    double products = 0, squares = 0;
    for (size_t i = 0; i + 1 < std::min(kEstimate, candidates_.size()); ++i) {
      const double t = std::log(static_cast<double>(i + 2) / static_cast<double>(i + 1));
      products += t * std::log(candidates_[i].weight / candidates_[i + 1].weight), squares += t * t;
    }
    const double exponent = products / squares, epsilon = exponent - 1;
    const double vocab = static_cast<double>(logits_.size());
    const double k = std::pow(epsilon * std::exp2(mu_) / (1 - std::pow(vocab, -epsilon)), 1 / exponent);
    kept = k >= vocab ? candidates_.size() : k >= 1 ? static_cast<size_t>(k) : 1;  // 1 also where there is no such k
  }
  candidates_.resize(std::clamp<size_t>(kept, 1, candidates_.size()));
}

void TokenSampler::choose(const View& logits, const TokenMask* mask) {
  cleared_ = false;
  read(logits);
  adjust();
  if (mask) apply(*mask);
  const int32_t best = largest();
  const float top = logits_[static_cast<size_t>(best)];
  if (!std::isfinite(top)) {
    fail("value", "sampler: no logit ", mask ? "of a token that may come " : "", "is finite",
         mask && mask->count() == 0 ? "; the mask allows no token" : "");
  }
  if (greedy()) {
    candidates_.assign(1, {1, best});
    return;
  }
  if (options_.top_n_sigma > 0) keep_top_n_sigma(top);
  // Each filter leaves the candidates in the order of their ids.
  if (options_.top_k > 0 && static_cast<size_t>(options_.top_k) < logits_.size()) {
    keep_top_k(top);
    if (options_.top_p < 1) keep_top_p(total_of(candidates_));
  } else {
    weigh(top);
    if (options_.top_p < 1) {
      // What weighs less than `least` weighs together at most 1 - top_p of all, so the most probable reach top_p
      // without it.
      double total = 0;
      for (const float weight : weights_) total += weight;
      gather(static_cast<float>((1 - options_.top_p) * total / static_cast<double>(weights_.size())));
      keep_top_p(total);
    } else {
      gather(static_cast<float>(options_.min_p));
    }
  }
  filter(top);
}

void TokenSampler::filter(float top) {
  const auto least = static_cast<float>(options_.min_p);
  std::erase_if(candidates_, [&](const Candidate& candidate) { return candidate.weight < least; });
  if (options_.typical_p < 1) keep_typical(top);
  if (options_.xtc_probability > 0) keep_xtc(top);
  if (options_.mirostat > 0) keep_by_mirostat();
}

int32_t TokenSampler::next(const View& logits, const TokenMask* mask) {
  choose(logits, mask);
  return draw();
}

bool TokenSampler::greedy() const {
  return 1 / options_.temperature > std::numeric_limits<float>::max();  // as 0: weights would be 0 * inf
}

// Others than the largest stay below them only while nothing is added to a logit.
bool TokenSampler::needs_all() const {
  const bool raises = options_.repetition_penalty < 1 || options_.presence_penalty < 0 ||
                      options_.frequency_penalty < 0 ||
                      std::any_of(options_.logit_bias.begin(), options_.logit_bias.end(),
                                  [](const auto& bias) { return bias.second > 0; });
  return raises || options_.mirostat > 0 || options_.top_n_sigma > 0 ||
         (!greedy() && (options_.top_k == 0 || options_.top_k > kMostOfTop));
}

std::optional<int32_t> TokenSampler::next_of_top(const TopLogits& top, const TokenMask* mask) {
  if (needs_all() || top.values.empty() || !std::isfinite(top.values.front()) ||
      (!greedy() && options_.top_k >= top.vocab))
    return std::nullopt;
  for (const auto& [token, bias] : options_.logit_bias)
    if (token >= top.vocab) return std::nullopt;  // an error of next()
  // The logits of those that are there; of the rest nothing is known, and nothing is read.
  if (!cleared_ || logits_.size() != static_cast<size_t>(top.vocab))
    logits_.assign(static_cast<size_t>(top.vocab), kNone);
  for (size_t i = 0; i < top.values.size(); ++i) logits_[static_cast<size_t>(top.tokens[i])] = top.values[i];
  const std::optional<int32_t> drawn = draw_of_top(top, mask);
  for (const int32_t token : top.tokens) logits_[static_cast<size_t>(token)] = kNone;
  cleared_ = true;
  return drawn;
}

std::optional<int32_t> TokenSampler::draw_of_top(const TopLogits& top, const TokenMask* mask) {
  const auto whole = static_cast<int64_t>(top.values.size()) == top.vocab;
  const auto wanted = static_cast<size_t>(greedy() ? 1 : options_.top_k);
  adjust();
  candidates_.clear();
  for (const int32_t token : top.tokens)
    if (!mask || mask->allows(token)) candidates_.push_back({logits_[static_cast<size_t>(token)], token});
  std::sort(candidates_.begin(), candidates_.end(), kLarger);
  if (candidates_.size() < wanted && !whole) return std::nullopt;
  candidates_.resize(std::min(candidates_.size(), wanted));
  // What is not there is at most as large as the least that is.
  if (candidates_.empty() || !std::isfinite(candidates_.front().weight) ||
      (!whole && candidates_.back().weight <= top.values.back()))
    return std::nullopt;
  const float largest = candidates_.front().weight;
  if (greedy()) {
    candidates_.front().weight = 1;
    return draw();
  }
  weigh_candidates(largest);
  if (options_.top_p < 1) keep_top_p(total_of(candidates_));
  filter(largest);
  return draw();
}

std::vector<std::pair<int32_t, double>> TokenSampler::distribution(const View& logits, const TokenMask* mask) {
  choose(logits, mask);
  const double total = total_of(candidates_);
  std::vector<std::pair<int32_t, double>> all;
  for (const Candidate& candidate : candidates_) all.emplace_back(candidate.token, candidate.weight / total);
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace qeng
