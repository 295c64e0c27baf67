#include "engine/train/learner.h"

#include "kernels/check_shapes.h"
#include "kernels/view_text.h"

namespace qeng {

namespace {

// Pulses are rounded by the weight's own subsequence of random numbers, momenta by another, so that the two are
// independent.
constexpr uint32_t kOfMomenta = uint32_t{1} << 31;

class PulseLearner : public WeightLearner {
 public:
  PulseLearner(const TensorPtr& weight, const PulseOptions& options) : options_(options) {
    const View& state = options.state->view;
    if (weight->view.rank != 2 || state.rank < 2)
      fail("shape", "learn: the weight is ", shape_text(weight->view), ", its state ", shape_text(state),
           "; expected one_bit [out, in] and one_bit [planes, rows, in] or u8 [rows, in]");
    rows_ = state.shape[state.rank - 2];
    if (options.first < 0 || options.first + rows_ > weight->view.shape[0])
      fail("shape", "learn: rows ", options.first, " .. ", options.first + rows_ - 1, " of ", shape_text(weight->view));
    weight_ = weight, columns_ = weight->view.shape[1];
    check_shapes(inertia(pulses_of(nullptr), View(this, DType::i64, {2})));
  }

  void learn(Tape& tape, const View& dy, const View& x) override {
    Device& device = tape.device();
    const TensorPtr pulses = make_tensor(device, {rows_, columns_}, pulses_of(nullptr).dtype, "workspace");
    const View& rng = tape.rng()->view;
    const Inertia step = inertia(pulses->view, rng);
    device.run(
        PulseGrad{dy, x, step.weights, pulses->view, options_.hyper->view, rng, options_.first, options_.subsequence});
    device.run(step);
  }

 private:
  View pulses_of(void* data) const {
    return View(data, options_.state->view.dtype == DType::u8 ? DType::u8 : DType::ternary, {rows_, columns_});
  }
  Inertia inertia(View pulses, const View& rng) const {
    const TensorPtr learned = row_range(weight_.lock(), options_.first, rows_);  // which moves where it is streamed
    if (!pulses.data) pulses.data = learned->view.data;  // for checks alone, which read no memory
    return {pulses,
            learned->view,
            options_.state->view,
            options_.counts->view,
            options_.hyper->view,
            rng,
            options_.bop,
            options_.subsequence | kOfMomenta};
  }
  PulseOptions options_;
  std::weak_ptr<Tensor> weight_;  // which keeps this
  int64_t rows_ = 0, columns_ = 0;
};

class LatentLearner : public WeightLearner {
 public:
  explicit LatentLearner(const TensorPtr& latent) : latent_(latent) {}
  void learn(Tape& tape, const View& dy, const View& x) override {
    if (!latent_->needs_grad()) return;
    const Tape::Target target = tape.gradient_of(latent_);
    tape.device().run(Matmul{.a = dy, .b = x, .c = target.view, .trans_a = true, .acc = target.acc});
  }

 private:
  TensorPtr latent_;
};

}  // namespace

std::shared_ptr<WeightLearner> learn_by_pulses(const TensorPtr& weight, const PulseOptions& options) {
  return std::make_shared<PulseLearner>(weight, options);
}

std::shared_ptr<WeightLearner> learn_latent(const TensorPtr& weight, const TensorPtr& latent) {
  if (!latent->view.same_shape(weight->view) || latent->view.dtype != DType::f32 || !latent->requires_grad)
    fail("shape", "learn: the latent weights are ", shape_text(latent->view), ", expected f32 like the weight, ",
         shape_text(weight->view), ", requiring a gradient");
  return std::make_shared<LatentLearner>(latent);
}

}  // namespace qeng
