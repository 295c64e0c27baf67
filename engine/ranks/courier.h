// What a rank exchanges with others while it computes: jobs that a thread does one after the other, in the order in
// which they were given. Each of them exchanges with all ranks, so the order has to be the same on all.
#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/clock.h"

namespace qeng {

class Courier {
 public:
  // beside: on a thread; otherwise give() does the job before it returns (where copies from the device wait for it).
  explicit Courier(bool beside);
  // A job that is not done then, because an error cut its round short, waits for other ranks: only the launcher ends it.
  ~Courier();
  Courier(const Courier&) = delete;
  bool beside() const { return thread_.joinable(); }

  // The number of the job, from 1. what: names it in Figures::jobs.
  size_t give(std::string what, std::function<void()> job);
  // Returns when that job, and all before it, are done (0: at once); what one of them threw is thrown here.
  void await(size_t number);

  struct Figures {                       // seconds since they were last asked for
    double exchanging = 0, waiting = 0;  // in jobs; in await()
    std::vector<Span> jobs, waits;       // while traced
  };
  Figures figures();
  void trace(bool on);

 private:
  struct Job {
    std::string what;
    std::function<void()> work;
  };
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Job> jobs;
    size_t done = 0;
    bool busy = false, stop = false, traced = false;
    std::exception_ptr failure;
    Figures figures;
  };
  static void work(State& state);
  static void run(State& state, const Job& job);
  void waited(double begin);

  std::shared_ptr<State> state_ = std::make_shared<State>();
  size_t given_ = 0;
  std::thread thread_;
};

}  // namespace qeng
