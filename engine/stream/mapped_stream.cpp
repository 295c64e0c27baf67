#include "engine/stream/mapped_stream.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "engine/stream/order.h"
#include "engine/stream/pages.h"
#include "kernels/clock.h"

namespace qeng {

namespace {

constexpr const char* kAccount = "streamed weights";
constexpr int kMostAhead = 8;

size_t page_bytes() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

// Bytes of this process that are in memory, as the system counts them now.
size_t resident_bytes() {
  size_t total = 0, resident = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%zu %zu", &total, &resident) != 2) resident = 0;
    std::fclose(file);
  }
  return resident * page_bytes();
}

std::string in_mb(size_t bytes) { return std::to_string((bytes + 999999) / 1000000) + " MB"; }

}  // namespace

MappedStream::MappedStream(Device& device, std::vector<StreamUnit> units, size_t limit, const std::string& option,
                           size_t slack)
    : StreamedWeights(device),
      on_host_(device.backend().host_memory()),
      limit_(limit ? limit : device.backend().memory().total),
      slack_(slack),
      budget_before_(device.budget()),
      option_before_(device.budget_option()),
      option_(option) {
  if (device_.reclaims())
    fail("unsupported",
         "streamed weights: another model's weights are streamed to this device already; close that stream first");
  for (const StreamUnit& given : units)
    for (const TensorPtr& tensor : given.weights)
      if (tensor->buffer->owner && !lies_in_file(tensor->view.data))
        fail("value", "streamed weights: ", given.name,
             ": its weights were copied into memory, from where they cannot be dropped; "
             "load the model mapped or streamed");
  for (StreamUnit& given : units) {
    Unit unit;
    unit.name = given.name;
    unit.rows_only = given.rows_only;
    for (const TensorPtr& tensor : given.weights) {
      if (!tensor->buffer->owner) continue;
      tensor->buffer->read_only = !given.writable;
      unit.ranges.push_back({static_cast<char*>(tensor->view.data), tensor->view.bytes()});
      tensors_.push_back(tensor);
    }
    std::sort(unit.ranges.begin(), unit.ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    std::vector<Range> joined;
    for (const Range& range : unit.ranges) {  // a gap of less than a page is padding
      if (!joined.empty() && range.begin < joined.back().begin + joined.back().bytes + page_bytes())
        joined.back().bytes = static_cast<size_t>(range.begin + range.bytes - joined.back().begin);
      else
        joined.push_back(range);
    }
    unit.ranges = std::move(joined);
    for (const Range& range : unit.ranges) unit.bytes += range.bytes;
    if (!unit.rows_only) total_ += unit.bytes, largest_ = std::max(largest_, unit.bytes);
    units_.push_back(std::move(unit));
  }
  device_.backend().synchronize();
  for (int i = 0; i < static_cast<int>(units_.size()); ++i) give_up(i);  // what loading has touched
  device_.give_back();                                                   // what loading has freed, and models before
  malloc_trim(0);
  if (budget_before_ && budget_before_ < limit_) limit_ = budget_before_, option_ = device_.budget_option();
  const size_t held = device_.held();
  others_ = seen_beside() + slack_;
  if (limit_ < others_ + held + largest_)
    fail("memory", "streamed weights: the largest unit of ", in_mb(largest_), " beside the ", in_mb(others_ + held),
         " that the process needs for itself exceeds the ", in_mb(limit_), " of ", option_, "; give at least ",
         in_mb(others_ + held + largest_), ", and more for activations");
  device_.set_budget(limit_ - others_, option_);
  device_.set_reclaim([this](size_t bytes) { reclaim(bytes); });
  thread_ = std::thread([this] { fetch_loop(); });
  resumed_ = seconds_now();
}

MappedStream::~MappedStream() { close(); }

void MappedStream::close() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
  device_.let_go(resident_held_, kAccount);
  resident_held_ = 0;
  units_.clear();
  for (const TensorPtr& tensor : tensors_) tensor->buffer->read_only = false;
  tensors_.clear();
  device_.set_reclaim({});
  device_.set_budget(budget_before_, option_before_);
}

void MappedStream::use(int unit, Pass pass) {
  if (units_.empty() || unit == kNoUnit) return;  // closed; or the last unit goes when the next pass needs room
  if (unit < 0 || unit >= static_cast<int>(units_.size()))
    fail("value", "this stream has units 0 to ", units_.size() - 1, ", not ", unit);
  const double began = seconds_now();
  const int before = at_;
  if (before >= 0 && before != unit) {
    units_[static_cast<size_t>(before)].compute_seconds = began - resumed_;
    if (units_[static_cast<size_t>(before)].rows_only) measure(), give_up(before);
  }
  at_ = unit, pass_ = pass, ++uses_;
  measure();
  Unit& wanted = units_[static_cast<size_t>(unit)];
  if (!wanted.rows_only) {
    if (state_of(wanted) == State::absent) {
      while (device_.held() + wanted.bytes > device_.budget() && give_up_one(0)) {
      }
      bring(unit);
    }
    wait(unit);
  }
  // What is used sooner than what has to go for it is brought ahead.
  const int ahead = choose_depth();
  for (int steps = 1; steps <= ahead; ++steps) {
    const int next = unit_after(at_, steps, static_cast<int>(units_.size()), pass_);
    Unit& candidate = units_[static_cast<size_t>(next)];
    if (candidate.rows_only || next == at_ || state_of(candidate) != State::absent) continue;
    while (device_.held() + candidate.bytes > device_.budget() && give_up_one(steps)) {
    }
    if (device_.held() + candidate.bytes > device_.budget()) break;
    bring(next);
  }
  resumed_ = seconds_now();
}

// So many units ahead that the slowest comes in the time that those before it compute, as far as times are known.
int MappedStream::choose_depth() {
  const std::lock_guard lock(mutex_);
  if (uses_ <= static_cast<int64_t>(units_.size())) return 1;
  double slowest = 0, computing = 0;
  int computed = 0;
  for (const Unit& unit : units_) {
    if (unit.rows_only) continue;
    slowest = std::max(slowest, unit.fetch_seconds);
    computing += unit.compute_seconds, ++computed;
  }
  if (computing <= 0) return 1;
  return figures_.depth = std::clamp(static_cast<int>(std::ceil(slowest * computed / computing)), 1, kMostAhead);
}

size_t MappedStream::seen_beside() const {
  const size_t resident = resident_bytes(), inside = on_host_ ? device_.held() : resident_held_;
  return resident > inside ? resident - inside : 0;
}

void MappedStream::measure() {
  if (seen_beside() + slack_ / 2 <= others_) return;
  // What was read or written past the stream, as a checkpoint does, is in memory though its unit is not.
  for (int i = 0; i < static_cast<int>(units_.size()); ++i)
    if (i != at_ && state_of(units_[static_cast<size_t>(i)]) == State::absent) give_up(i);
  if (seen_beside() + slack_ / 2 > others_) malloc_trim(0);
  const size_t seen = seen_beside();
  if (seen + slack_ / 2 <= others_) return;
  others_ = seen + slack_ / 2;
  const size_t least = largest_ + 1;  // a budget of 0 would be none
  device_.set_budget(limit_ > others_ + least ? limit_ - others_ : least, option_);
  while (device_.held() > device_.budget() && give_up_one(0)) {
  }
}

void MappedStream::bring(int unit) {
  Unit& wanted = units_[static_cast<size_t>(unit)];
  device_.hold(wanted.bytes, kAccount, wanted.name);
  resident_held_ += wanted.bytes;
  const std::lock_guard lock(mutex_);
  wanted.state = State::coming;
  queue_.push_back(unit);
  changed_.notify_all();
}

void MappedStream::wait(int unit) {
  std::unique_lock lock(mutex_);
  Unit& wanted = units_[static_cast<size_t>(unit)];
  if (wanted.state == State::coming) {
    const double began = seconds_now();
    changed_.wait(lock, [&] { return wanted.state != State::coming; });
    figures_.stalled_seconds += seconds_now() - began;
  }
  if (torn_)
    fail("io", "streamed weights: ", wanted.name, ": the file became shorter while it was in use, or its disk failed");
}

void MappedStream::give_up(int unit) {
  Unit& given = units_[static_cast<size_t>(unit)];
  if (!on_host_ && (given.rows_only || state_of(given) != State::absent)) device_.backend().synchronize();
  for (const Range& range : given.ranges) {  // but for the pages at its edges, which belong to a neighbour too
    const bool shared =
        given.rows_only && std::any_of(units_.begin(), units_.end(), [&](const Unit& other) {
          return !other.rows_only && state_of(other) != State::absent &&
                 std::any_of(other.ranges.begin(), other.ranges.end(), [&](const Range& theirs) {
                   return theirs.begin < range.begin + range.bytes && range.begin < theirs.begin + theirs.bytes;
                 });
        });
    if (!shared) drop_pages(range.begin, range.bytes);  // not what the embedding shares with the head
  }
  if (given.rows_only || state_of(given) == State::absent) return;
  device_.let_go(given.bytes, kAccount);
  resident_held_ -= given.bytes;
  given.state = State::absent;
}

bool MappedStream::give_up_one(int beyond) {
  int farthest = -1, distance = beyond;
  {
    const std::lock_guard lock(mutex_);
    for (int i = 0; i < static_cast<int>(units_.size()); ++i) {
      const Unit& unit = units_[static_cast<size_t>(i)];
      if (i == at_ || unit.rows_only || unit.state != State::here) continue;
      const int steps = at_ < 0 ? 1 : steps_until(i, at_, static_cast<int>(units_.size()), pass_);
      if (steps > distance) farthest = i, distance = steps;
    }
  }
  if (farthest < 0) return false;
  give_up(farthest);
  return true;
}

void MappedStream::reclaim(size_t bytes) {
  const size_t goal = device_.held() > bytes ? device_.held() - bytes : 0;
  while (device_.held() > goal) {
    if (give_up_one(0)) continue;
    int coming = -1;  // nothing else is left: what was brought ahead goes
    for (int i = 0; i < static_cast<int>(units_.size()); ++i)
      if (i != at_ && state_of(units_[static_cast<size_t>(i)]) == State::coming) coming = i;
    if (coming < 0) return;
    wait(coming);
  }
}

// ---------------------------------------------------------------- the thread

void MappedStream::fetch_loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (stop_) return;
    Unit& unit = units_[static_cast<size_t>(queue_.front())];
    queue_.pop_front();
    lock.unlock();
    const double began = seconds_now();
    const bool whole = fetch(unit);
    const double seconds = seconds_now() - began;
    lock.lock();
    unit.state = State::here;
    unit.fetch_seconds = seconds;
    torn_ = torn_ || !whole;
    figures_.bytes += static_cast<double>(unit.bytes);
    figures_.fetch_seconds += seconds;
    ++figures_.fetches;
    changed_.notify_all();
  }
}

bool MappedStream::fetch(const Unit& unit) {
  for (const Range& range : unit.ranges) ask_for_pages(range.begin, range.bytes);
  return std::all_of(unit.ranges.begin(), unit.ranges.end(),
                     [](const Range& range) { return bring_pages(range.begin, range.bytes); });
}

MappedStream::State MappedStream::state_of(const Unit& unit) {
  const std::lock_guard lock(mutex_);
  return unit.state;
}

StreamFigures MappedStream::figures() {
  const std::lock_guard lock(mutex_);
  return figures_;
}

size_t MappedStream::resident() {
  size_t bytes = 0;
  for (const Unit& unit : units_)
    if (!unit.rows_only && state_of(unit) == State::here) bytes += unit.bytes;
  return bytes;
}

}  // namespace qeng
