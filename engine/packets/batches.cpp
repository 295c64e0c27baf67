#include "engine/packets/batches.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "engine/packets/batch_maker.h"
#include "kernels/parallel.h"

namespace qeng {

// A bounded queue between the threads that make batches and the consumer: a batch is made for each request. Batches are
// planned by one thread at a time, filled by all at once, and given in order. They go round: the consumer's old one is
// filled again.
class Batches::Prefetch {
 public:
  Prefetch(Maker& maker, size_t depth) : maker_(maker), spare_(depth), depth_(depth) {
    const size_t threads = std::clamp<size_t>(static_cast<size_t>(available_threads()), 1, std::min(depth, kThreads));
    for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
  }
  ~Prefetch() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  // The consumer's: how many batches may be asked for now.
  size_t room() const { return depth_ - asked_; }
  void ask(Request request) {
    {
      std::lock_guard lock(mutex_);
      requests_.push_back(std::move(request));
    }
    ++asked_;
    work_.notify_one();
  }

  bool next(Batch& batch) {
    std::unique_lock lock(mutex_);
    ready_changed_.wait(lock, [this] { return !ready_.empty() || ended_; });
    if (ready_.empty()) {
      if (failure_) std::rethrow_exception(failure_);
      return false;
    }
    std::swap(batch, ready_.front());
    spare_.push_back(std::move(ready_.front()));
    ready_.pop_front();
    --asked_;
    lock.unlock();
    work_.notify_one();
    return true;
  }

 private:
  static constexpr size_t kThreads = 2;  // planning is a quarter of the work, so more would wait for it

  struct Made {
    Batch batch;
    bool more = false;
    std::exception_ptr failure;
  };

  bool may_plan() const { return !planning_ && !no_more_ && !spare_.empty() && !requests_.empty(); }

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      work_.wait(lock, [this] { return stop_ || no_more_ || may_plan(); });
      if (stop_ || no_more_) return;
      planning_ = true;
      const uint64_t number = planned_++;
      Made made{std::move(spare_.front())};
      spare_.pop_front();
      const Request request = std::move(requests_.front());
      requests_.pop_front();
      const auto attempt = [&](auto work) {
        lock.unlock();
        try {
          work();
        } catch (...) {
          made.failure = std::current_exception();
        }
        lock.lock();
      };
      attempt([&] { made.more = maker_.plan(made.batch, request); });
      planning_ = false, no_more_ = no_more_ || !made.more;
      if (no_more_) {
        work_.notify_all();
      } else if (may_plan()) {
        work_.notify_one();
      }
      if (made.more) attempt([&] { maker_.fill(made.batch); });
      made_.emplace(number, std::move(made));
      give();
    }
  }

  // What is made goes to the consumer in the order it was planned.
  void give() {
    for (auto first = made_.find(given_); first != made_.end() && !ended_; first = made_.find(given_)) {
      Made made = std::move(first->second);
      made_.erase(first);
      ++given_;
      try {
        if (made.failure) std::rethrow_exception(made.failure);
        if (made.more) maker_.settle(made.batch);
      } catch (...) {
        failure_ = std::current_exception();
      }
      ended_ = failure_ || !made.more;
      if (ended_) {
        no_more_ = true;
        work_.notify_all();
      } else {
        ready_.push_back(std::move(made.batch));
      }
      ready_changed_.notify_one();
    }
  }

  Maker& maker_;
  std::mutex mutex_;
  std::condition_variable work_, ready_changed_;
  std::deque<Batch> spare_, ready_;
  std::deque<Request> requests_;
  std::map<uint64_t, Made> made_;  // by number, until those planned before them are made
  const size_t depth_;
  size_t asked_ = 0;                     // and not yet given; the consumer's
  uint64_t planned_ = 0, given_ = 0;     // batches
  bool planning_ = false;                // a thread is
  bool stop_ = false, no_more_ = false;  // no_more_: nothing is left to plan
  bool ended_ = false;                   // after what is ready, the end or failure_
  std::exception_ptr failure_;
  std::vector<std::thread> threads_;  // declared last: they use all of the above
};

Batches::Batches(std::shared_ptr<const PacketFile> file, const BatchOptions& options)
    : maker_(std::make_unique<Maker>(std::move(file), options)), state_(maker_->state()) {}
Batches::~Batches() = default;

// Made on the consumer's thread: the weights may be a function of a language that knows one thread only. What it throws
// waits until the batch is due, so that weights past the end of training are not missed.
Batches::Request Batches::request() {
  Request request;
  const Mixture* mixture = maker_->mixture();
  if (!mixture) return request;
  const int64_t step = requested_++ / options().batches_per_step;
  try {
    if (step != step_) {
      const std::vector<double> weights = options().weights(step, mixture->sources());
      shares_ = std::make_shared<const std::vector<int64_t>>(mixture->shares(weights, step));
      step_ = step;
    }
    request.shares = shares_;
  } catch (...) {
    request.failure = std::current_exception();
  }
  return request;
}

bool Batches::next(Batch& batch) {
  const auto begin = std::chrono::steady_clock::now();
  bool more;
  if (options().prefetch == 0) {
    more = maker_->plan(batch, request());
    if (more) maker_->fill(batch), maker_->settle(batch);
  } else {
    if (!prefetch_) prefetch_ = std::make_unique<Prefetch>(*maker_, static_cast<size_t>(options().prefetch));
    while (prefetch_->room() > 0) prefetch_->ask(request());
    more = prefetch_->next(batch);
    while (more && prefetch_->room() > 0) prefetch_->ask(request());
  }
  if (!more) return false;
  batch.wait_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  state_ = batch.after;
  return true;
}

BatchState Batches::state() const { return state_; }

void Batches::restore(const BatchState& state) {
  prefetch_.reset();
  const BatchState before = state_;
  try {
    maker_->restore(state);
    state_ = state, requested_ = state.mix.batches, step_ = -1;
  } catch (...) {
    maker_->restore(before);  // a refused state leaves the batches where they were
    requested_ = before.mix.batches, step_ = -1;
    throw;
  }
}

EpochPlan Batches::plan_epoch(int64_t epoch) const { return maker_->plan_epoch(epoch); }
int64_t Batches::max_documents() const { return maker_->max_documents(); }
const BatchOptions& Batches::options() const { return maker_->options(); }
const PacketFile& Batches::file() const { return maker_->file(); }

}  // namespace qeng
