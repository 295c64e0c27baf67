// Draws the next token from logits, in this order:
//   1. logit bias: added to the logits of the tokens that have one
//   2. repetition penalty r, over the tokens of prompt and output:  z > 0 ? z / r : z * r   (Keskar et al. 2019, CTRL)
//   3. presence and frequency penalty, over the tokens of the output:  z -= presence * [count > 0] + frequency * count
//   4. DRY (dry.h), over prompt and output
//   5. mask: tokens that may not come are as if they had no logit
//   6. top-n-sigma: those at most n standard deviations of the logits under the largest         (Tang et al. 2024)
//   7. temperature:  z / T;  T = 0, or under 3e-39, takes the largest z (of equal ones the lowest id), and the rest
//      does not matter
//   8. top-k: the k largest;  9. top-p: the fewest of the largest whose probabilities reach p    (Holtzman et al. 2020)
//  10. min-p: those at least min_p times as probable as the most probable                        (Nguyen et al. 2024)
//  11. typical-p: the fewest, of those whose information is nearest to the entropy first, that reach p (Meister 2023)
//  12. XTC: with a probability, of those at least as probable as a threshold all but the least are left out
// Each filter sees the probabilities that the one before leaves, renormalised, as Hugging Face's processors do; XTC
// sees them without the temperature, as in llama.cpp, where that comes last. Mirostat stands in place of 2 to 4, 6 and
// 8 to 12: it keeps the surprise of the text at tau bits by a bound mu on that of a token, of which eta of the error is
// taken off after each            (Basu et al. 2021; 1 and 2 are its versions) Draw n of a seed uses Philox(seed, n):
// the same seed and logits give the same tokens.
#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/generate/dry.h"
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
  DryOptions dry;
  double top_n_sigma = 0;  // 0: off
  double xtc_probability = 0, xtc_threshold = 0.1;
  int64_t mirostat = 0;  // 0: off, 1, 2
  double mirostat_tau = 5, mirostat_eta = 0.1;
  std::vector<std::pair<int32_t, double>> logit_bias;
  uint64_t seed = 0;
};

// The largest logits of a row, in the order of Sort (kernels/ops/tensor.h), and whose they are, of `vocab`.
struct TopLogits {
  std::span<const float> values;
  std::span<const int32_t> tokens;
  int64_t vocab = 0;
};

class TokenSampler {
 public:
  explicit TokenSampler(const SamplingOptions& options);  // Error("value") for an option outside its range

  // logits: f32 or bf16 in host memory, [vocab], or [t, vocab] of which the last row counts. Error("shape" | "dtype"),
  // and Error("value") where a logit is NaN, none that may come is finite, or a bias is of a token outside the logits.
  // Does not accept the token.
  int32_t next(const View& logits, const TokenMask* mask = nullptr);
  // The same token from the largest logits alone, so that a device need not send the others. None, and nothing is drawn,
  // where those may matter: fewer than top_k (of the greedy: one) remain that are larger than all others can be.
  std::optional<int32_t> next_of_top(const TopLogits& top, const TokenMask* mask = nullptr);
  // Whether next_of_top() never says: more than so many are asked for, or what is asked for depends on all logits.
  static constexpr int64_t kMostOfTop = 128;
  bool needs_all() const;
  // Of what is next drawn: each token that may come and its probability, by id. XTC's chance is that of the next draw.
  std::vector<std::pair<int32_t, double>> distribution(const View& logits, const TokenMask* mask = nullptr);
  void accept(int32_t token);                                    // of the output, after next()
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
  void choose(const View& logits, const TokenMask* mask);  // sets candidates_, of which one is drawn
  bool greedy() const;
  std::optional<int32_t> draw_of_top(const TopLogits& top, const TokenMask* mask);
  void read(const View& logits);
  void adjust();
  void adjust_by_counts();
  void apply(const TokenMask& mask);
  int32_t largest() const;
  void weigh(float top);
  void gather(float least);  // candidates_: those of at least this weight
  void keep_top_k(float top);
  void weigh_candidates(float top);  // which hold logits
  void filter(float top);            // the candidates that are left of top_k, or of all
  void keep_top_p(double total);     // total: the weight of all, also of those that are no candidates
  void keep_typical(float top);
  void keep_top_n_sigma(float top);
  void keep_xtc(float top);
  void keep_by_mirostat();
  int32_t draw();

  SamplingOptions options_;
  uint64_t draws_ = 0;
  std::unordered_map<int32_t, Count> counts_;    // within the window
  std::deque<std::pair<int32_t, bool>> window_;  // where there is one
  std::vector<float> logits_, weights_;
  bool cleared_ = false;  // logits_ are all those of tokens that may not come, as next_of_top() leaves them
  std::vector<Candidate> candidates_;
  std::vector<int32_t> history_;  // prompt and output, for DRY
  double mu_;                     // of mirostat: the largest surprise that may come, in bits
};

}  // namespace qeng
