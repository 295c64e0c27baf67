// Draws the next token from logits, in the order of Hugging Face's processors:
//   1. repetition penalty r over the tokens accepted so far:  z > 0 ? z / r : z * r        (Keskar et al. 2019, CTRL)
//   2. temperature:  z / T;  T = 0 takes the largest z (of equal ones the lowest id), and the rest does not matter
//   3. top-k: the k largest;  4. top-p: the fewest of the largest whose probabilities reach p   (Holtzman et al. 2020)
//   5. min-p: those at least min_p times as probable as the most probable                      (Nguyen et al. 2024)
// Draw n of a seed uses Philox(seed, n): the same seed and logits give the same tokens, on any machine with the same exp().
#pragma once
#include <cstdint>
#include <unordered_set>
#include <vector>

#include "kernels/view.h"

namespace qeng {

struct SamplingOptions {
  double temperature = 1;
  int64_t top_k = 0;  // 0: all
  double top_p = 1;
  double min_p = 0;
  double repetition_penalty = 1;
  uint64_t seed = 0;
};

class TokenSampler {
 public:
  explicit TokenSampler(const SamplingOptions& options);  // Error("value") for an option outside its range

  // logits: f32 or bf16 in host memory, [vocab], or [t, vocab] of which the last row counts. Error("shape" | "dtype"), and
  // Error("value") where a logit is NaN or no logit is finite. Does not accept the token.
  int32_t next(const View& logits);
  void accept(int32_t token) { accepted_.insert(token); }

 private:
  struct Candidate {
    float logit;
    int32_t token;
    double weight;  // exp(logit - largest), not normalised
  };
  void read(const View& logits);
  void penalise();
  int32_t largest() const;
  void filter();

  SamplingOptions options_;
  uint64_t draws_ = 0;
  std::unordered_set<int32_t> accepted_;
  std::vector<float> logits_;
  std::vector<Candidate> candidates_;
};

}  // namespace qeng
