#include "engine/net/desk.h"

#include <algorithm>
#include <chrono>

namespace qeng {
namespace {
constexpr size_t kMaxRefusedWaiting = 1000;  // a flood of refusals is counted, its events are not kept
}

bool Desk::keep_bytes(size_t count) {
  if (waiting_bytes_.fetch_add(count) + count <= max_waiting_bytes_) return true;
  waiting_bytes_ -= count;
  return false;
}

uint64_t Desk::deliver(HttpEvent event, AnswerForm form) {
  const std::lock_guard lock(mutex_);
  const uint64_t id = event.id = next_id_++;
  events_.push_back(std::move(event));
  open_.emplace(id, std::move(form));
  ++requests_;
  arrived_.notify_one();
  return id;
}

void Desk::refused(HttpEvent event) {
  const std::lock_guard lock(mutex_);
  ++refused_;
  if (refused_waiting_ == kMaxRefusedWaiting) return;
  ++refused_waiting_;
  event.kind = HttpEvent::Kind::refused;
  events_.push_back(std::move(event));
  arrived_.notify_one();
}

void Desk::left(uint64_t id) {
  AnswerForm form;  // goes after the lock: it may be the last to hold its connection
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(id);
  if (found == open_.end()) return;
  form = std::move(found->second);
  open_.erase(found);
  const auto unseen =
      std::find_if(events_.begin(), events_.end(), [id](const HttpEvent& event) { return event.id == id; });
  if (unseen != events_.end()) {
    release_bytes(unseen->body.size());
    events_.erase(unseen);
    return;
  }
  HttpEvent event;
  event.kind = HttpEvent::Kind::gone;
  event.id = id;
  events_.push_back(std::move(event));
  arrived_.notify_one();
}

std::optional<HttpEvent> Desk::wait(double seconds) {
  std::unique_lock lock(mutex_);
  arrived_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return !events_.empty(); });
  if (events_.empty()) return std::nullopt;
  HttpEvent event = std::move(events_.front());
  events_.pop_front();
  if (event.kind == HttpEvent::Kind::refused) --refused_waiting_;
  release_bytes(event.body.size());
  return event;
}

bool Desk::with(uint64_t id, bool last, const std::function<void(AnswerForm&)>& use) {
  AnswerForm form;
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(id);
  if (found == open_.end()) return false;
  use(found->second);
  if (last) {
    form = std::move(found->second);
    open_.erase(found);
  }
  return true;
}

void Desk::forget_all() {
  std::unordered_map<uint64_t, AnswerForm> gone;
  const std::lock_guard lock(mutex_);
  gone.swap(open_);
  events_.clear();
}

HttpStats Desk::stats() const {
  const std::lock_guard lock(mutex_);
  return {.connections = connections,
          .requests = requests_,
          .refused = refused_,
          .dropped_slow = dropped_slow,
          .waiting_events = events_.size(),
          .waiting_bytes = waiting_bytes_,
          .unsent_bytes = unsent_bytes};
}

}  // namespace qeng
