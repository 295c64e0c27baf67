// Threads of the CPU backend: one pool, for our loops and for oneDNN's products (onednn.cpp).
//
// A parallel region is to cost no more than the same work on one thread, also on a busy machine (how near that is:
// bench/results, "a busy machine"). The caller works on its region until no piece is left, and waits only for threads
// that are in the middle of one: who comes late finds nothing. Threads without work spin for a moment, then sleep;
// sleepers are woken for a region that is worth it. A thread that makes others wait for longer than it helps is left
// alone for a while (parallel.cpp), and all of them where the caller gets more done without (crowding.h).
//
// Work is split by position only, so a result never depends on who computes what. Bodies must not throw and must not
// nest. Where several threads begin regions at once, one has the pool and the others work alone.
#pragma once
#include <cstdint>
#include <memory>
#include <type_traits>

namespace qeng {

// The threads worth having: the cores of the process' affinity mask, or what quotas of its control groups leave of
// them.
int available_threads();
// At least 1. Half a core is worth a thread; of less, all would wait for the rest of the period.
int threads_within(int cores, double quota);

// The number of the calling thread in its team, for scratch of its own: 0 .. threads - 1.
int team_rank();

// Who takes which of a region's pieces first .. end - 1.
enum class Handout {
  queue,   // one at a time, in order
  shares,  // each thread has a share, and takes one at a time off its front; who is done takes off the end of another's
  runs,    // as shares, but half of what is left at a time
};
using Pieces = void (*)(void* body, int64_t first, int64_t end);
// Runs pieces 0 .. count - 1 with at most so many threads. Returns when all are done.
void run_region(int threads, int64_t count, Handout handout, Pieces pieces, void* body);

// body(begin, end) on disjoint ranges that cover [0, n), several of them for a thread. Ranges start at multiples of
// grain, which is what makes another thread worth its while.
template <class Body>
void parallel_for(int threads, int64_t n, int64_t grain, Body&& body) {
  if (n <= 0) return;
  if (threads <= 1 || n <= grain) return body(int64_t{0}, n);
  const auto ranges = [&](int64_t first, int64_t end) { body(first * grain, end * grain < n ? end * grain : n); };
  run_region(
      threads, (n + grain - 1) / grain, Handout::runs,
      [](void* of, int64_t first, int64_t end) { (*static_cast<decltype(ranges)*>(of))(first, end); },
      const_cast<void*>(static_cast<const void*>(std::addressof(ranges))));
}

template <class Body>
void each_piece(int threads, int64_t n, Handout handout, Body& body) {
  const auto each = [](void* of, int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) (*static_cast<Body*>(of))(i);
  };
  run_region(threads, n, handout, each, const_cast<void*>(static_cast<const void*>(std::addressof(body))));
}

// body(i) for each i of [0, n), handed out one at a time: for pieces of unequal cost that write to places of their own.
template <class Body>
void parallel_each(int threads, int64_t n, Body&& body) {
  each_piece(threads, n, Handout::queue, body);
}

// body(i) for each i of [0, n), for pieces of equal cost that lie side by side in memory: each thread walks a share of
// its own from front to back, so that it reads one stream.
template <class Body>
void parallel_shares(int threads, int64_t n, Body&& body) {
  each_piece(threads, n, Handout::shares, body);
}

}  // namespace qeng
