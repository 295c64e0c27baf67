#include "engine/ranks/gradient_sum.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "kernels/math/bf16.h"
#include "kernels/view_text.h"

namespace qeng {
namespace {

// Where the part begins, of `elements`, that rank r sums.
int64_t begin_of(int64_t elements, int r, int ranks) { return elements * r / ranks; }

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

GradientSum::GradientSum(Ranks& ranks, Device& device, std::vector<TensorPtr> parameters, int64_t bucket_elements)
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
      if (buckets_.empty() || buckets_.back().elements == bucket_elements) {
        if (!buckets_.empty()) close(buckets_.back());
        buckets_.emplace_back();
      }
      Bucket& bucket = buckets_.back();
      const int64_t count = std::min(view.elements() - first, bucket_elements - bucket.elements);
      bucket.spans.push_back({view, first, count});
      bucket.elements += count, first += count;
    }
  }
  if (buckets_.empty()) fail("value", "ranks: no parameter requires a gradient");
  close(buckets_.back());
  mine_ = mine;
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
    const auto count = static_cast<size_t>(span.count);
    if (size == 4) return device_.backend().upload(memory, own_.data() + at, count * size);
    halves_.resize(count);
    for (size_t i = 0; i < count; ++i) halves_[i] = to_bf16(own_[static_cast<size_t>(at) + i]).bits;
    device_.backend().upload(memory, halves_.data(), count * size);
  });
}

void GradientSum::exchange(const Bucket& bucket) {
  const int rank = ranks_.rank(), size = ranks_.size();
  const bool keeps = !(first_ && last_);  // sums of one round to the next
  const auto bytes = [](int64_t elements) { return static_cast<size_t>(elements) * sizeof(float); };
  const auto part = [&](int r) { return begin_of(bucket.elements, r + 1, size) - begin_of(bucket.elements, r, size); };
  const int64_t mine = part(rank);
  std::vector<size_t> parts, send, receive;
  for (int r = 0; r < size; ++r) {
    parts.push_back(bytes(part(r)));
    send.push_back(rank < present_ ? parts.back() : 0);
    receive.push_back(r < present_ ? bytes(mine) : 0);
  }
  read(bucket);
  received_.resize(static_cast<size_t>(mine * present_));
  ranks_.transport().exchange(own_.data(), send, received_.data(), receive);
  sum_.resize(static_cast<size_t>(keeps ? mine_ : mine));
  float* sum = sum_.data() + (keeps ? bucket.mine : 0);
  for (int r = 0; r < present_; ++r) {
    const float* addend = received_.data() + mine * r;
    if (first_ && r == 0) {
      std::copy_n(addend, mine, sum);
    } else {
      for (int64_t i = 0; i < mine; ++i) sum[i] += addend[i];
    }
  }
  if (!last_) return;
  ranks_.transport().gather(sum, own_.data(), parts);
  write(bucket);
}

// In one order on all ranks, whichever of their gradients are final first.
void GradientSum::exchange_all() {
  try {
    for (size_t done = 0; done < buckets_.size(); ++done) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return ready_ > done; });
      }
      const double begin = now();
      exchange(buckets_[buckets_.size() - 1 - done]);
      figures_.exchanging += now() - begin;
    }
  } catch (...) {
    failure_ = std::current_exception();
  }
}

void GradientSum::ready(size_t count) {
  {
    const std::lock_guard lock(mutex_);
    ready_ = std::max(ready_, count);
  }
  changed_.notify_one();
}

void GradientSum::begin(int present, bool first, bool last) {
  if (present < 1 || present > ranks_.size())
    fail("value", "ranks: gradients of ", present, " ranks of ", ranks_.size());
  if (present_ != 0) fail("value", "ranks: a round begins before the one before has ended");
  for (const TensorPtr& parameter : parameters_) device_.before_write(&parameter->grad->view);
  present_ = present, first_ = first, last_ = last, ready_ = 0;
  if (device_.backend().host_memory()) thread_ = std::thread([this] { exchange_all(); });
}

void GradientSum::finish() {
  if (present_ == 0) fail("value", "ranks: no round has begun");
  const double begin = now();
  ready(buckets_.size());
  if (thread_.joinable()) {
    thread_.join();
  } else {
    exchange_all();
  }
  figures_.waiting += now() - begin;
  present_ = 0;
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  if (last_) return share_reached();
  for (const TensorPtr& parameter : parameters_) device_.run(Fill{parameter->grad->view, 0});
}

// A round that an error cut short: other ranks wait for its gradients, so that it cannot be ended but by the launcher.
GradientSum::~GradientSum() {
  if (thread_.joinable()) thread_.detach();
}

void GradientSum::watch(Program& program) {
  const size_t count = buckets_.size();
  std::vector<size_t> final_at(count, 0);  // the number of the last operation that writes to one of the gradients
  for (size_t i = 0; i < program.ops().size(); ++i)
    for_each_view(program.ops()[i].op, [&](const char*, const View& view, Access access) {
      if (access == Access::read) return;
      for (size_t b = 0; b < count; ++b)
        for (const Span& span : buckets_[b].spans)
          if (overlap(span.view, view)) final_at[b] = i;
    });
  for (size_t b = count - 1; b-- > 0;) final_at[b] = std::max(final_at[b], final_at[b + 1]);
  program.set_after([this, final_at](size_t i) {
    size_t sent = 0;
    while (sent < final_at.size() && final_at[final_at.size() - 1 - sent] <= i) ++sent;
    if (present_ > 0 && sent > ready_) ready(sent);
  });
}

GradientSum::Figures GradientSum::figures() { return std::exchange(figures_, {}); }

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
