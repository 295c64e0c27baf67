#include "engine/ranks/courier.h"

#include <chrono>
#include <utility>

namespace qeng {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

Courier::Courier(bool beside) {
  if (beside) thread_ = std::thread([state = state_] { work(*state); });
}

Courier::~Courier() {
  if (!thread_.joinable()) return;
  bool idle;
  {
    const std::lock_guard lock(state_->mutex);
    idle = state_->jobs.empty() && !state_->busy;
    state_->stop = true;
  }
  state_->changed.notify_all();
  idle ? thread_.join() : thread_.detach();
}

void Courier::work(State& state) {
  std::unique_lock lock(state.mutex);
  while (true) {
    state.changed.wait(lock, [&] { return state.stop || !state.jobs.empty(); });
    if (state.stop) return;
    const std::function<void()> job = std::move(state.jobs.front());
    state.jobs.pop_front();
    state.busy = true;
    lock.unlock();
    run(state, job);
    lock.lock();
    state.busy = false;
    ++state.done;
    state.changed.notify_all();
  }
}

// After a failure nothing is exchanged any more: other ranks are elsewhere.
void Courier::run(State& state, const std::function<void()>& job) {
  if (state.failure) return;
  const double begin = now();
  try {
    job();
  } catch (...) {
    state.failure = std::current_exception();
  }
  state.figures.exchanging += now() - begin;
}

size_t Courier::give(std::function<void()> job) {
  ++given_;
  if (!beside()) {
    const double begin = now();
    run(*state_, job);
    state_->figures.waiting += now() - begin;
    state_->done = given_;
    return given_;
  }
  {
    const std::lock_guard lock(state_->mutex);
    state_->jobs.push_back(std::move(job));
  }
  state_->changed.notify_all();
  return given_;
}

void Courier::await(size_t number) {
  const double begin = now();
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->done >= number; });
  state_->figures.waiting += now() - begin;
  if (state_->failure) std::rethrow_exception(state_->failure);
}

Courier::Figures Courier::figures() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->figures, {});
}

}  // namespace qeng
