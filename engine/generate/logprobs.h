// Log probabilities of tokens under logits as the model gave them: for output and prompts, perplexity, comparisons of
// models. Logits are f32 or bf16 in host memory, [vocab] or [rows, vocab]; NaN is Error("value").
#pragma once
#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/view.h"

namespace qeng {

struct TokenLogprob {
  int32_t token;
  double logprob;
};
struct RowLogprobs {
  double logprob = 0;             // of the token that came
  std::vector<TokenLogprob> top;  // the k most probable, largest first; of equal ones the lower id
};

// For each row the log probability of tokens[row] (not looked up where that is negative), and the k most probable. Rows
// are worked on in parallel. Error("shape" | "dtype" | "value").
std::vector<RowLogprobs> logprobs(const View& logits, std::span<const int32_t> tokens, int64_t k);

// How a row of logits differs from that of a reference, in double precision.
struct RowDifference {
  double divergence = 0;  // KL(reference || model), in nats
  bool same_top = false;  // the most probable token is the same
};
std::vector<RowDifference> compare_logits(const View& reference, const View& logits);

// A row as f32; what: for messages. The largest of a row.
void read_logits(const View& logits, int64_t row, const char* what, std::vector<float>& out);
float largest_logit(std::span<const float> logits);

// exp(x) for x <= 0 within 2e-7 of it, 0 under -87. Selects with integers, so that a loop of it vectorizes at -O2.
inline float exp_of_negative(float x) {
  constexpr int32_t kLeast = std::bit_cast<int32_t>(-87.0f);
  const int32_t bits = std::bit_cast<int32_t>(x) | INT32_MIN;  // grows as x falls; +0 becomes -0
  const int32_t keep = -static_cast<int32_t>(bits <= kLeast);  // all bits, or none
  const float bounded = std::bit_cast<float>((bits & keep) | (kLeast & ~keep));
  const float whole =
      static_cast<float>(static_cast<int32_t>(bounded * 1.44269504f - 0.5f));  // to nearest, as bounded <= 0
  const float f = (bounded - whole * 0.693359375f) +
                  whole * 2.12194440e-4f;  // less whole * ln 2, whose first part is exact; |f| <= 0.35
  // Taylor's, to f^7: the next term is under 6e-9.
  const float e =
      1 +
      f * (1 + f * (0.5f + f * (1 / 6.0f + f * (1 / 24.0f + f * (1 / 120.0f + f * (1 / 720.0f + f * (1 / 5040.0f)))))));
  const int32_t scaled =
      std::bit_cast<int32_t>(e) + static_cast<int32_t>(static_cast<uint32_t>(static_cast<int32_t>(whole)) << 23);
  return std::bit_cast<float>(scaled & keep);
}

}  // namespace qeng
