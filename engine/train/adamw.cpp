#include "engine/train/adamw.h"

#include "kernels/math/adamw_codes.h"
#include "kernels/view_text.h"

namespace qeng {

AdamWState::AdamWState(Device& device, std::vector<TensorPtr> parameters, AdamWOptions options,
                       const std::vector<int>& groups, const std::vector<double>& rates, const std::vector<bool>& own,
                       Sum sum)
    : device_(device), options_(options), sum_(std::move(sum)), rates_(rates) {
  if (parameters.empty()) fail("value", "adamw: no parameter requires a gradient");
  if (!groups.empty() && groups.size() != parameters.size())
    fail("value", "adamw: ", groups.size(), " groups for ", parameters.size(), " parameters");
  if (!own.empty() && own.size() != parameters.size())
    fail("value", "adamw: own is of ", own.size(), " parameters, there are ", parameters.size());
  for (int group : groups)
    if (group < 0 || group >= kMaxGroups) fail("value", "adamw: group ", group, " of 0 .. ", kMaxGroups - 1);
  if (options.moment_bits != 32 && options.moment_bits != 8)
    fail("value", "adamw: moment_bits is ", options.moment_bits, ", expected 32 or 8");
  for (TensorPtr& parameter : parameters) {
    const size_t group = groups.empty() ? 0 : static_cast<size_t>(groups[entries_.size()]);
    if (group >= steps_.size()) steps_.resize(group + 1);
    const View& view = parameter->view;
    if (!parameter->requires_grad) fail("value", "adamw: parameter ", parameter->label, " does not require a gradient");
    if (view.dtype != DType::f32 && view.dtype != DType::bf16)
      fail("dtype", "adamw: parameter ", parameter->label, " is ", shape_text(view), ", expected f32 or bf16");
    if (!own.empty() && !own[entries_.size()]) {
      entries_.push_back({parameter, parameter->grad, nullptr, nullptr, nullptr, nullptr, group});
      continue;
    }
    const Shape shape(view.shape, view.shape + view.rank);
    const bool coded = options.moment_bits == 8 && view.elements() >= kLeastCoded;
    const DType moments = coded ? DType::u8 : DType::f32;
    Entry entry{parameter,
                parameter->grad,
                nullptr,
                make_zeros(device, shape, moments, "optimizer"),
                make_zeros(device, shape, moments, "optimizer"),
                nullptr,
                group};
    const int64_t blocks = (view.elements() + kMomentBlock - 1) / kMomentBlock;
    if (coded) entry.scales = make_zeros(device, {2, blocks}, DType::f32, "optimizer");
    if (view.dtype == DType::bf16) entry.master = make_tensor(device, shape, DType::f32, "optimizer");
    entries_.push_back(entry);
    refresh_master(entries_.size() - 1);
  }
  partials_ = make_zeros(device, {static_cast<int64_t>(entries_.size())}, DType::f32, "optimizer");
  clip_ = make_zeros(device, {3}, DType::f32, "optimizer");
  if (rates_.empty()) rates_.assign(steps_.size(), 1);
  if (rates_.size() != steps_.size()) fail("value", "adamw: ", rates_.size(), " rates for ", steps_.size(), " groups");
  for (size_t group = 0; group < steps_.size(); ++group)
    hyper_.push_back(make_zeros(device, {2}, DType::f32, "optimizer"));
}

void AdamWState::refresh_master(size_t i) {
  if (entries_[i].master) device_.run(Cast{entries_[i].parameter->view, entries_[i].master->view});
}

void AdamWState::sum_squares() {
  SumSquares squares{{}, partials_->view};
  for (const Entry& entry : entries_)
    if (entry.m) squares.x.push_back(entry.grad->view);
  const size_t count = squares.x.size();
  squares.out.shape[0] = static_cast<int64_t>(count);
  if (count) device_.run(squares);
  std::vector<float> own(entries_.size());
  if (count) device_.backend().download(own.data(), partials_->view.data, count * sizeof(float));
  std::vector<double> all;  // zeros for the others': the sums are exact
  for (size_t i = 0, at = 0; i < entries_.size(); ++i) all.push_back(entries_[i].m ? own[at++] : 0);
  all = sum_(all);
  for (size_t i = 0; i < all.size(); ++i) own[i] = static_cast<float>(all[i]);
  device_.backend().upload(partials_->view.data, own.data(), own.size() * sizeof(float));
}

void AdamWState::run_ops(float clip, uint64_t groups) {
  if (!sum_) {
    SumSquares squares{{}, partials_->view};
    for (const Entry& entry : entries_) squares.x.push_back(entry.grad->view);
    device_.run(squares);
  }
  device_.run(ClipScale{partials_->view, clip_->view, clip});
  for (const Entry& entry : entries_)
    if (!entry.m && !sum_) device_.run(Fill{entry.grad->view, 0});
  for (size_t group = 0; group < steps_.size(); ++group) {
    if (!(groups >> group & 1)) continue;
    AdamW ops[2][2];  // decay is one number an op, and moments are of one kind
    for (const Entry& entry : entries_) {
      if (entry.group != group || !entry.m) continue;
      const bool decays = options_.decay != 0 && entry.parameter->view.rank >= 2;
      AdamW& op = ops[decays][entry.scales != nullptr];
      if (entry.scales) op.scales.push_back(entry.scales->view);
      op.w.push_back(entry.master ? entry.master->view : entry.parameter->view);
      op.grad.push_back(entry.grad->view), op.m.push_back(entry.m->view), op.v.push_back(entry.v->view);
      op.model.push_back(entry.master ? entry.parameter->view : View());
    }
    for (AdamW& op : ops[1]) op.decay = options_.decay;
    for (AdamW* op : {&ops[1][0], &ops[1][1], &ops[0][0], &ops[0][1]}) {
      op->hyper = hyper_[group]->view, op->clip = clip_->view;
      op->beta1 = options_.beta1, op->beta2 = options_.beta2, op->eps = options_.eps;
      op->clear = true;
      if (!op->w.empty()) device_.run(*op);
    }
  }
}

// What was read from a parameter before the passes (its rows, a transposed or merged copy) is a tensor of its own: the
// parameter behind it would never learn.
void AdamWState::check_reached(uint64_t groups) const {
  size_t missed = 0;
  const Entry* first = nullptr;
  for (const Entry& entry : entries_) {
    if (entry.parameter->reached || !(groups >> entry.group & 1)) continue;
    if (missed++ == 0) first = &entry;
  }
  if (!first) return;
  const std::string& label = first->parameter->label;
  fail("value", "adamw: no gradient reached parameter ", label.empty() ? shape_text(first->parameter->view) : label,
       missed > 1 ? " and " + std::to_string(missed - 1) + " others" : "", ": the loss does not depend on ",
       missed > 1 ? "them" : "it",
       ". Compute from the parameter itself in each pass (rows, or a transposed or merged copy, are other tensors), ",
       "leave it out of the list, or set allow_unused");
}

AdamWState::Result AdamWState::step(double lr, double clip, uint64_t groups) {
  if (!options_.allow_unused) check_reached(groups);
  for (const Entry& entry : entries_)
    if (entry.parameter->grad != entry.grad)
      fail("value", "adamw: parameter ", entry.parameter->label,
           " has another gradient than when the optimizer was made; make a new one");
  for (size_t group = 0; group < steps_.size(); ++group) {
    if (!(groups >> group & 1)) continue;
    const float hyper[2] = {static_cast<float>(lr * rates_[group]), static_cast<float>(steps_[group] + 1)};
    device_.backend().upload(hyper_[group]->view.data, hyper, sizeof hyper);
  }
  if (clip != program_clip_) programs_.clear(), program_clip_ = clip;
  std::unique_ptr<Program>& program = programs_[groups];
  if (!program) program = Program::capture(device_, [&] { run_ops(static_cast<float>(clip), groups); });
  if (sum_) sum_squares();
  program->run();
  float outcome[3];
  device_.backend().download(outcome, clip_->view.data, sizeof outcome);
  const bool skipped = outcome[2] != 0;
  for (size_t group = 0; group < steps_.size(); ++group) steps_[group] += !skipped && groups >> group & 1;
  return {outcome[0], skipped};
}

void AdamWState::set_steps(const std::vector<int64_t>& steps) {
  if (steps.size() != steps_.size())
    fail("value", "adamw: counts of steps for ", steps.size(), " groups of parameters, there are ", steps_.size(),
         ": resume with the data and options of the saved run");
  steps_ = steps;
}

std::vector<AdamWState::Part> AdamWState::parts(size_t i) const {
  if (!entries_[i].m) return {};
  std::vector<Part> parts{{"m", entries_[i].m}, {"v", entries_[i].v}};
  if (entries_[i].scales) parts.push_back({"scales", entries_[i].scales});
  if (entries_[i].master) parts.push_back({"master", entries_[i].master});
  return parts;
}

}  // namespace qeng
