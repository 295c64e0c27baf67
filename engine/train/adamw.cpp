#include "engine/train/adamw.h"

namespace qeng {

AdamWState::AdamWState(Device& device, std::vector<TensorPtr> parameters, AdamWOptions options) : device_(device), options_(options) {
  if (parameters.empty()) fail("value", "adamw: no parameter requires a gradient");
  for (TensorPtr& parameter : parameters) {
    const View& view = parameter->view;
    if (!parameter->requires_grad) fail("value", "adamw: parameter ", parameter->label, " does not require a gradient");
    if (view.dtype != DType::f32 && view.dtype != DType::bf16)
      fail("dtype", "adamw: parameter ", parameter->label, " is ", shape_text(view), ", expected f32 or bf16");
    const Shape shape(view.shape, view.shape + view.rank);
    Slot slot{parameter, nullptr, make_zeros(device, shape, DType::f32, "optimizer"), make_zeros(device, shape, DType::f32, "optimizer")};
    if (view.dtype == DType::bf16) slot.master = make_tensor(device, shape, DType::f32, "optimizer");
    slots_.push_back(slot);
    refresh_master(slots_.size() - 1);
  }
  partials_ = make_zeros(device, {static_cast<int64_t>(slots_.size())}, DType::f32, "optimizer");
  clip_ = make_zeros(device, {3}, DType::f32, "optimizer");
  hyper_ = make_zeros(device, {2}, DType::f32, "optimizer");
}

void AdamWState::refresh_master(size_t i) {
  if (slots_[i].master) device_.run(Cast{slots_[i].parameter->view, slots_[i].master->view});
}

AdamWState::Result AdamWState::step(double lr, double clip) {
  for (size_t i = 0; i < slots_.size(); ++i)
    device_.run(SumSquares{slots_[i].parameter->grad->view, partials_->view, static_cast<int64_t>(i)});
  device_.run(ClipScale{partials_->view, clip_->view, static_cast<float>(clip)});
  const float hyper[2] = {static_cast<float>(lr), static_cast<float>(steps_ + 1)};
  device_.backend().upload(hyper_->view.data, hyper, sizeof hyper);
  for (Slot& slot : slots_) {
    AdamW op{.w = slot.master ? slot.master->view : slot.parameter->view, .grad = slot.parameter->grad->view, .m = slot.m->view, .v = slot.v->view};
    if (slot.master) op.model = slot.parameter->view;
    op.hyper = hyper_->view, op.clip = clip_->view;
    op.beta1 = options_.beta1, op.beta2 = options_.beta2, op.eps = options_.eps;
    op.decay = slot.parameter->view.rank >= 2 ? options_.decay : 0;
    device_.run(op);
    device_.run(Fill{slot.parameter->grad->view, 0});
  }
  float outcome[3];
  device_.backend().download(outcome, clip_->view.data, sizeof outcome);
  const bool skipped = outcome[2] != 0;
  if (!skipped) ++steps_;
  return {outcome[0], skipped};
}

std::vector<AdamWState::Part> AdamWState::parts(size_t i) const {
  std::vector<Part> parts{{"m", slots_[i].m}, {"v", slots_[i].v}};
  if (slots_[i].master) parts.push_back({"master", slots_[i].master});
  return parts;
}

}  // namespace qeng
