// What takes the gradient of a weight that keeps none: one-bit weights, whose gradient moves counters as it arises, or
// the latent numbers whose signs they are.
#pragma once
#include "engine/autograd/tape.h"

namespace qeng {

// Set as Tensor::learner. learn() is called once in each backward pass through a linear layer of this weight, after the
// gradient of the layer's input was computed from it: with dy [rows, out] and x [rows, in], the weight's gradient being
// dy^T x. It may change the weight. A weight that two layers share would change between them: give it no learner.
class WeightLearner {
 public:
  virtual ~WeightLearner() = default;
  virtual void learn(Tape& tape, const View& dy, const View& x) = 0;
};

// Counters or momenta of rows first .. first + n of a weight, as the ops PulseGrad and Inertia have them.
struct PulseOptions {
  TensorPtr state;    // one_bit [planes, n, in], or u8 [n, in]
  TensorPtr hyper;    // [4] f32: read by each step
  TensorPtr counts;   // [2] i64: added to
  int64_t first = 0;
  uint32_t stream = 0;
  bool bop = false;
};
// weight: one_bit [out, in]. Error("shape" | "dtype") where the parts do not fit.
std::shared_ptr<WeightLearner> learn_by_pulses(const TensorPtr& weight, const PulseOptions& options);

// Straight-through: the gradient is added to that of `latent`, f32 of the weight's shape, which requires one.
std::shared_ptr<WeightLearner> learn_latent(const TensorPtr& weight, const TensorPtr& latent);

}  // namespace qeng
