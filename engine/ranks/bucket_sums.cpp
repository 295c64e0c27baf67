#include "engine/ranks/bucket_sums.h"

#include <algorithm>
#include <utility>

#include "kernels/math/bf16.h"

namespace qeng {
namespace {

size_t size_of(const View& view) { return view.dtype == DType::f32 ? 4 : 2; }
char* memory_of(const View& view, int64_t first) {
  return static_cast<char*>(view.data) + static_cast<size_t>(first) * size_of(view);
}
size_t bytes_of(int64_t elements) { return static_cast<size_t>(elements) * sizeof(float); }

void move(Device& device, const View& from, const View& to) {
  from.dtype == to.dtype ? device.backend().run(Copy{from, to}) : device.backend().run(Cast{from, to});
}

}  // namespace

BucketSums::BucketSums(Ranks& ranks, Device& device)
    : ranks_(ranks), device_(device), transport_(ranks.transport(device)), on_device_(transport_.of_device()) {}

BucketSums::~BucketSums() {
  if (held_) device_.let_go(held_, "exchange");
}

bool BucketSums::beside() const { return device_.backend().host_memory() && !on_device_; }

void BucketSums::make(Memory& memory, int64_t elements) {
  if (memory.made || elements == 0) return;
  memory.made = true;
  if (on_device_) {
    memory.device = device_.allocate(bytes_of(elements), "exchange");
    return;
  }
  if (device_.backend().host_memory()) {
    device_.hold(bytes_of(elements), "exchange", "what ranks send");
    held_ += bytes_of(elements);
  }
  if (device_.backend().computes()) memory.host.resize(static_cast<size_t>(elements));
}

bool BucketSums::in_place(const Span& span) const {
  return span.sum.dtype == DType::f32 && span.sum.data != span.gradient.data &&
         (device_.backend().host_memory() || on_device_);
}

// Calls f(span, where it lies) for the spans of this rank's part.
template <class F>
static void each_own(const BucketSums::Bucket& bucket, int rank, F f) {
  int64_t at = 0;
  for (const BucketSums::Span& span : bucket.spans) {
    if (at >= bucket.begins[static_cast<size_t>(rank)] && at < bucket.begins[static_cast<size_t>(rank) + 1]) f(span);
    at += span.count;
  }
}

size_t BucketSums::add(Bucket bucket) {
  const auto rank = static_cast<size_t>(ranks_.rank());
  const int64_t mine = bucket.begins[rank + 1] - bucket.begins[rank];
  int64_t kept = bucket.to_all ? mine : 0;
  if (!bucket.to_all)
    each_own(bucket, ranks_.rank(), [&](const Span& span) { kept += in_place(span) ? 0 : span.count; });
  places_.push_back(keeps_);
  keeps_ += kept;
  most_kept_ = std::max(most_kept_, kept);
  most_own_ = std::max(most_own_, bucket.begins.back());
  most_received_ = std::max(most_received_, mine * ranks_.size());
  buckets_.push_back(std::move(bucket));
  return buckets_.size() - 1;
}

void BucketSums::begin(const Round& round) {
  if (round.present < 1 || round.present > ranks_.size())
    fail("value", "ranks: gradients of ", round.present, " ranks of ", ranks_.size());
  round_ = round;
  make(own_, most_own_);
  make(received_, most_received_);
  if (round.first && round.last)
    make(sum_, most_kept_);
  else
    make(kept_, keeps_);
}

void BucketSums::read(const Bucket& bucket) {
  int64_t at = 0;
  for (const Span& span : bucket.spans) {
    const auto count = static_cast<size_t>(span.count);
    char* memory = memory_of(span.gradient, span.first);
    if (on_device_) {
      move(device_, {memory, span.gradient.dtype, {span.count}}, {own_.data() + at, DType::f32, {span.count}});
    } else if (size_of(span.gradient) == 4) {
      device_.backend().download(own_.data() + at, memory, count * 4);
    } else {
      halves_.resize(count);
      device_.backend().download(halves_.data(), memory, count * 2);
      for (size_t i = 0; i < count; ++i) own_.data()[static_cast<size_t>(at) + i] = to_f32(bf16{halves_[i]});
    }
    at += span.count;
  }
}

void BucketSums::write(const Span& span, float* values) {
  const auto count = static_cast<size_t>(span.count);
  char* memory = memory_of(span.sum, span.first);
  if (on_device_) return move(device_, {values, DType::f32, {span.count}}, {memory, span.sum.dtype, {span.count}});
  if (size_of(span.sum) == 4) return device_.backend().upload(memory, values, count * 4);
  halves_.resize(count);
  for (size_t i = 0; i < count; ++i) halves_[i] = to_bf16(values[i]).bits;
  device_.backend().upload(memory, halves_.data(), count * 2);
}

// sum (+)= what came of each rank, in their order.
void BucketSums::add_up(const float* addends, int64_t stride, int64_t count, float* sum) {
  for (int r = 0; r < round_.present; ++r) {
    const float* addend = addends + stride * r;
    const bool begins = round_.first && r == 0;
    if (on_device_) {
      const View to(sum, DType::f32, {count}), from(const_cast<float*>(addend), DType::f32, {count});
      begins ? device_.backend().run(Copy{from, to}) : device_.backend().run(Add{to, from, to});
    } else if (begins) {
      std::copy_n(addend, count, sum);
    } else {
      for (int64_t i = 0; i < count; ++i) sum[i] += addend[i];
    }
  }
}

void BucketSums::exchange(size_t number) {
  const Bucket& bucket = buckets_[number];
  const int rank = ranks_.rank(), size = ranks_.size(), present = round_.present;
  const auto part = [&](int r) {
    return bucket.begins[static_cast<size_t>(r) + 1] - bucket.begins[static_cast<size_t>(r)];
  };
  const int64_t mine = part(rank);
  std::vector<size_t> parts, send, receive;
  for (int r = 0; r < size; ++r) {
    parts.push_back(bytes_of(part(r)));
    send.push_back(rank < present ? parts.back() : 0);
    receive.push_back(r < present ? bytes_of(mine) : 0);
  }
  const bool computes = device_.backend().computes();
  if (rank < present && computes) read(bucket);
  if (on_device_) device_.backend().synchronize();
  transport_.exchange(own_.data(), send, received_.data(), receive);
  if (!computes) {  // a rehearsal, of whose transport nothing comes
    if (bucket.to_all && round_.last) transport_.gather(nullptr, nullptr, parts);
    return;
  }
  float* sum = round_.first && round_.last ? sum_.data() : kept_.data() + places_[number];
  if (bucket.to_all) {
    add_up(received_.data(), mine, mine, sum);
    if (!round_.last) return;
    if (on_device_) device_.backend().synchronize();
    transport_.gather(sum, own_.data(), parts);
    int64_t at = 0;
    for (const Span& span : bucket.spans) {
      write(span, own_.data() + at);
      at += span.count;
    }
    return;
  }
  int64_t at = 0;
  each_own(bucket, rank, [&](const Span& span) {
    if (in_place(span)) {
      add_up(received_.data() + at, mine, span.count, span.sum.as<float>() + span.first);
    } else {
      add_up(received_.data() + at, mine, span.count, sum);
      if (round_.last) write(span, sum);
      sum += span.count;
    }
    at += span.count;
  });
}

}  // namespace qeng
