// Learners of one-bit weights: their gradient moves counters as it arises, or the latent numbers whose signs they are.
#pragma once
#include "engine/autograd/learner.h"

namespace qeng {

// Counters or momenta of rows first .. first + n of a weight, as the ops PulseGrad and Inertia have them.
struct PulseOptions {
  TensorPtr state;   // one_bit [planes, n, in], or u8 [n, in]
  TensorPtr hyper;   // [4] f32: read by each step
  TensorPtr counts;  // [2] i64: added to
  int64_t first = 0;
  uint32_t subsequence = 0;
  bool bop = false;
};
// weight: one_bit [out, in]. Error("shape" | "dtype") where the parts do not fit.
std::shared_ptr<WeightLearner> learn_by_pulses(const TensorPtr& weight, const PulseOptions& options);

// Straight-through: the gradient is added to that of `latent`, f32 of the weight's shape, which requires one.
std::shared_ptr<WeightLearner> learn_latent(const TensorPtr& weight, const TensorPtr& latent);

}  // namespace qeng
