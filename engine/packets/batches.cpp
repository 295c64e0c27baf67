#include "engine/packets/batches.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "engine/packets/batch_maker.h"

namespace qeng {

// A bounded queue between the maker's thread and the consumer: a batch is made for each request. Batches go round: the
// consumer's old one is filled again.
class Batches::Prefetch {
 public:
  Prefetch(Maker& maker, size_t depth) : maker_(maker), spare_(depth), depth_(depth), thread_([this] { run(); }) {}
  ~Prefetch() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  // The consumer's: how many batches may be asked for now.
  size_t room() const { return depth_ - asked_; }
  void ask(Request request) {
    {
      std::lock_guard lock(mutex_);
      requests_.push_back(std::move(request));
    }
    ++asked_;
    changed_.notify_all();
  }

  bool next(Batch& batch) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !ready_.empty() || ended_; });
    if (ready_.empty()) {
      if (failure_) std::rethrow_exception(failure_);
      return false;
    }
    std::swap(batch, ready_.front());
    spare_.push_back(std::move(ready_.front()));
    ready_.pop_front();
    --asked_;
    changed_.notify_all();
    return true;
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return (!spare_.empty() && !requests_.empty()) || stop_; });
      if (stop_) return;
      Batch batch = std::move(spare_.front());
      spare_.pop_front();
      const Request request = std::move(requests_.front());
      requests_.pop_front();
      lock.unlock();
      bool more = false;
      std::exception_ptr failure;
      try {
        more = maker_.next(batch, request);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      if (more) ready_.push_back(std::move(batch));
      ended_ = !more, failure_ = failure;
      changed_.notify_all();
      if (ended_) return;
    }
  }

  Maker& maker_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Batch> spare_, ready_;
  std::deque<Request> requests_;
  const size_t depth_;
  size_t asked_ = 0;  // and not yet given; the consumer's
  bool stop_ = false, ended_ = false;
  std::exception_ptr failure_;
  std::thread thread_;  // declared last: it uses all of the above
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
    more = maker_->next(batch, request());
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
