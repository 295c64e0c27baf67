#include "engine/ranks/gradient_sum.h"

#include <algorithm>

#include "kernels/math/bf16.h"
#include "kernels/view_text.h"

namespace qeng {
namespace {

constexpr int64_t kBucket =
    4 << 20;  // elements that are sent at once: what lies on the host meanwhile is thrice as much

// Where the part begins, of `elements`, that rank r sums.
int64_t begin_of(int64_t elements, int r, int ranks) { return elements * r / ranks; }

}  // namespace

GradientSum::GradientSum(Ranks& ranks, Device& device, std::vector<TensorPtr> parameters)
    : ranks_(ranks), device_(device), parameters_(std::move(parameters)) {
  int64_t mine = 0;
  const auto close = [&](Bucket& bucket) {
    bucket.mine = mine;
    mine += begin_of(bucket.elements, ranks.rank() + 1, ranks.size()) -
            begin_of(bucket.elements, ranks.rank(), ranks.size());
  };
  for (const TensorPtr& parameter : parameters_) {
    if (!parameter->grad) fail("value", "ranks: parameter ", parameter->label, " does not require a gradient");
    const View& view = parameter->grad->view;
    if (view.dtype != DType::f32 && view.dtype != DType::bf16)
      fail("dtype", "ranks: the gradient of ", parameter->label, " is ", shape_text(view), ", expected f32 or bf16");
    for (int64_t first = 0; first < view.elements();) {
      if (buckets_.empty() || buckets_.back().elements == kBucket) {
        if (!buckets_.empty()) close(buckets_.back());
        buckets_.emplace_back();
      }
      Bucket& bucket = buckets_.back();
      const int64_t count = std::min(view.elements() - first, kBucket - bucket.elements);
      bucket.spans.push_back({view, first, count});
      bucket.elements += count, first += count;
    }
  }
  if (buckets_.empty()) fail("value", "ranks: no parameter requires a gradient");
  close(buckets_.back());
  sum_.resize(static_cast<size_t>(mine));
}

// Calls f(span, its memory, bytes of an element, where it lies in the bucket).
template <class Spans, class F>
static void each_span(const Spans& spans, F f) {
  int64_t at = 0;
  for (const auto& span : spans) {
    const size_t size = span.view.dtype == DType::f32 ? 4 : 2;
    f(span, static_cast<char*>(span.view.data) + static_cast<size_t>(span.first) * size, size, at);
    at += span.count;
  }
}

void GradientSum::read(const Bucket& bucket) {
  own_.resize(static_cast<size_t>(bucket.elements));
  each_span(bucket.spans, [&](const Span& span, const char* memory, size_t size, int64_t at) {
    const auto count = static_cast<size_t>(span.count);
    if (size == 4) return device_.backend().download(own_.data() + at, memory, count * size);
    halves_.resize(count);
    device_.backend().download(halves_.data(), memory, count * size);
    for (size_t i = 0; i < count; ++i) own_[static_cast<size_t>(at) + i] = to_f32(bf16{halves_[i]});
  });
}

void GradientSum::write(const Bucket& bucket) {
  each_span(bucket.spans, [&](const Span& span, char* memory, size_t size, int64_t at) {
    device_.before_write(&span.view);
    const auto count = static_cast<size_t>(span.count);
    if (size == 4) return device_.backend().upload(memory, own_.data() + at, count * size);
    halves_.resize(count);
    for (size_t i = 0; i < count; ++i) halves_[i] = to_bf16(own_[static_cast<size_t>(at) + i]).bits;
    device_.backend().upload(memory, halves_.data(), count * size);
  });
}

void GradientSum::add(int present, bool first, bool last) {
  const int rank = ranks_.rank(), size = ranks_.size();
  if (present < 1 || present > size) fail("value", "ranks: gradients of ", present, " ranks of ", size);
  const auto bytes = [](int64_t elements) { return static_cast<size_t>(elements) * sizeof(float); };
  for (const Bucket& bucket : buckets_) {
    const auto part = [&](int r) {
      return begin_of(bucket.elements, r + 1, size) - begin_of(bucket.elements, r, size);
    };
    const int64_t mine = part(rank);
    std::vector<size_t> parts, send, receive;
    for (int r = 0; r < size; ++r) {
      parts.push_back(bytes(part(r)));
      send.push_back(rank < present ? parts.back() : 0);
      receive.push_back(r < present ? bytes(mine) : 0);
    }
    read(bucket);
    received_.resize(static_cast<size_t>(mine * present));
    ranks_.transport().exchange(own_.data(), send, received_.data(), receive);
    float* sum = sum_.data() + bucket.mine;
    for (int r = 0; r < present; ++r) {
      const float* addend = received_.data() + mine * r;
      if (first && r == 0) {
        std::copy_n(addend, mine, sum);
      } else {
        for (int64_t i = 0; i < mine; ++i) sum[i] += addend[i];
      }
    }
    if (!last) continue;
    ranks_.transport().gather(sum, own_.data(), parts);
    write(bucket);
  }
  if (last) return share_reached();
  for (const TensorPtr& parameter : parameters_) device_.run(Fill{parameter->grad->view, 0});
}

void GradientSum::share_reached() {
  std::vector<double> reached;
  for (const TensorPtr& parameter : parameters_) reached.push_back(parameter->reached);
  reached = ranks_.sum(reached);
  for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i]->reached = reached[i] > 0;
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
    if (owners[i] != ranks.rank()) device.before_write(&view);
    const size_t bytes = static_cast<size_t>(view.bytes());
    for (size_t at = 0; at < bytes; at += kPiece) {
      char* const memory = static_cast<char*>(view.data) + at;
      piece.resize(std::min(kPiece, bytes - at));
      if (owners[i] == ranks.rank()) backend.download(piece.data(), memory, piece.size());
      ranks.transport().broadcast(piece.data(), piece.size(), owners[i]);
      if (owners[i] != ranks.rank()) backend.upload(memory, piece.data(), piece.size());
    }
  }
}

}  // namespace qeng
