#include "engine/ranks/courier.h"

#include <utility>

namespace qeng {

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
    const Job job = std::move(state.jobs.front());
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
void Courier::run(State& state, const Job& job) {
  if (state.failure) return;
  const double begin = seconds_now();
  std::exception_ptr failure;
  try {
    job.work();
  } catch (...) {
    failure = std::current_exception();
  }
  const double end = seconds_now();
  const std::lock_guard lock(state.mutex);
  state.failure = failure;
  state.figures.exchanging += end - begin;
  if (state.traced) state.figures.jobs.push_back({job.what, begin, end});
}

size_t Courier::give(std::string what, std::function<void()> work) {
  ++given_;
  if (!beside()) {
    const double begin = seconds_now();
    run(*state_, {std::move(what), std::move(work)});
    waited(begin);
    return state_->done = given_;
  }
  {
    const std::lock_guard lock(state_->mutex);
    state_->jobs.push_back({std::move(what), std::move(work)});
  }
  state_->changed.notify_all();
  return given_;
}

void Courier::await(size_t number) {
  const double begin = seconds_now();
  {
    std::unique_lock lock(state_->mutex);
    if (state_->done >= number && !state_->failure) return;
    state_->changed.wait(lock, [&] { return state_->done >= number; });
  }
  waited(begin);
  if (state_->failure) std::rethrow_exception(state_->failure);
}

void Courier::waited(double begin) {
  const double end = seconds_now();
  const std::lock_guard lock(state_->mutex);
  state_->figures.waiting += end - begin;
  if (state_->traced) state_->figures.waits.push_back({"waits for other ranks", begin, end});
}

void Courier::trace(bool on) {
  const std::lock_guard lock(state_->mutex);
  state_->traced = on;
}

Courier::Figures Courier::figures() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->figures, {});
}

}  // namespace qeng
