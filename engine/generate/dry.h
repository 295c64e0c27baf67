// DRY ("don't repeat yourself", as llama.cpp has it): a token that would go on with what was said before costs
//   multiplier * base^(length - allowed_length)
// of its logit, where `length` is how many of the last tokens stand before its earlier occurrence too, if at least
// allowed_length do. A sequence breaker, as a line end, ends what counts as a repetition.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace qeng {

// Of each token that ends in the beginning of a breaker, the tokens that complete it; none where it holds a whole one.
using SequenceBreakers = std::unordered_map<int32_t, std::vector<std::vector<int32_t>>>;

// Error("value") for an empty string.
std::shared_ptr<const SequenceBreakers> sequence_breakers(const Tokenizer& tokenizer,
                                                          const std::vector<std::string>& strings);

struct DryOptions {
  double multiplier = 0;  // 0: off
  double base = 1.75;
  int64_t allowed_length = 2;
  int64_t last_n = -1;  // of so many last tokens, prompt and output; -1: of all
  std::shared_ptr<const SequenceBreakers> breakers;
};

// What each token costs, after these tokens.
std::unordered_map<int32_t, float> dry_penalties(std::span<const int32_t> tokens, const DryOptions& options);

}  // namespace qeng
