#include "kernels/parallel.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/control_groups.h"
#include "kernels/crowding.h"

namespace qeng {

namespace {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;
using Span = Clock::duration;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// Waking a thread takes its caller some 5 us, and 20 more pass until it runs (on a virtual machine, where it is
// dearest).
constexpr Span kWorthWaking = microseconds(50);  // of work that the caller would do alone
constexpr Span kHandOver = microseconds(1);      // what a region costs with a thread that spins
// Spinning takes a core. It lasts about as long as what lies between two operations of a model.
constexpr Span kSpinIdle = microseconds(200), kSpinAtEnd = microseconds(50);
// A thread that spins looks at the clock every microsecond. Where it sees this go by, another program had its core.
constexpr Span kTakenAway = microseconds(100), kCrowded = milliseconds(20);
// A thread rests when it has cost kMostDebt more than it brought; better times count up to kMostCredit, about what the
// system gives another program at once. Each rest is twice the last one, if that is not kLongAgo.
constexpr Span kMostDebt = microseconds(200), kMostCredit = milliseconds(3);
constexpr Span kLeastRest = milliseconds(5), kMostRest = milliseconds(500), kLongAgo = milliseconds(100);
constexpr int kMostThreads = 4096;

void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
  ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void wake(std::atomic<uint32_t>& word) { ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0); }

constexpr int kTurns = 16;  // of relax: a microsecond
void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // a short pause on most cores, for which `yield` is none
#endif
}

thread_local int rank_of_thread = 0;

// Pieces first .. end - 1 in one word, so that one exchange takes some of them.
struct alignas(64) Share {
  std::atomic<uint64_t> left{0};

  static int64_t first_of(uint64_t pieces) { return static_cast<int64_t>(pieces & 0xffffffff); }
  static int64_t end_of(uint64_t pieces) { return static_cast<int64_t>(pieces >> 32); }
  static uint64_t pack(int64_t first, int64_t end) {
    return static_cast<uint64_t>(end) << 32 | static_cast<uint64_t>(first);
  }
  int64_t count() const {
    const uint64_t now = left.load(std::memory_order_relaxed);
    return end_of(now) - first_of(now);
  }
  // One piece or half of them, off the front or the end; false if there are none.
  bool take(bool front, bool half, int64_t& first, int64_t& end) {
    uint64_t now = left.load(std::memory_order_relaxed);
    for (;;) {
      first = first_of(now), end = end_of(now);
      if (first >= end) return false;
      const int64_t some = half ? (end - first + 1) / 2 : 1;
      const uint64_t next = front ? pack(first + some, end) : pack(first, end - some);
      if (!left.compare_exchange_weak(now, next, std::memory_order_relaxed)) continue;
      if (front)
        end = first + some;
      else
        first = end - some;
      return true;
    }
  }
};

struct alignas(64) Worker {
  explicit Worker(int number) : rank(number) {}
  const int rank;
  std::atomic<uint32_t> asleep{0};
  std::atomic<uint32_t> working{0};  // 1: it may be inside the region; 2: and the caller sleeps until it is not
  std::atomic<bool> resting{false};
  // The last region it joined, the pieces it did there and how long it took; the caller reads them when it is out.
  uint64_t region = 0;
  int64_t pieces = 0;
  Span took{};
  // The caller's own.
  Span credit{}, waking{}, rest{};
  Time rests_until{};
};

class Pool {
 public:
  // False, and nothing done, where the caller had better go on alone.
  bool run(int team, int64_t count, Handout handout, Pieces pieces, void* body) {
    if (taken_.exchange(true, std::memory_order_acquire)) return false;
    const bool done = run_taken(team, count, handout, pieces, body);
    taken_.store(false, std::memory_order_release);
    return done;
  }

 private:
  bool run_taken(int team, int64_t count, Handout handout, Pieces pieces, void* body);
  int grow(int team);
  bool ready(int team, Time now);
  void divide(int team, int64_t count);
  int64_t work(Worker* self);
  void wake_worth(int64_t done);
  void wait_for(Worker& worker);
  void settle(Worker& worker, uint64_t region, Span worked, int64_t done, Time& now);
  void serve(Worker& self);
  void sleep(Worker& self, uint64_t seen);
  // The system likes to wake a thread on the core of who wakes it, where it would only keep the caller from working.
  bool on_callers_core() const { return ::sched_getcpu() == core_.load(std::memory_order_relaxed); }
  bool leave_callers_core() const;
  bool is_new(uint64_t state, uint64_t seen, const Worker& self) const {
    return state != seen && static_cast<int>(state & 0xffff) > self.rank &&
           !self.resting.load(std::memory_order_relaxed);
  }

  std::atomic<bool> taken_{false};  // by a caller
  std::vector<std::unique_ptr<Worker>> workers_;
  size_t most_workers_ = kMostThreads;
  // The region: written before it is opened, read by those who have joined it.
  Handout handout_ = Handout::queue;
  Pieces pieces_ = nullptr;
  void* body_ = nullptr;
  std::vector<Share> shares_;
  size_t share_count_ = 0;
  // The caller's own.
  Time start_{};
  std::atomic<int> core_{-1};  // it runs on
  int team_ = 0, asleep_ = 0;  // of its team, at the start or since some were woken
  Crowding crowding_;          // workers see whether it is alone
  Span owed_{};                // worked alone while others slept

  alignas(64) std::atomic<uint64_t> state_{0};  // the region's number << 16 | its team, 0 once it is closed
  alignas(64) std::atomic<int> sleepers_{0};
};

// Threads of ranks up to `team`, or as many as the system allows.
int Pool::grow(int team) {
  if (workers_.size() + 1 < static_cast<size_t>(team) && workers_.size() < most_workers_) {
    sigset_t all, before;  // signals are the main thread's
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      while (workers_.size() + 1 < static_cast<size_t>(team)) {
        auto worker = std::make_unique<Worker>(static_cast<int>(workers_.size()) + 1);
        std::thread([this, self = worker.get()] { serve(*self); }).detach();
        workers_.push_back(std::move(worker));
      }
    } catch (const std::system_error&) {
      most_workers_ = workers_.size();
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  return std::min(team, static_cast<int>(workers_.size()) + 1);
}

// Whether anyone of the team does not rest; counts those who sleep.
bool Pool::ready(int team, Time now) {
  const bool some_sleep = sleepers_.load(std::memory_order_relaxed) > 0;
  bool any = false;
  asleep_ = 0;
  for (int rank = 1; rank < team; ++rank) {
    Worker& worker = *workers_[static_cast<size_t>(rank) - 1];
    if (worker.resting.load(std::memory_order_relaxed)) {
      if (now < worker.rests_until) continue;
      worker.resting.store(false, std::memory_order_relaxed);
    }
    any = true;
    if (some_sleep) asleep_ += worker.asleep.load(std::memory_order_relaxed) != 0;
  }
  return any;
}

void Pool::divide(int team, int64_t count) {
  share_count_ = handout_ == Handout::queue ? 1 : static_cast<size_t>(team);
  if (shares_.size() < share_count_) shares_ = std::vector<Share>(share_count_);
  const auto n = static_cast<int64_t>(share_count_);
  for (int64_t s = 0; s < n; ++s)
    shares_[static_cast<size_t>(s)].left.store(Share::pack(count * s / n, count * (s + 1) / n),
                                               std::memory_order_relaxed);
}

// Takes pieces until none is left: those of its own share from the front, others' from the end. Returns their number.
int64_t Pool::work(Worker* self) {
  const size_t rank = self ? static_cast<size_t>(self->rank) : 0;
  int64_t done = 0;
  for (size_t s = 0; s < share_count_; ++s) {
    Share& share = shares_[(rank + s) % share_count_];
    for (int64_t first, end; share.take(s == 0 || handout_ == Handout::queue, handout_ == Handout::runs, first, end);) {
      pieces_(body_, first, end);
      done += end - first;
      if (!self && asleep_ > 0) wake_worth(done);
    }
  }
  return done;
}

// Wakes as many of the team as what is left is worth, at the pace of what the caller has done.
void Pool::wake_worth(int64_t done) {
  int64_t left = 0;
  for (size_t s = 0; s < share_count_; ++s) left += shares_[s].count();
  Time now = Clock::now();
  const double span = std::chrono::duration<double>(now - start_).count();
  const double alone =
      left == 0 ? 0 : span * static_cast<double>(left) / static_cast<double>(std::max<int64_t>(1, done));
  auto worth = static_cast<int64_t>((alone + std::chrono::duration<double>(owed_).count()) /
                                    std::chrono::duration<double>(kWorthWaking).count());
  for (int rank = 1; rank < team_ && worth > 0 && left > 0 && asleep_ > 0; ++rank) {
    Worker& worker = *workers_[static_cast<size_t>(rank) - 1];
    if (worker.resting.load(std::memory_order_relaxed) || worker.asleep.exchange(0) == 0) continue;
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
    wake(worker.asleep);
    const Time woken = Clock::now();
    worker.waking += woken - now, now = woken;
    --worth, --asleep_, --left, owed_ = {};
  }
}

void Pool::wait_for(Worker& worker) {
  const Time from = Clock::now();
  for (int turn = 1; worker.working.load(std::memory_order_acquire) != 0; ++turn) {
    relax();
    if (turn % kTurns != 0 || Clock::now() - from < kSpinAtEnd) continue;
    uint32_t one = 1;
    worker.working.compare_exchange_strong(one, 2);
    while (worker.working.load() != 0) sleep_while(worker.working, 2);
  }
}

// Waits until the worker is out of the region, and sets what it brought against what it cost.
void Pool::settle(Worker& worker, uint64_t region, Span worked, int64_t done, Time& now) {
  const Span waking = std::exchange(worker.waking, Span{});
  Span waited{}, brought{};
  if (worker.working.load() != 0) {
    wait_for(worker);
    const Time out = Clock::now();
    waited = out - now, now = out;
  }
  const bool joined = worker.region == region;
  if (joined) {
    const double share = static_cast<double>(worker.pieces) / static_cast<double>(std::max<int64_t>(1, done));
    // Not more than the worker itself took: the caller is slow while another program has its core.
    brought = std::min(Span(static_cast<Span::rep>(static_cast<double>(worked.count()) * share)), worker.took);
  }
  const Span spun = std::min<Span>(waited, kSpinAtEnd);
  crowding_.add(brought, waking + spun, waited - spun);
  worker.credit = std::min(worker.credit - waking - waited - (joined ? kHandOver : Span{}) + brought, kMostCredit);
  if (worker.credit >= -kMostDebt) return;
  worker.rest = now - worker.rests_until > kLongAgo ? kLeastRest : std::min(2 * worker.rest, kMostRest);
  worker.rests_until = now + worker.rest;
  worker.credit = {};
  worker.resting.store(true, std::memory_order_relaxed);
}

bool Pool::run_taken(int team, int64_t count, Handout handout, Pieces pieces, void* body) {
  start_ = Clock::now();
  core_.store(::sched_getcpu(), std::memory_order_relaxed);
  team_ = grow(team);
  crowding_.look(start_);
  if (crowding_.alone() || !ready(team_, start_)) return false;
  handout_ = handout, pieces_ = pieces, body_ = body;
  divide(team_, count);
  const uint64_t region = ((state_.load(std::memory_order_relaxed) >> 16) + 1) << 16 | static_cast<uint64_t>(team_);
  state_.store(region);
  if (asleep_ > 0 && owed_ >= kWorthWaking) wake_worth(0);
  const bool slept = asleep_ > 0;
  const int64_t done = work(nullptr);
  state_.store(region & ~uint64_t{0xffff});
  Time now = Clock::now();
  const Span worked = now - start_;
  for (int rank = 1; rank < team_; ++rank) settle(*workers_[static_cast<size_t>(rank) - 1], region, worked, done, now);
  owed_ = slept && asleep_ > 0 ? owed_ + worked : Span{};
  return true;
}

void Pool::serve(Worker& self) {
  rank_of_thread = self.rank;
  uint64_t seen = 0;
  Time looked = Clock::now(), idle = looked, crowded{};
  for (unsigned turn = 1;; ++turn) {
    const uint64_t state = state_.load(std::memory_order_acquire);
    if (is_new(state, seen, self)) {
      seen = state;
      if (on_callers_core() && !leave_callers_core()) {
        sleep(self, seen);
        continue;
      }
      self.working.store(1);
      if (state_.load() == state) {  // else it has ended meanwhile
        looked = Clock::now();
        self.pieces = work(&self), self.region = state, self.took = Clock::now() - looked;
      }
      if (self.working.exchange(0) == 2) wake(self.working);
      looked = idle = Clock::now();
      continue;
    }
    relax();
    if (turn % kTurns != 0) continue;
    const Time now = Clock::now();
    if (now - looked > kTakenAway) crowded = now + kCrowded;
    looked = now;
    const bool wanted = !self.resting.load(std::memory_order_relaxed) && !crowding_.alone();
    const bool welcome = wanted && now > crowded && (!on_callers_core() || leave_callers_core());
    if (welcome && now - idle < kSpinIdle) continue;
    sleep(self, seen);
    looked = idle = Clock::now();
  }
}

// Goes to another of the process' cores and stays off this one. False where there is no other.
bool Pool::leave_callers_core() const {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (::sched_getaffinity(::getpid(), sizeof cores, &cores) != 0) return false;
  CPU_CLR(static_cast<size_t>(::sched_getcpu()), &cores);
  return CPU_COUNT(&cores) > 0 && ::sched_setaffinity(0, sizeof cores, &cores) == 0;
}

void Pool::sleep(Worker& self, uint64_t seen) {
  self.asleep.store(1);
  sleepers_.fetch_add(1);
  if (is_new(state_.load(), seen, self) && self.asleep.exchange(0) == 1) sleepers_.fetch_sub(1);
  while (self.asleep.load() != 0) sleep_while(self.asleep, 1);
}

// Never freed: its threads go on while the process ends.
std::atomic<Pool*> the_pool{nullptr};

Pool& pool() {
  static const int forgets =
      ::pthread_atfork(nullptr, nullptr, [] { the_pool = nullptr; });  // a child has no threads of it
  (void)forgets;
  if (Pool* made = the_pool) return *made;
  auto made = std::make_unique<Pool>();
  Pool* expected = nullptr;
  return the_pool.compare_exchange_strong(expected, made.get()) ? *made.release() : *expected;
}

}  // namespace

void run_region(int threads, int64_t count, Handout handout, Pieces pieces, void* body) {
  const auto team = static_cast<int>(std::min<int64_t>({threads, count, kMostThreads}));
  if (team > 1 && count <= INT32_MAX && pool().run(team, count, handout, pieces, body)) return;
  if (count > 0) pieces(body, 0, count);
}

int team_rank() { return rank_of_thread; }

int threads_within(int cores, double quota) {
  return quota < cores ? std::max(1, static_cast<int>(std::lround(quota))) : cores;
}

int available_threads() {
  static const double quota = cpu_quota();
  cpu_set_t cores;
  CPU_ZERO(&cores);
  const bool known = ::sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) > 0;
  return threads_within(known ? CPU_COUNT(&cores) : 1, quota);
}

}  // namespace qeng
