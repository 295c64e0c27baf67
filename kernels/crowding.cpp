#include "kernels/crowding.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>

namespace qeng {

namespace {

using Span = Crowding::Span;
using std::chrono::milliseconds;

// A time alone is longer: the system takes a while to give a core to who waits for one, and it costs nothing more than
// one thread does.
constexpr Span kTogether = milliseconds(40), kAlone = milliseconds(200), kLongest = milliseconds(2000);
constexpr double kFew = 0.02;  // of the time kept from running: a quiet machine
// Of what workers seem to bring: threads that share memory's bandwidth are slower than one alone.
constexpr double kMargin = 1.1;

double seconds(Span span) { return std::chrono::duration<double>(span).count(); }

Span processor_time() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// How long the calling thread was ready to run but did not, as Linux counts it; 0, a quiet machine, where it does not
// tell. Source: Documentation/scheduler/sched-stats.rst, /proc/<pid>/schedstat.
Span kept_waiting() {
  char text[128];
  const int file = ::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  const ssize_t size = ::read(file, text, sizeof text);
  ::close(file);
  const char* const end = text + std::max<ssize_t>(size, 0);
  const char* const space = std::find(static_cast<const char*>(text), end, ' ');
  int64_t nanoseconds = 0;
  if (space != end) std::from_chars(space + 1, end, nanoseconds);
  return std::chrono::nanoseconds(nanoseconds);
}

thread_local char this_thread;

}  // namespace

void Crowding::begin() { alone_ = false, trial_ = false, rates_[1] = 0, stint_ = kAlone; }

Span Crowding::decide(double rate, double kept) {
  const bool alone = alone_;
  double& known = rates_[alone];
  known = trial_ && known > 0 ? (known + rate) / 2 : rate;
  if (!alone && (kept < kFew || rate >= kMargin)) {
    begin();
    return kTogether;
  }
  if (!trial_) {  // of the other one
    trial_ = true, alone_ = !alone;
    return alone ? kTogether : kAlone;
  }
  const bool better_alone = rates_[1] * kMargin > rates_[0];
  stint_ = better_alone == alone ? 2 * kAlone : std::min(2 * stint_, kLongest);
  trial_ = false, alone_ = better_alone;
  return stint_;
}

void Crowding::judge(Time now) {
  const Span ran = processor_time(), kept = kept_waiting();
  // A thread that comes anew, or after a while, begins anew.
  const bool goes_on = caller_ == &this_thread && now - next_ < kTogether;
  if (!goes_on) begin();
  const double idle = seconds(kept - kept_ + slept_), wanted = seconds(ran - ran_) + idle;
  const double work = seconds(ran - ran_ - lost_ + brought_);
  next_ = now + (goes_on && wanted > 0 ? decide(work / wanted, idle / wanted) : kTogether);
  caller_ = &this_thread, ran_ = ran, kept_ = kept;
  brought_ = lost_ = slept_ = {};
}

}  // namespace qeng
