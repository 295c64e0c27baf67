// Threads of the CPU backend. The pool is OpenMP's own team, which oneDNN uses too: one set of threads, never
// oversubscribed. Work is split by position only, so a result never depends on timing. Bodies must not throw and must
// not nest.
#pragma once
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

namespace qeng {

// The cores this process may use: its affinity mask, at least 1.
int available_threads();

// body(begin, end) on disjoint ranges that cover [0, n). Ranges start at multiples of grain; n <= grain runs on the
// caller.
template <class Body>
void parallel_for(int threads, int64_t n, int64_t grain, Body&& body) {
  if (n <= 0) return;
  const int64_t grains = (n + grain - 1) / grain;
  const int team = static_cast<int>(std::min<int64_t>(threads, grains));
  if (team <= 1) return body(int64_t{0}, n);
#pragma omp parallel num_threads(team)
  {
    const int64_t rank = omp_get_thread_num(), size = omp_get_num_threads();
    const int64_t begin = grains * rank / size * grain, end = std::min(n, grains * (rank + 1) / size * grain);
    if (begin < end) body(begin, end);
  }
}

// body(i) for each i of [0, n), handed out one at a time: for pieces of unequal cost that write to places of their own.
template <class Body>
void parallel_each(int threads, int64_t n, Body&& body) {
  const int team = static_cast<int>(std::min<int64_t>(threads, n));
  if (team <= 1) {
    for (int64_t i = 0; i < n; ++i) body(i);
    return;
  }
#pragma omp parallel for schedule(dynamic, 1) num_threads(team)
  for (int64_t i = 0; i < n; ++i) body(i);
}

// body(i) for each i of [0, n), for pieces of equal cost that lie side by side in memory: each thread walks a share of
// its own from front to back, so that it reads one stream; one that is done takes pieces off the end of another's.
template <class Body>
void parallel_shares(int threads, int64_t n, Body&& body) {
  const int team = static_cast<int>(std::min<int64_t>(threads, n));
  if (team <= 1) {
    for (int64_t i = 0; i < n; ++i) body(i);
    return;
  }
  struct alignas(64) Share {
    std::atomic<uint64_t> left;  // pieces first .. end - 1: end in the upper half, so that one exchange takes one
  };
  const auto pack = [](int64_t first, int64_t end) {
    return static_cast<uint64_t>(end) << 32 | static_cast<uint64_t>(first);
  };
  std::vector<Share> shares(static_cast<size_t>(team));
  for (int t = 0; t < team; ++t) shares[static_cast<size_t>(t)].left = pack(n * t / team, n * (t + 1) / team);
  // The first or last piece of a share, -1 of an empty one.
  const auto take = [&](Share& share, bool front) {
    uint64_t left = share.left.load(std::memory_order_relaxed);
    for (;;) {
      const auto first = static_cast<int64_t>(left & 0xffffffff), end = static_cast<int64_t>(left >> 32);
      if (first >= end) return int64_t{-1};
      const uint64_t next = front ? pack(first + 1, end) : pack(first, end - 1);
      if (share.left.compare_exchange_weak(left, next, std::memory_order_relaxed)) return front ? first : end - 1;
    }
  };
#pragma omp parallel num_threads(team)
  {
    const int rank = omp_get_thread_num();
    for (int t = 0; t < team; ++t) {
      Share& share = shares[static_cast<size_t>((rank + t) % team)];
      for (int64_t i; (i = take(share, t == 0)) >= 0;) body(i);
    }
  }
}

// The number of the calling thread in its team, for scratch of its own: 0 .. threads - 1.
inline int team_rank() { return omp_get_thread_num(); }

}  // namespace qeng
