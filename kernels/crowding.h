// Whether the caller of a pool gets more done with its workers or alone.
//
// Where programs want more cores than there are, every thread that wants to run takes processor time from the others,
// its own caller too; and two threads seldom have their cores at the same time. So the work done is measured, in
// seconds of the caller's own work per second in which it wanted to run: what it computed itself and what workers took
// off it, over the time in which it ran or was kept from it. Alone that is at most 1. While it is as much with workers,
// they stay; else both ways are tried in turn, and the better one goes on for longer and longer.
#pragma once
#include <atomic>
#include <chrono>

namespace qeng {

class Crowding {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;
  using Span = Clock::duration;

  bool alone() const { return alone_.load(std::memory_order_relaxed); }  // on any thread
  // At the begin of each region, on the caller's thread: now and then judges the time since it last did.
  void look(Time now) {
    if (now >= next_) judge(now);
  }
  // Of a region: caller's work that workers did, its time spent on handing over and waiting, and asleep meanwhile.
  void add(Span brought, Span lost, Span slept) { brought_ += brought, lost_ += lost, slept_ += slept; }
  // What follows a time in which so much work was done and the caller was kept from running for that share of it, and
  // how long that lasts.
  Span decide(double rate, double kept);

 private:
  void judge(Time now);
  void begin();

  std::atomic<bool> alone_{false};
  bool trial_ = false;
  double rates_[2] = {0, 0};  // with workers, alone; 0: not known
  Span stint_{};              // how long the better one goes on
  // The time that is judged.
  const void* caller_ = nullptr;
  Time next_{};
  Span ran_{}, kept_{};  // at its begin: the thread's processor time, and how long it was ready but did not run
  Span brought_{}, lost_{}, slept_{};
};

}  // namespace qeng
