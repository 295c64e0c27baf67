// Log-probabilities of tokens under a row of logits: z[token] - log(sum(exp(z))), summed in double.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/view.h"

namespace qeng {

struct TokenLogprobs {
  double logprob;                               // of the token asked for
  std::vector<std::pair<int32_t, double>> top;  // the likeliest tokens, first of equals the lower id
};

// logits: f32 in host memory, one row. Error("value") for a token outside of it, or a count below 0.
TokenLogprobs token_logprobs(const View& logits, int64_t token, int64_t count);

}  // namespace qeng
