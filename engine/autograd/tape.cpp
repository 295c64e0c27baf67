#include "engine/autograd/tape.h"

#include <utility>

#include "engine/autograd/expression.h"
#include "kernels/view_text.h"

namespace qeng {

Tape::Tape(Device& device) : device_(device), rng_(make_zeros(device, {2}, DType::i64, "workspace")) {
  device.set_before_write([this](const View* written) { settle_readers(*this, written); });
}
Tape::~Tape() { device_.set_before_write(nullptr), device_.set_pending(false); }

void Tape::set_rng(uint64_t seed, uint64_t step) {
  seed_ = seed;
  const int64_t words[2] = {static_cast<int64_t>(seed), static_cast<int64_t>(step)};
  device_.backend().upload(rng_->view.data, words, sizeof words);
}

bool Tape::wants(std::initializer_list<TensorPtr> inputs) const {
  if (!recording_) return false;
  for (const TensorPtr& input : inputs)
    if (input && input->needs_grad()) return true;
  return false;
}

void Tape::record(const std::vector<TensorPtr>& outputs, std::function<void()> play) {
  for (const TensorPtr& output : outputs) output->tracked = part_;
  records_.push_back({device_.label(), outputs, std::move(play), frozen_});
}

void Tape::mark(std::function<void()> play) {
  if (recording_) records_.push_back({device_.label(), {}, std::move(play), frozen_});
}

void Tape::set_frozen(Parameters parameters) {
  if (frozen_ == parameters) return;
  if (frozen_)
    for (const TensorPtr& parameter : *frozen_) parameter->frozen = false;
  frozen_ = std::move(parameters);
  if (frozen_)
    for (const TensorPtr& parameter : *frozen_) parameter->frozen = true;
}

Tape::Parameters Tape::frozen_and(const Parameters& others) const {
  if (!others || !frozen_ || others == frozen_) return others ? others : frozen_;
  auto all = std::make_shared<std::vector<TensorPtr>>(*frozen_);
  all->insert(all->end(), others->begin(), others->end());
  return all;
}

void Tape::check_part(const Tensor& x) const {
  if (x.tracked && x.tracked != part_)
    fail("state", "backward: the gradient reaches ", shape_text(x.view), x.label.empty() ? "" : " " + x.label,
         ", which was computed before an earlier backward, whose tape is gone: go back from both losses at once, with "
         "a:backward(b), compute it again, or, if it is to count as a constant, take its :clone()");
}

Tape::Target Tape::gradient_of(const TensorPtr& x) {
  if (x->requires_grad) {
    x->reached = true;
    return {x->grad->view, true};
  }
  check_part(*x);
  if (!x->grad) {
    x->grad = make_like(*x);
    return {x->grad->view, false};
  }
  if (x->grad.use_count() > 1 ||
      x->grad->buffer.use_count() > 1) {  // shared by pass(): the other sharer still reads it
    TensorPtr own = make_like(*x);
    device_.run(Copy{x->grad->view, own->view});
    x->grad = own;
  }
  return {x->grad->view, true};
}

void Tape::pass(const TensorPtr& x, const TensorPtr& g) {
  if (!x->needs_grad()) return;
  if (!x->requires_grad && !x->grad) {
    check_part(*x);
    x->grad = g;
    return;
  }
  const Target target = gradient_of(x);
  TensorPtr addend = g;
  if (target.view.dtype != g->view.dtype) {
    addend = make_tensor(device_, Shape(g->view.shape, g->view.shape + g->view.rank), target.view.dtype);
    device_.run(Cast{g->view, addend->view});
  }
  device_.run(Add{target.view, addend->view, target.view});
}

void Tape::wrote(const TensorPtr& x) {
  std::erase_if(written_, [&](const Written& each) {
    return each.buffer.expired() || (each.view.data == x->view.data && each.view.bytes() == x->view.bytes());
  });
  if (!playing_ && !records_.empty()) written_.push_back({x->buffer, x->view, records_.size()});
}

namespace {

// The gradient of an expression is given all of its operands: without those that it does not need.
Op without_unused(Op op) {
  auto* pointwise = std::get_if<Pointwise>(&op);
  if (!pointwise) return op;
  std::vector<View> used(pointwise->in.size());
  std::vector<bool> live(pointwise->nodes.size(), false);
  for (const auto& out : pointwise->out) live[out.node] = true;
  for (size_t i = live.size(); i-- > 0;) {
    const PointwiseNode& node = pointwise->nodes[i];
    if (!live[i]) continue;
    if (node.fn == Fn::input) used[node.a] = pointwise->in[node.a];
    const uint16_t operands[] = {node.a, node.b, node.c};
    for (int k = 0; k < operands_of(node.fn); ++k) live[operands[k]] = true;
  }
  pointwise->in = used;
  return op;
}

}  // namespace

class Tape::Checked : public OpListener {
 public:
  explicit Checked(Tape& t) : tape(t), next(t.device_.listener()) {
    if (!tape.written_.empty()) tape.device_.set_listener(this);
  }
  ~Checked() override { tape.device_.set_listener(next); }
  bool before(const Op& op, const std::string& label) override {
    const Op needed = without_unused(op);
    for (const Written& each : tape.written_) {
      if (tape.at_ >= each.records || each.buffer.expired()) continue;
      bool read = false, written = false;  // both: a parameter's gradient is added to
      for_each_view(needed, [&](const char*, const View& view, Access access) {
        if (overlap(view, each.view)) (access == Access::read ? read : written) = true;
      });
      if (read && !written)
        fail("state", "backward: ", shape_text(each.view), " was written to after ",
             label.empty() ? "an operation" : label, " had read it, and the gradient needs the old values (",
             op_name(op), "): call backward first, or write to another tensor");
    }
    return !next || next->before(op, label);
  }
  void after(const Op& op, const std::string& label) override {
    if (next) next->after(op, label);
  }
  Tape& tape;
  OpListener* next;
};

void Tape::play_back(std::vector<Record>& records, bool outer) {
  Parameters own, all = frozen_;  // of the record; with those that are frozen around
  while (!records.empty()) {
    Record record = std::move(records.back());
    records.pop_back();
    if (outer) at_ = records.size();
    bool reached = record.outputs.empty();  // a mark
    for (const TensorPtr& output : record.outputs) reached |= output->grad != nullptr;
    if (!reached) continue;
    device_.set_label(record.label);
    if (record.frozen != own) own = record.frozen, all = frozen_and(own);
    const Frozen frozen(*this, all);
    record.play();
    for (const TensorPtr& output : record.outputs) output->grad.reset();
  }
}

void Tape::backward(const std::vector<TensorPtr>& losses) {
  for (const TensorPtr& loss : losses) {
    if (loss->view.elements() != 1 || loss->view.dtype != DType::f32)
      fail("shape", "backward starts from a scalar f32 loss, not ", shape_text(loss->view));
    if (loss->tracked != part_ || records_.empty())
      fail("value", "this loss depends on no tensor that requires a gradient, or its tape has been played already");
  }
  for (const TensorPtr& loss : losses) {
    loss->grad = make_like(*loss);
    loss->grad->label = "one";
    device_.run(Fill{loss->grad->view, 1});
  }
  NoGrad guard(*this);
  Block block(device_, "");
  std::vector<Record> records = std::exchange(records_, {});
  subsequence_ = 0;
  playing_ = true;
  try {
    const Checked checked(*this);
    play_back(records, true);
  } catch (...) {
    playing_ = false;
    clear();
    throw;
  }
  playing_ = false;
  clear();  // recomputed blocks counted dropout subsequences again
}

void Tape::clear() {
  records_.clear();
  written_.clear();
  ++part_;
  subsequence_ = 0;
}

std::vector<TensorPtr> Tape::checkpoint(const std::string& label, Function fn, const std::vector<TensorPtr>& inputs) {
  Block block(device_, label);
  if (!recording_) return fn(inputs);
  const uint32_t first_subsequence = subsequence_;
  std::vector<TensorPtr> outputs;
  {
    NoGrad guard(*this, true);
    outputs = fn(inputs);
  }
  std::vector<TensorPtr> tracked;  // fn may have given a tensor that it did not make, whose gradient is no output's
  for (TensorPtr& output : outputs) {
    if (!is_float(output->view.dtype)) continue;
    const TensorPtr given = std::exchange(output, new_tensor(device_));
    output->buffer = given->buffer, output->view = given->view, output->label = given->label;
    tracked.push_back(output);
  }
  if (tracked.empty()) return outputs;
  record(tracked, [this, fn, inputs, outputs, first_subsequence] {
    // Inputs are stood in for by tensors of the same memory whose gradients start empty, then go to the real ones.
    std::vector<TensorPtr> stand_ins;
    for (const TensorPtr& input : inputs) {
      stand_ins.push_back(input->requires_grad ? input : new_tensor(device_, *input));
      if (!input->requires_grad) stand_ins.back()->grad.reset();
    }
    subsequence_ = first_subsequence;
    recording_ = training_ = true;
    std::vector<TensorPtr> again = fn(stand_ins);
    recording_ = training_ = false;
    std::vector<Record> inner = std::move(records_);
    records_.clear();
    if (again.size() != outputs.size())
      fail("value", "a checkpointed function gave ", again.size(), " results, at first ", outputs.size());
    for (size_t i = 0; i < again.size(); ++i)
      if (const TensorPtr g = std::move(outputs[i]->grad)) pass(again[i], g);
    play_back(inner, false);
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i]->requires_grad || !stand_ins[i]->grad) continue;
      TensorPtr g = std::move(stand_ins[i]->grad);
      stand_ins[i]->grad.reset();
      if (inputs[i]->tracked) pass(inputs[i], g);
    }
  });
  return outputs;
}

}  // namespace qeng
