// What takes the gradient of a weight that keeps none (engine/train has some).
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

}  // namespace qeng
