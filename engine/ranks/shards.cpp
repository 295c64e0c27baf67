#include "engine/ranks/shards.h"

#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "engine/ranks/gradient_sum.h"

namespace qeng {
namespace {

constexpr size_t kAlign = 256;  // of tensors in a buffer, as the device's own allocations
size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

char* data_of(const std::shared_ptr<Buffer>& buffer) { return static_cast<char*>(buffer->data); }

// Addresses that are nobody's memory, for what other ranks have: operations on it are refused.
std::shared_ptr<void> reserve(Device& device, size_t bytes) {
  void* pages = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) fail("memory", "no address space for ", bytes, " bytes of parameters that other ranks have");
  const std::shared_ptr<void> refused = device.put_out_of_reach(
      pages, bytes,
      "another rank has this weight or its gradient: operations find it within a pass of the whole model, which all "
      "ranks run");
  return {pages, [bytes, refused](void* memory) { munmap(memory, bytes); }};
}

}  // namespace

Shards::Shards(Ranks& ranks, Device& device, std::vector<StreamUnit> units, const std::vector<std::vector<int>>& owners,
               bool weights)
    : StreamedWeights(device),
      ranks_(ranks),
      gathers_(weights),
      sums_(ranks, device),
      transport_(ranks.transport(device)),
      courier_(sums_.beside()) {
  if (units.size() < 2 || units.size() != owners.size())
    fail("value", "shards: ", units.size(), " units and owners of ", owners.size(), "; expected two units or more");
  std::map<Tensor*, int> uses;
  size_t away_bytes = 0;
  for (const StreamUnit& unit : units)
    for (const TensorPtr& tensor : unit.weights) ++uses[tensor.get()];
  for (size_t u = 0; u < units.size(); ++u) {
    Unit unit{.name = units[u].name, .parts = {}, .weight_bytes = {}, .own = nullptr};
    if (units[u].weights.size() != owners[u].size())
      fail("value", "shards: ", owners[u].size(), " owners of the ", units[u].weights.size(), " tensors of ",
           unit.name);
    for (size_t i = 0; i < owners[u].size(); ++i) {
      const TensorPtr& tensor = units[u].weights[i];
      if (owners[u][i] < 0 || owners[u][i] >= ranks.size()) fail("value", "shards: there is no rank ", owners[u][i]);
      if (tensor->view.dtype != DType::f32 && tensor->view.dtype != DType::bf16)
        fail("dtype", "shards: ", tensor->label, " is stored as ", dtype_name(tensor->view.dtype),
             "; every weight is trained, in f32 or bf16");
      away_bytes += aligned(tensor->view.bytes()) + aligned(static_cast<size_t>(tensor->view.elements()) * 4);
      int& times = uses[tensor.get()];
      if (times > 0) total_ += tensor->view.bytes();
      if (times == 1) unit.parts.push_back({tensor, owners[u][i]});
      if (times > 1) whole_.push_back({tensor, owners[u][i]}), times = 0;  // once, where it comes first
    }
    std::stable_sort(unit.parts.begin(), unit.parts.end(),
                     [](const Part& a, const Part& b) { return a.owner < b.owner; });
    units_.push_back(std::move(unit));
  }
  away_ = reserve(device_, std::max(away_bytes, kAlign));
  if (gathers_) take_weights();
}

// Each rank keeps its own weights side by side, as they are sent.
void Shards::take_weights() {
  for (Unit& unit : units_) {
    unit.weight_bytes.assign(static_cast<size_t>(ranks_.size()), 0);
    for (Part& part : unit.parts) {
      const size_t bytes = aligned(part.tensor->view.bytes());
      part.weight_at = unit.weights;
      unit.weights += bytes, unit.weight_bytes[static_cast<size_t>(part.owner)] += bytes;
    }
    unit.own = device_.allocate(unit.weight_bytes[static_cast<size_t>(ranks_.rank())], "weights");
    const size_t begin =
        std::accumulate(unit.weight_bytes.begin(), unit.weight_bytes.begin() + ranks_.rank(), size_t{0});
    for (Part& part : unit.parts) {
      View& view = part.tensor->view;
      if (owns(part)) {
        part.kept_weight = data_of(unit.own) + (part.weight_at - begin);
        View kept = view;
        kept.data = part.kept_weight;
        device_.run(Copy{view, kept});
      } else {
        part.kept_weight = static_cast<char*>(away_.get()) + away_used_;
        away_used_ += aligned(view.bytes());
      }
      const auto memory = std::make_shared<std::pair<std::shared_ptr<Buffer>, std::shared_ptr<void>>>(unit.own, away_);
      part.tensor->buffer = device_.adopt(part.kept_weight, 0, "weights", memory);  // unit.own is what counts
      view.data = part.kept_weight;
    }
  }
  device_.trim();
  weights_ = device_.allocate(largest_pair(&Unit::weights), "weights");
}

// Bytes of two units that follow one another, at most.
size_t Shards::largest_pair(size_t Unit::*bytes) const {
  size_t largest = 0;
  for (size_t u = 1; u < units_.size(); ++u) largest = std::max(largest, units_[u - 1].*bytes + units_[u].*bytes);
  return largest;
}

// Every other unit lies at the beginning of the buffer, the others at its end.
char* Shards::place_in(const std::shared_ptr<Buffer>& buffer, size_t unit, size_t Unit::*bytes) const {
  return data_of(buffer) + (unit % 2 ? buffer->bytes - units_[unit].*bytes : 0);
}

void Shards::learn(const TensorPtr& parameter, DType gradient) {
  if (laid_out_) fail("value", "shards: ", parameter->label, " begins to learn after the first step");
  for (const Part& part : whole_)
    if (part.tensor == parameter) return set_requires_grad(parameter, true, gradient);
  Part* part = nullptr;
  for (Unit& unit : units_)
    for (Part& each : unit.parts)
      if (each.tensor == parameter) part = &each;
  if (!part) fail("value", "shards: ", parameter->label, " is in none of the units");
  parameter->requires_grad = true, parameter->reached = false;
  if (part->kept_gradient && parameter->grad->view.dtype == gradient) return;
  const View& view = parameter->view;
  const Shape shape(view.shape, view.shape + view.rank);
  if (owns(*part)) {
    parameter->grad = make_zeros(device_, shape, gradient, "gradients");
    part->kept_gradient = static_cast<char*>(parameter->grad->view.data);
    return;
  }
  if (!part->kept_gradient) {
    part->kept_gradient = static_cast<char*>(away_.get()) + away_used_;
    away_used_ += aligned(static_cast<size_t>(view.elements()) * 4);
  }
  parameter->grad = std::make_shared<Tensor>();
  parameter->grad->view = view;
  parameter->grad->view.dtype = gradient;
  parameter->grad->view.data = part->kept_gradient;
  parameter->grad->buffer = device_.adopt(part->kept_gradient, 0, "gradients", away_);
}

View Shards::gradient_memory(const Part& part, size_t unit) const {
  View view = part.tensor->grad->view;
  view.data = place_in(gradients_, unit, &Unit::gradients) + part.gradient_at;
  return view;
}

// A unit's gradients in its buffer, and the buckets in which they are sent. In each bucket every owner has the same share
// of what is its own in the unit.
void Shards::add_buckets(Unit& unit) {
  const auto number = static_cast<size_t>(&unit - units_.data());
  const size_t size = static_cast<size_t>(ranks_.size());
  const int64_t most = std::max(GradientSum::kBucket / ranks_.size(), int64_t{1} << 14);
  std::vector<int64_t> elements(size, 0);
  for (const Part& part : unit.parts) elements[static_cast<size_t>(part.owner)] += part.tensor->view.elements();
  const int64_t buckets = (std::accumulate(elements.begin(), elements.end(), int64_t{0}) + most - 1) / most;
  unit.first_bucket = sums_.size();
  for (int64_t b = 0; b < buckets; ++b) {
    BucketSums::Bucket bucket{.spans = {}, .begins = {0}};
    size_t part = 0;
    for (size_t owner = 0; owner < size; ++owner) {
      const int64_t begin = elements[owner] * b / buckets, end = elements[owner] * (b + 1) / buckets;
      int64_t at = 0;  // among the owner's
      for (; part < unit.parts.size() && unit.parts[part].owner == static_cast<int>(owner); ++part) {
        const Part& each = unit.parts[part];
        const int64_t count = each.tensor->view.elements();
        const int64_t first = std::max(begin - at, int64_t{0}), past = std::min(end - at, count);
        if (first < past) {
          View sum = each.tensor->grad->view;
          sum.data = owns(each) ? each.kept_gradient : nullptr;
          bucket.spans.push_back({gradient_memory(each, number), sum, first, past - first});
        }
        at += count;
      }
      bucket.begins.push_back(bucket.begins.back() + end - begin);
    }
    sums_.add(std::move(bucket));
  }
  unit.last_bucket = sums_.size();
}

void Shards::lay_out() {
  for (Unit& unit : units_) {
    for (Part& part : unit.parts) {
      check_gradient(*part.tensor);
      part.gradient_at = unit.gradients;
      unit.gradients += aligned(part.tensor->grad->view.bytes());
    }
  }
  gradients_ = device_.allocate(largest_pair(&Unit::gradients), "gradients");
  for (Unit& unit : units_) add_buckets(unit);
  whole_bucket_ = sums_.size();
  for (const Part& part : whole_) {
    check_gradient(*part.tensor);
    const View& view = part.tensor->grad->view;
    const int64_t most = std::max(GradientSum::kBucket / ranks_.size(), int64_t{1} << 14);
    for (int64_t first = 0; first < view.elements(); first += most) {
      const int64_t count = std::min(most, view.elements() - first);
      BucketSums::Bucket bucket{.spans = {{view, owns(part) ? view : View(), first, count}}, .begins = {}};
      for (int r = 0; r <= ranks_.size(); ++r) bucket.begins.push_back(r > part.owner ? count : 0);
      sums_.add(std::move(bucket));
    }
  }
  laid_out_ = true;
}

void Shards::begin(int present, bool first, bool last) {
  if (open_) fail("value", "ranks: a round begins before the one before has ended");
  device_.before_write(nullptr);
  for (const Unit& unit : units_)
    for (const Part& part : unit.parts) device_.before_write(&part.tensor->view);
  place(kNoUnit);
  if (!laid_out_) lay_out();
  round_ = {present, first, last};
  sums_.begin(round_);
  open_ = true, passed_ = false, at_ = kNoUnit;
  for (const Part& part : whole_) device_.run(Fill{part.tensor->grad->view, 0});
}

void Shards::finish() {
  if (!open_) fail("value", "ranks: no round has begun");
  if (ranks_.rank() >= round_.present || !device_.backend().computes()) {  // which a rehearsal's operations do not run
    for (size_t unit = 0; unit <= last(); ++unit) use(static_cast<int>(unit), Pass::forward);
    for (size_t unit = last(); unit-- > 1;) use(static_cast<int>(unit), Pass::backward);
    use(kNoUnit, Pass::backward);
  }
  if (!passed_) fail("value", "ranks: a round without a backward pass of the whole model");
  send_gradients("gradients of " + units_[0].name, units_[0].first_bucket, units_[0].last_bucket);
  courier_.await(send_gradients("gradients of several units", whole_bucket_, sums_.size()));
  open_ = false, at_ = kNoUnit;
  place(kNoUnit);
  if (!round_.last) return;
  std::vector<TensorPtr> parameters;
  for (const Unit& unit : units_)
    for (const Part& part : unit.parts) parameters.push_back(part.tensor);
  for (const Part& part : whole_) parameters.push_back(part.tensor);
  share_reached(ranks_, parameters);
}

void Shards::follow() {
  if (!gathers_) return;
  for (size_t unit = 0; unit <= last(); ++unit) use(static_cast<int>(unit), Pass::inference);
}

void Shards::rest() {
  at_ = kNoUnit;
  place(kNoUnit);
}

// kNoUnit: in the way back, where the gradient of the embedding comes (scripts/qeng/model/nn.lua), whose weights are not
// read.
void Shards::use(int unit, Pass pass) {
  const auto number = static_cast<size_t>(unit == kNoUnit ? 0 : unit);
  if (number > last()) fail("value", "shards have units 0 to ", last(), ", not ", unit);
  const bool back = pass == Pass::backward;
  if (at_ == static_cast<int>(number) && pass_ == pass && number != 0) return;
  if (pass != Pass::inference && !open_)
    fail("unsupported", "a pass with gradients outside of a step: ranks share them, and only q.train knows when");
  const int before = at_;
  at_ = static_cast<int>(number), pass_ = pass;
  if (gathers_ && !(back && number == 0)) {
    if (!back && number == 0) holds_ = {-1, -1};  // weights may have changed since
    bring(at_);
    courier_.await(brought_[number % 2]);
    if (!back && number < last()) bring(at_ + 1);
    if (back && number > 1) bring(at_ - 1);
  }
  if (pass == Pass::inference || (!back && number < last())) return;
  if (back) {
    if (before != static_cast<int>(number) + 1) fail("value", "ranks: a backward pass leaves units out");
    sent_[(number + 1) % 2] = send_gradients("gradients of " + units_[number + 1].name, units_[number + 1].first_bucket,
                                             units_[number + 1].last_bucket);
  }
  clear_gradients(at_);
  passed_ = back && number == 0;
}

// Queued: unless the buffer has them.
void Shards::bring(int number) {
  const size_t slot = static_cast<size_t>(number) % 2;
  if (holds_[slot] == number) return;
  holds_[slot] = number;
  const Unit& unit = units_[static_cast<size_t>(number)];
  figures_.bytes += static_cast<double>(unit.weights), ++figures_.fetches;
  char* const to = place_in(weights_, static_cast<size_t>(number), &Unit::weights);
  brought_[slot] = courier_.give("weights of " + unit.name, [this, &unit, to] {
    Backend& backend = device_.backend();
    if (transport_.of_device()) backend.synchronize();
    if (transport_.of_device() || backend.host_memory())
      return transport_.gather(unit.own->data, to, unit.weight_bytes);
    staging_[0].resize(unit.own->bytes), staging_[1].resize(unit.weights);
    backend.download(staging_[0].data(), unit.own->data, unit.own->bytes);
    transport_.gather(staging_[0].data(), staging_[1].data(), unit.weight_bytes);
    backend.upload(to, staging_[1].data(), unit.weights);
  });
}

void Shards::clear_gradients(int number) {
  const auto unit = static_cast<size_t>(number);
  courier_.await(sent_[unit % 2]);
  const auto elements = static_cast<int64_t>(units_[unit].gradients / sizeof(float));
  if (!elements) return;
  device_.backend().run(Fill{View(place_in(gradients_, unit, &Unit::gradients), DType::f32, {elements}), 0});
}

size_t Shards::send_gradients(const std::string& what, size_t first, size_t end) {
  return courier_.give(what, [this, first, end] {
    for (size_t bucket = first; bucket < end; ++bucket) sums_.exchange(bucket);
  });
}

void Shards::show(int unit) { place(unit == kNoUnit ? 0 : unit); }

// Where the tensors of the unit are, and of no other, for operations that are captured or run from here on.
void Shards::place(int unit) {
  if (unit == shown_) return;
  const auto set = [&](int number, bool used) {
    if (number < 0 || static_cast<size_t>(number) > last()) return;
    const auto u = static_cast<size_t>(number);
    for (const Part& part : units_[u].parts) {
      if (gathers_)
        part.tensor->view.data = used ? place_in(weights_, u, &Unit::weights) + part.weight_at : part.kept_weight;
      if (laid_out_) part.tensor->grad->view.data = used ? gradient_memory(part, u).data : part.kept_gradient;
    }
  };
  set(shown_, false);
  set(unit, true);
  shown_ = unit;
}

void Shards::share() {
  std::vector<TensorPtr> tensors;
  std::vector<int> owners;
  const auto add = [&](const std::vector<Part>& parts) {
    for (const Part& part : parts) tensors.push_back(part.tensor), owners.push_back(part.owner);
  };
  add(whole_);
  for (const Unit& unit : units_)
    if (!gathers_) add(unit.parts);
  share_tensors(ranks_, tensors, owners);
}

void Shards::gather() {
  if (!gathers_) return;
  rest();
  constexpr size_t kPiece = size_t{16} << 20;
  const bool here = ranks_.rank() == 0;
  std::vector<char> piece(kPiece);
  for (Unit& unit : units_)
    for (Part& part : unit.parts) {
      View& view = part.tensor->view;
      const size_t bytes = view.bytes();
      std::shared_ptr<Buffer> whole = here ? device_.allocate(bytes, "weights") : nullptr;
      for (size_t at = 0; at < bytes && device_.backend().computes(); at += kPiece) {
        const size_t count = std::min(kPiece, bytes - at);
        std::vector<size_t> send(static_cast<size_t>(ranks_.size()), 0), receive = send;
        if (owns(part)) {
          send[0] = count;
          device_.backend().download(piece.data(), part.kept_weight + at, count);
        }
        if (here) receive[static_cast<size_t>(part.owner)] = count;
        std::vector<char> came(here ? count : 0);
        ranks_.transport().exchange(piece.data(), send, came.data(), receive);
        if (here) device_.backend().upload(data_of(whole) + at, came.data(), count);
      }
      if (!here) continue;
      gathered_.push_back(std::exchange(part.tensor->buffer, whole));
      view.data = whole->data;
    }
}

void Shards::release() {
  size_t i = 0;
  for (Unit& unit : units_)
    for (Part& part : unit.parts) {
      if (i == gathered_.size()) break;
      part.tensor->buffer = gathered_[i++];
      part.tensor->view.data = part.kept_weight;
    }
  gathered_.clear();
  device_.trim();
}

size_t Shards::resident() {
  if (!gathers_) return total_;
  size_t bytes = weights_->bytes;
  for (const Unit& unit : units_) bytes += unit.own->bytes;
  for (const Part& part : whole_) bytes += part.tensor->view.bytes();
  return bytes;
}

}  // namespace qeng
