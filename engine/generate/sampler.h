// Draws the next token from logits, in this order:
//   1. logit bias: added to the logits of the tokens that have one
//   2. repetition penalty r, over the tokens of prompt and output:  z > 0 ? z / r : z * r             (Keskar et al.
//   2019, CTRL)
//   3. presence and frequency penalty, over the tokens of the output:  z -= presence * [count > 0] + frequency * count
//   (OpenAI)
//   4. mask: tokens that may not come are as if they had no logit
//   5. temperature:  z / T;  T = 0, or under 3e-39, takes the largest z (of equal ones the lowest id), and the rest does
//   not matter
//   6. top-k: the k largest;  7. top-p: the fewest of the largest whose probabilities reach p        (Holtzman et al.
//   2020)
//   8. min-p: those at least min_p times as probable as the most probable                           (Nguyen et al.
//   2024)
//   9. typical-p: the fewest, of those whose information is nearest to the entropy first, that reach p  (Meister et al.
//   2023)
// Each filter sees the probabilities that the one before leaves, renormalised, as Hugging Face's processors do.
// Draw n of a seed uses Philox(seed, n): the same seed and logits give the same tokens.
#pragma once
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "engine/generate/token_mask.h"
#include "kernels/view.h"

namespace qeng {

struct SamplingOptions {
  double temperature = 1;
  int64_t top_k = 0;  // 0: all
  double top_p = 1;
  double min_p = 0;
  double typical_p = 1;
  double repetition_penalty = 1;
  double presence_penalty = 0, frequency_penalty = 0;
  int64_t penalty_window = 0;  // the penalties look at the last so many tokens; 0: at all
  std::vector<std::pair<int32_t, double>> logit_bias;
  uint64_t seed = 0;
};

class TokenSampler {
 public:
  explicit TokenSampler(const SamplingOptions& options);  // Error("value") for an option outside its range

  // logits: f32 or bf16 in host memory, [vocab], or [t, vocab] of which the last row counts. Error("shape" | "dtype"),
  // and Error("value") where a logit is NaN, none that may come is finite, or a bias is of a token outside the logits.
  // Does not accept the token.
  int32_t next(const View& logits, const TokenMask* mask = nullptr);
  void accept(int32_t token) { remember(token, true); }          // of the output
  void accept_prompt(int32_t token) { remember(token, false); }  // only repetition_penalty looks at the prompt

 private:
  struct Candidate {
    float weight;  // exp((z - largest z) / T), not normalised
    int32_t token;
  };
  struct Count {
    int64_t seen = 0, output = 0;
  };
  void remember(int32_t token, bool output);
  void read(const View& logits);
  void adjust();
  void apply(const TokenMask& mask);
  int32_t largest() const;
  void weigh(float top);
  void gather(float least);  // candidates_: those of at least this weight
  void keep_top_k(float top);
  void keep_top_p(double total);  // total: the weight of all, also of those that are no candidates
  void keep_typical(float top);
  int32_t draw();

  SamplingOptions options_;
  uint64_t draws_ = 0;
  std::unordered_map<int32_t, Count> counts_;    // within the window
  std::deque<std::pair<int32_t, bool>> window_;  // where there is one
  std::vector<float> logits_, weights_;
  std::vector<Candidate> candidates_;
};

}  // namespace qeng
