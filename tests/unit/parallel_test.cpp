#include "kernels/parallel.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "kernels/crowding.h"
#include "tests/catch.h"

using namespace qeng;

namespace {

void spend(int turns) {
  for (volatile int turn = 0; turn < turns;) turn = turn + 1;
}

// Programs that take every core, until it goes out of scope.
struct BusyMachine {
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  explicit BusyMachine(int count) {
    for (int i = 0; i < count; ++i)
      threads.emplace_back([this] {
        while (!over) spend(1000);
      });
  }
  ~BusyMachine() {
    over = true;
    for (std::thread& thread : threads) thread.join();
  }
};

// Seconds that so many regions of eight small pieces take.
double seconds_of(int threads, int regions) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < regions; ++i) parallel_each(threads, 8, [](int64_t) { spend(2000); });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The share of 20 seconds that a caller spends alone, where work goes on at these rates.
double share_alone(Crowding& crowding, double together, double alone, double kept) {
  double spent = 0, total = 0;
  while (total < 20) {
    const bool was_alone = crowding.alone();
    const double span = std::chrono::duration<double>(crowding.decide(was_alone ? alone : together, kept)).count();
    total += span;
    if (crowding.alone()) spent += span;
  }
  return spent / total;
}

}  // namespace

TEST_CASE("a caller works alone where more gets done so, and tries the other way again") {
  Crowding crowding;
  CHECK(share_alone(crowding, 0.9, 1, 0) == 0);     // nothing keeps it from running
  CHECK(share_alone(crowding, 12, 0.5, 0.5) == 0);  // workers do more than one thread can
  CHECK(share_alone(crowding, 0.65, 0.8, 0.3) > 0.9);
  CHECK(share_alone(crowding, 0.9, 0.5, 0.3) < 0.2);  // the machine has changed
  CHECK(share_alone(crowding, 0.65, 0.8, 0.3) > 0.85);
  CHECK(share_alone(crowding, 1.4, 1, 0) < 0.15);  // and is quiet again: noticed within a long stint
  CHECK_FALSE(crowding.alone());
}

TEST_CASE("shares of pieces: each piece once, whoever is slow, however many threads") {
  for (const int threads : {1, 2, 3, 7})
    for (const int64_t n : {0, 1, 2, 5, 1000})
      for (const int slow : {-1, 0, 1}) {
        std::vector<std::atomic<int>> taken(static_cast<size_t>(n));
        parallel_shares(threads, n, [&](int64_t i) {
          ++taken[static_cast<size_t>(i)];
          if (team_rank() == slow) spend(20000);
        });
        for (const std::atomic<int>& count : taken) REQUIRE(count == 1);
      }
}

TEST_CASE("ranges of a loop: disjoint, whole grains, each rank below the number of threads") {
  for (const int threads : {1, 2, 5})
    for (const int64_t n : {0, 1, 7, 64, 1001})
      for (const int64_t grain : {1, 7, 64, 2000}) {
        std::vector<std::atomic<int>> taken(static_cast<size_t>(n));
        std::atomic<bool> right{true};
        parallel_for(threads, n, grain, [&](int64_t begin, int64_t end) {
          if (begin % grain != 0 || begin >= end || end > n || (end % grain != 0 && end != n)) right = false;
          if (team_rank() < 0 || team_rank() >= threads) right = false;
          for (int64_t i = begin; i < end; ++i) ++taken[static_cast<size_t>(i)];
        });
        REQUIRE(right);
        for (const std::atomic<int>& count : taken) REQUIRE(count == 1);
      }
}

TEST_CASE("pieces in a queue are begun in order on one thread") {
  std::atomic<int64_t> begun{0};
  std::atomic<bool> right{true};
  parallel_each(1, 100, [&](int64_t i) {
    if (begun++ != i) right = false;
  });
  CHECK(right);
}

TEST_CASE("regions that several threads begin at once are all done") {
  std::atomic<int64_t> done{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c)
    callers.emplace_back([&] {
      for (int i = 0; i < 500; ++i) parallel_each(3, 10, [&](int64_t) { ++done; });
    });
  for (std::thread& caller : callers) caller.join();
  CHECK(done == 4 * 500 * 10);
}

TEST_CASE("a child process, which has none of the threads, works too") {
  parallel_each(3, 10, [](int64_t) { spend(1000); });
  const pid_t child = ::fork();
  if (child == 0) {
    std::atomic<int> done{0};
    for (int i = 0; i < 100; ++i) parallel_each(3, 10, [&](int64_t) { ++done; });
    ::_exit(done == 1000 ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

// Spinning barriers take hundreds of times as long. Twice is the aim's worst; the rest is for a machine that a test
// shares.
TEST_CASE("a region on a busy machine takes about as long as on one thread") {
  const int threads = std::max(2, available_threads());
  const BusyMachine machine(2 * threads);
  seconds_of(threads, 100);
  double alone = 0, together = 0;
  for (int round = 0; round < 10; ++round) {
    alone += seconds_of(1, 1000);
    together += seconds_of(threads, 1000);
  }
  INFO("one thread " << alone << " s, " << threads << " threads " << together << " s");
  CHECK(together < 4 * alone);
}

TEST_CASE("threads are the cores, or what a quota leaves of them") {
  CHECK(threads_within(8, 1e300) == 8);
  CHECK(threads_within(2, 0.5) == 1);
  CHECK(threads_within(2, 0.01) == 1);
  CHECK(threads_within(8, 1.4) == 1);
  CHECK(threads_within(8, 1.5) == 2);
  CHECK(threads_within(8, 3) == 3);
  CHECK(threads_within(2, 16) == 2);
}
