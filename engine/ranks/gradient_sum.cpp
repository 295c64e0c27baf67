#include "engine/ranks/gradient_sum.h"

#include <algorithm>
#include <utility>

#include "kernels/view_text.h"

namespace qeng {

void check_gradient(const Tensor& parameter) {
  if (!parameter.grad) fail("value", "ranks: parameter ", parameter.label, " does not require a gradient");
  const View& view = parameter.grad->view;
  if (view.dtype != DType::f32 && view.dtype != DType::bf16)
    fail("dtype", "ranks: the gradient of ", parameter.label, " is ", shape_text(view), ", expected f32 or bf16");
}

GradientSum::GradientSum(Ranks& ranks, Device& device, std::vector<TensorPtr> parameters, int64_t bucket_elements)
    : ranks_(ranks),
      device_(device),
      parameters_(std::move(parameters)),
      sums_(ranks, device),
      courier_(sums_.beside()) {
  BucketSums::Bucket bucket{.spans = {}, .begins = {}, .to_all = true};
  int64_t elements = 0;
  const auto close = [&] {
    buckets_.emplace_back();
    for (const BucketSums::Span& span : bucket.spans) buckets_.back().push_back(span.gradient);
    for (int r = 0; r <= ranks.size(); ++r) bucket.begins.push_back(elements * r / ranks.size());
    sums_.add(std::exchange(bucket, {.spans = {}, .begins = {}, .to_all = true}));
    elements = 0;
  };
  for (const TensorPtr& parameter : parameters_) {
    check_gradient(*parameter);
    const View& view = parameter->grad->view;
    for (int64_t first = 0; first < view.elements();) {
      const int64_t count = std::min(view.elements() - first, bucket_elements - elements);
      bucket.spans.push_back({view, view, first, count});
      elements += count, first += count;
      if (elements == bucket_elements) close();
    }
  }
  if (elements > 0) close();
  if (buckets_.empty()) fail("value", "ranks: no parameter requires a gradient");
}

// In one order on all ranks, whichever of their gradients are final first.
void GradientSum::ready(size_t count) {
  for (; given_ < count; ++given_) {
    const size_t bucket = buckets_.size() - 1 - given_;
    last_job_ = courier_.give("bucket " + std::to_string(bucket), [this, bucket] { sums_.exchange(bucket); });
  }
}

void GradientSum::begin(int present, bool first, bool last) {
  if (open_) fail("value", "ranks: a round begins before the one before has ended");
  for (const TensorPtr& parameter : parameters_) device_.before_write(&parameter->grad->view);
  round_ = {present, first, last};
  sums_.begin(round_);
  open_ = true, given_ = 0;
}

void GradientSum::finish() {
  if (!open_) fail("value", "ranks: no round has begun");
  ready(buckets_.size());
  open_ = false;
  courier_.await(last_job_);
  if (round_.last) return share_reached(ranks_, parameters_);
  for (const TensorPtr& parameter : parameters_) device_.run(Fill{parameter->grad->view, 0});
}

void GradientSum::watch(Program& program) {
  if (!courier_.beside()) return;
  const size_t count = buckets_.size();
  std::vector<size_t> final_at(count, 0);  // the number of the last operation that writes to one of the gradients
  for (size_t i = 0; i < program.ops().size(); ++i)
    for_each_view(program.ops()[i].op, [&](const char*, const View& view, Access access) {
      if (access == Access::read) return;
      for (size_t b = 0; b < count; ++b)
        for (const View& gradient : buckets_[b])
          if (overlap(gradient, view)) final_at[b] = i;
    });
  for (size_t b = count - 1; b-- > 0;) final_at[b] = std::max(final_at[b], final_at[b + 1]);
  program.set_after([this, final_at](size_t i) {
    size_t sent = 0;
    while (sent < final_at.size() && final_at[final_at.size() - 1 - sent] <= i) ++sent;
    if (open_) ready(sent);
  });
}

void share_reached(Ranks& ranks, const std::vector<TensorPtr>& parameters) {
  std::vector<double> reached;
  for (const TensorPtr& parameter : parameters) reached.push_back(parameter->reached);
  reached = ranks.sum(reached);
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i]->reached = reached[i] > 0;
}

void share_tensors(Ranks& ranks, const std::vector<TensorPtr>& tensors, const std::vector<int>& owners) {
  if (tensors.size() != owners.size())
    fail("value", "ranks: ", owners.size(), " owners of ", tensors.size(), " tensors");
  constexpr size_t kPiece = size_t{16} << 20;
  std::vector<char> piece;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (owners[i] < 0 || owners[i] >= ranks.size()) fail("value", "ranks: there is no rank ", owners[i]);
    const View& view = tensors[i]->view;
    Device& device = tensors[i]->device();
    Backend& backend = device.backend();
    if (Transport& between = ranks.transport(device); between.of_device()) {
      backend.synchronize();
      between.broadcast(view.data, view.bytes(), owners[i]);
      continue;
    }
    if (owners[i] != ranks.rank()) device.before_write(&view);
    const size_t bytes = static_cast<size_t>(view.bytes());
    for (size_t at = 0; at < bytes; at += kPiece) {
      char* const memory = static_cast<char*>(view.data) + at;
      piece.resize(std::min(kPiece, bytes - at));
      if (!backend.computes()) {
        ranks.transport().broadcast(nullptr, piece.size(), owners[i]);
        continue;
      }
      if (owners[i] == ranks.rank()) backend.download(piece.data(), memory, piece.size());
      ranks.transport().broadcast(piece.data(), piece.size(), owners[i]);
      if (owners[i] != ranks.rank()) backend.upload(memory, piece.data(), piece.size());
    }
  }
}

}  // namespace qeng
