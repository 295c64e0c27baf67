#include "engine/stream/buffered_stream.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "engine/stream/pages.h"

namespace qeng {

namespace {

constexpr size_t kAlign = 256;  // of tensors in a buffer, as the device's own allocations

size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }
std::string in_mb(size_t bytes) { return std::to_string((bytes + 999999) / 1000000) + " MB"; }

// The memory that a streamed tensor keeps.
struct Places {
  std::shared_ptr<Buffer> buffer;
  std::shared_ptr<void> values;        // pinned memory, or the file's
  std::shared_ptr<void> out_of_reach;  // as long as they are the file's
};

std::shared_ptr<void> pinned(const std::shared_ptr<SideCopies>& copies, size_t bytes) {
  return {copies->pin(bytes), [copies](void* memory) { copies->unpin(memory); }};
}

void stay(Device& device, Tensor& tensor) {
  const std::shared_ptr<Buffer> memory = device.allocate(tensor.view.bytes(), "weights");
  device.backend().upload(memory->data, tensor.view.data, tensor.view.bytes());
  tensor.view.data = memory->data;
  tensor.buffer = memory;
}

}  // namespace

BufferedStream::BufferedStream(Device& device, std::vector<StreamUnit> units, size_t limit, const std::string& option,
                               size_t keep, int depth)
    : StreamedWeights(device), copies_(device.backend().side_copies()) {
  const size_t most_buffers = static_cast<size_t>(depth) + 1;
  if (!copies_)
    fail("unsupported", "streamed weights: ", device.backend().name(), " copies nothing beside its operations");
  std::map<Tensor*, int> shared;
  for (const StreamUnit& given : units)
    for (const TensorPtr& tensor : given.weights) ++shared[tensor.get()];
  for (StreamUnit& given : units) {
    Unit unit;
    unit.name = given.name;
    unit.writable = given.writable;
    for (const TensorPtr& tensor : given.weights) {
      if (!tensor->buffer->owner) continue;
      if (shared[tensor.get()] > 1) {
        total_ += tensor->view.bytes();
        stay(device_, *tensor);
        continue;
      }
      unit.offsets.push_back(unit.bytes);
      unit.bytes += aligned(tensor->view.bytes());
      unit.moving.push_back(tensor);
    }
    total_ += unit.bytes;
    units_.push_back(std::move(unit));
  }

  const size_t room = device_.budget() ? device_.budget() - std::min(device_.budget(), device_.held())
                                       : device_.backend().memory().free / 10 * 9;  // some for the driver
  std::vector<int> by_size;
  for (int i = 0; i < static_cast<int>(units_.size()); ++i)
    if (units_[static_cast<size_t>(i)].bytes) by_size.push_back(i);
  std::stable_sort(by_size.begin(), by_size.end(), [&](int a, int b) {
    return units_[static_cast<size_t>(a)].bytes > units_[static_cast<size_t>(b)].bytes;
  });
  // The largest first: without them the buffers are smaller.
  size_t kept = 0, buffer_bytes = 0;
  std::vector<int> moving;
  for (size_t i = 0; i < by_size.size(); ++i) {
    const size_t bytes = units_[static_cast<size_t>(by_size[i])].bytes;
    const size_t next = i + 1 < by_size.size() ? units_[static_cast<size_t>(by_size[i + 1])].bytes : 0;
    const size_t buffers = most_buffers * std::max(buffer_bytes, next);
    if (room > buffers && kept + bytes <= (keep == kHalf ? (room - buffers) / 2 : std::min(keep, room - buffers))) {
      kept += bytes;
      for (const TensorPtr& tensor : units_[static_cast<size_t>(by_size[i])].moving) stay(device_, *tensor);
      units_[static_cast<size_t>(by_size[i])].moving.clear();
    } else {
      moving.push_back(by_size[i]);
      buffer_bytes = std::max(buffer_bytes, bytes);
      pinned_bytes_ += bytes;
    }
  }
  if (moving.empty()) return;
  const std::string& largest = units_[static_cast<size_t>(moving.front())].name;
  std::sort(moving.begin(), moving.end());
  streamed_ = moving;
  const size_t buffers = std::min(most_buffers, moving.size());
  if (buffers * buffer_bytes > room)
    fail("memory", "streamed weights: ", buffers, " units of up to ", in_mb(buffer_bytes), " (", largest,
         ") do not fit the ", in_mb(room), " that are left of the device's memory; give the device's budget more");
  choose_pinned(limit, option);
  for (size_t i = 0; i < buffers; ++i) buffers_.push_back(device_.allocate(buffer_bytes, "streamed weights"));
  holds_.assign(buffers, -1);
  figures_.depth = static_cast<int>(buffers) - 1;
  for (int order = 0; order < static_cast<int>(streamed_.size()); ++order) {
    Unit& unit = units_[static_cast<size_t>(streamed_[static_cast<size_t>(order)])];
    unit.order = order;
    lay_out(unit);
  }
}

// Units that stay in the file, where the limit is less than all of them.
void BufferedStream::choose_pinned(size_t limit, const std::string& option) {
  if (!limit || pinned_bytes_ <= limit) return;
  // Of a unit in the file, what is not as the file has it (llama's q and k in a GGUF file) is in the host's memory.
  const auto least_of = [](const Unit& unit) {
    if (unit.writable) return unit.bytes;
    size_t bytes = 0;
    for (const TensorPtr& tensor : unit.moving)
      if (tensor->buffer->home) bytes += aligned(tensor->view.bytes());
    return bytes;
  };
  size_t staging = 0, least = 0;
  for (const int unit : streamed_) {
    const Unit& moving = units_[static_cast<size_t>(unit)];
    if (!moving.writable) staging = std::max(staging, moving.bytes);
    least += least_of(moving);
  }
  least += staging;
  if (least > limit)
    fail("memory", "streamed weights: ", in_mb(least), " have to lie in pinned memory of the host, more than ", option,
         " ", in_mb(limit), "; give ", option,
         " at least that, or the device's budget more so that fewer are streamed");
  const double share = static_cast<double>(limit - least) / static_cast<double>(pinned_bytes_ - (least - staging));
  pinned_bytes_ = least;
  double asked = 0, given = 0;
  for (const int number : streamed_) {
    Unit& unit = units_[static_cast<size_t>(number)];
    const size_t more = unit.bytes - least_of(unit);
    if (unit.writable) continue;
    asked += static_cast<double>(more) * share;
    if (given + static_cast<double>(more) <= asked) {
      given += static_cast<double>(more);
      pinned_bytes_ += more;
      continue;
    }
    filed_bytes_ += unit.bytes;
    for (const TensorPtr& tensor : unit.moving) unit.sources.push_back(static_cast<const char*>(tensor->view.data));
  }
  staging_ = pinned(copies_, staging);
}

void BufferedStream::lay_out(Unit& unit) {
  const std::shared_ptr<Buffer>& buffer = buffers_[static_cast<size_t>(buffer_of(unit.order))];
  if (unit.sources.empty()) unit.pinned = pinned(copies_, unit.bytes);
  std::vector<bool> mapped;
  for (size_t i = 0; i < unit.moving.size(); ++i) {
    Tensor& tensor = *unit.moving[i];
    Places places{buffer, unit.pinned, {}};
    std::string account = "weights in pinned memory";
    if (unit.pinned) {
      char* home = static_cast<char*>(unit.pinned.get()) + unit.offsets[i];
      std::memcpy(home, tensor.view.data, tensor.view.bytes());
      tensor.view.data = home;
    } else {
      mapped.push_back(!tensor.buffer->home);
      account = tensor.buffer->account;
      places.values = tensor.buffer->owner;
      places.out_of_reach = device_.put_out_of_reach(
          tensor.view.data, tensor.view.bytes(),
          unit.name +
              ": its weights are in their file; operations find them within the unit's use only (a pass of the model)");
    }
    void* home = tensor.view.data;
    tensor.buffer = device_.adopt(static_cast<char*>(buffer->data) + unit.offsets[i], tensor.view.bytes(), account,
                                  std::make_shared<Places>(std::move(places)));
    tensor.buffer->home = home;
    tensor.buffer->read_only = !unit.writable;
  }
  if (unit.pinned) return;
  unit.torn = "streamed weights: " + unit.name + ": the file became shorter while it was in use, or its disk failed";
  unit.fill.write = [this, &unit, mapped]() -> const char* {
    for (size_t i = 0; i < mapped.size(); ++i)
      if (mapped[i]) ask_for_pages(unit.sources[i], unit.moving[i]->view.bytes());
    for (size_t i = 0; i < mapped.size(); ++i) {
      const size_t bytes = unit.moving[i]->view.bytes();
      if (mapped[i] && !bring_pages(unit.sources[i], bytes)) return unit.torn.c_str();
      std::memcpy(static_cast<char*>(staging_.get()) + unit.offsets[i], unit.sources[i], bytes);
      if (mapped[i]) drop_pages(unit.sources[i], bytes);
    }
    return nullptr;
  };
}

BufferedStream::~BufferedStream() { device_.finish("streamed weights were let go"); }

void BufferedStream::use(int unit, Pass pass) {
  if (unit != kNoUnit && (unit < 0 || unit >= static_cast<int>(units_.size())))
    fail("value", "this stream has units 0 to ", units_.size() - 1, ", not ", unit);
  if (streamed_.empty()) return;
  show(unit);  // also where a program runs its operations, whose passes this did not see
  if (unit == kNoUnit) return leave();
  const int count = static_cast<int>(streamed_.size()), buffers = static_cast<int>(buffers_.size());
  const int order = units_[static_cast<size_t>(unit)].order;
  // A backward pass that an error cut short is not finished in the next one, whose recording would repeat it.
  if (unit == 0 && pass != Pass::backward) pass_ = pass;
  if (at_ != order) leave();
  if (unit == 0 && pass != Pass::backward) {
    for (int buffer = 0; buffer < buffers; ++buffer) copies_->release(buffer);
    holds_.assign(holds_.size(), -1);
  }
  // Where the pass stands among streamed units: at this one, or before the next of them.
  int next = order;
  if (order >= 0) {
    bring(order);
    copies_->await(buffer_of(order));
    at_ = order, pass_ = pass;
  } else {
    const auto after = std::lower_bound(streamed_.begin(), streamed_.end(), unit);
    next = static_cast<int>(after - streamed_.begin()) - (pass == Pass::backward ? 0 : 1);
  }
  for (int ahead = 1; ahead < buffers; ++ahead) {
    const int coming = pass == Pass::backward ? next - ahead : next + ahead;
    if (coming >= 0 && coming < count && (at_ < 0 || buffer_of(coming) != buffer_of(at_))) bring(coming);
  }
}

void BufferedStream::show(int unit) {
  const int order = unit < 0 || unit >= static_cast<int>(units_.size()) ? -1 : units_[static_cast<size_t>(unit)].order;
  if (order == shown_) return;
  if (shown_ >= 0) place(shown_, false);
  if (order >= 0) place(order, true);
  shown_ = order;
}

void BufferedStream::place(int order, bool in_buffer) {
  for (const TensorPtr& tensor : units_[static_cast<size_t>(streamed_[static_cast<size_t>(order)])].moving)
    tensor->view.data = in_buffer ? tensor->buffer->data : tensor->buffer->home;
}

void BufferedStream::leave() {
  if (at_ < 0) return;
  const int buffer = buffer_of(at_);
  copies_->release(buffer);
  const Unit& unit = units_[static_cast<size_t>(streamed_[static_cast<size_t>(at_)])];
  at_ = -1;
  const auto learns = [](const TensorPtr& tensor) { return tensor->learner != nullptr; };
  if (pass_ != Pass::backward || std::none_of(unit.moving.begin(), unit.moving.end(), learns)) return;
  copies_->copy_back(buffer, unit.pinned.get(), buffers_[static_cast<size_t>(buffer)]->data, unit.bytes);
  figures_.bytes += static_cast<double>(unit.bytes);
}

void BufferedStream::bring(int order) {
  const size_t buffer = static_cast<size_t>(buffer_of(order));
  if (holds_[buffer] == order) return;
  Unit& unit = units_[static_cast<size_t>(streamed_[static_cast<size_t>(order)])];
  const bool filed = !unit.sources.empty();
  copies_->copy(static_cast<int>(buffer), buffers_[buffer]->data, (filed ? staging_ : unit.pinned).get(), unit.bytes,
                filed ? &unit.fill : nullptr);
  holds_[buffer] = order;
  figures_.bytes += static_cast<double>(unit.bytes);
  ++figures_.fetches;
}

StreamFigures BufferedStream::figures() {
  const SideCopies::Times times = copies_->times();
  figures_.fetch_seconds += times.copying, figures_.stalled_seconds += times.waiting;
  return figures_;
}

void BufferedStream::repeated(const StreamFigures& copies) {
  figures_.bytes += copies.bytes;
  figures_.fetches += copies.fetches;
  show(kNoUnit);  // buffers hold what the recording left there
}

size_t BufferedStream::resident() {
  size_t streamed = 0;
  for (const int unit : streamed_) streamed += units_[static_cast<size_t>(unit)].bytes;
  return total_ - streamed;
}

}  // namespace qeng
