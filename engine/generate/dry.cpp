#include "engine/generate/dry.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>

#include "kernels/error.h"

namespace qeng {
namespace {
constexpr size_t kMostBytes = 40, kMostTail = 20;  // of a breaker, as llama.cpp cuts them
constexpr size_t kMostBreakers = 64;               // each is looked for in every token of the vocabulary
constexpr double kLogMost = 88.7228391;            // of the largest float

// How many tokens from the end on a repetition may reach: up to the last breaker.
size_t reach(std::span<const int32_t> tokens, const SequenceBreakers& breakers) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto found = breakers.find(tokens[tokens.size() - 1 - i]);
    if (found == breakers.end()) continue;
    int64_t longest = -1;
    for (const std::vector<int32_t>& tail : found->second) {
      const auto length = static_cast<int64_t>(tail.size());
      if (length > longest && tail.size() <= i &&
          std::equal(tail.begin(), tail.end(), tokens.end() - static_cast<int64_t>(i)))
        longest = length;
    }
    if (longest >= 0) return i - static_cast<size_t>(longest);
  }
  return tokens.size();
}
}  // namespace

std::shared_ptr<const SequenceBreakers> sequence_breakers(const Tokenizer& tokenizer,
                                                          const std::vector<std::string>& strings) {
  // Many requests have the same ones, and to find them looks at the whole vocabulary.
  static std::mutex mutex;
  static std::pair<uint64_t, std::vector<std::string>> of;
  static std::shared_ptr<const SequenceBreakers> latest;
  if (strings.size() > kMostBreakers)
    fail("value", "sampler: ", strings.size(), " dry_sequence_breakers, at most ", kMostBreakers, " are looked for");
  const std::lock_guard lock(mutex);
  if (latest && of == std::pair(tokenizer.hash(), strings)) return latest;
  auto all = std::make_shared<SequenceBreakers>();
  for (const std::string& given : strings) {
    if (given.empty()) fail("value", "sampler: a string of dry_sequence_breakers is empty");
    const std::string text = given.substr(0, kMostBytes);
    std::map<size_t, std::vector<int32_t>> tails;  // by how much of the text stands before them
    const auto tail = [&](size_t before) -> const std::vector<int32_t>& {
      const auto [found, fresh] = tails.try_emplace(before);
      if (fresh && before < text.size()) {
        found->second = tokenizer.encode(text.substr(before), false);
        if (found->second.size() > kMostTail) found->second.resize(kMostTail);
      }
      return found->second;
    };
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
      const std::string_view bytes = tokenizer.bytes(id);
      const auto add = [&](size_t before) {
        std::vector<std::vector<int32_t>>& known = (*all)[id];
        if (std::find(known.begin(), known.end(), tail(before)) == known.end()) known.push_back(tail(before));
      };
      if (bytes.find(text) != std::string_view::npos) {
        add(text.size());
        continue;
      }
      for (size_t at = bytes.size() - std::min(bytes.size(), text.size()); at < bytes.size(); ++at) {
        if (std::string_view(text).starts_with(bytes.substr(at))) add(bytes.size() - at);
      }
    }
  }
  of = {tokenizer.hash(), strings};
  latest = all;
  return latest;
}

std::unordered_map<int32_t, float> dry_penalties(std::span<const int32_t> tokens, const DryOptions& options) {
  std::unordered_map<int32_t, float> penalties;
  if (options.multiplier == 0 || options.last_n == 0) return penalties;
  if (options.last_n > 0 && tokens.size() > static_cast<size_t>(options.last_n))
    tokens = tokens.last(static_cast<size_t>(options.last_n));
  const size_t count = tokens.size();
  const auto allowed = static_cast<size_t>(options.allowed_length);
  if (count <= allowed) return penalties;
  const size_t most = options.breakers ? reach(tokens, *options.breakers) : count;
  if (most < allowed) return penalties;
  // same[k]: how many of the last tokens are those before the last k too, by the Z-algorithm from the end.
  const auto back = [&](size_t i) { return tokens[count - 1 - i]; };
  std::vector<size_t> same(count);
  for (size_t k = 1, left = 0, right = 0; k < count; ++k) {
    size_t n = k < right ? std::min(right - k, same[k - left]) : 0;
    while (n + k < count && back(n) == back(n + k)) ++n;
    same[k] = n;
    if (k + n > right) left = k, right = k + n;
  }
  std::unordered_map<int32_t, size_t> longest;
  for (size_t k = 1; k < count; ++k) {
    const size_t length = std::min(same[k], most);
    if (length < allowed) continue;
    size_t& known = longest[back(k - 1)];
    known = std::max(known, length);
  }
  const double most_power = options.base > 1.000001 ? std::floor(kLogMost / std::log(options.base)) : 0;
  for (const auto& [token, length] : longest) {
    if (options.breakers) {
      const auto found = options.breakers->find(token);
      if (found != options.breakers->end() &&
          std::any_of(found->second.begin(), found->second.end(), [](const auto& tail) { return tail.empty(); }))
        continue;
    }
    double power = static_cast<double>(length - allowed);
    if (most_power > 0) power = std::min(power, most_power);
    penalties[token] = static_cast<float>(options.multiplier * std::pow(options.base, power));
  }
  return penalties;
}

}  // namespace qeng
