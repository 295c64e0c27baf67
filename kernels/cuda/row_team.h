// Rows and the teams of threads that norms are computed by: rmsnorm.cu and layer_norm.cu.
//
// A row made of 16-byte vectors belongs to a team of threads of a block of kThreads: 8, 16 or 32 lanes of a warp up to
// 4 KB, the whole block up to 16 KB. Its elements stay in registers between the sum over the row and the result, so
// each is read once. Other rows (odd widths, odd addresses, longer) are read twice, element by element, by a warp.
//
// Sums over rows: a block of rows sums its rows in registers, the teams' sums are added in order, then the blocks'. How
// many rows make a block follows from the shape alone, so they have the same bits on every device.
#pragma once
#include "kernels/cuda/vector.h"

namespace qeng::row_team {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

// The sum over a row's team, the same in each of its threads, which stand for kPlays of the team each: x[play] is that of
// thread play * kLanes / kPlays + its own. Teams of a warp and less: all lanes of the warp come here. A team of the whole
// block needs exchange: [kWarps] in shared memory, untouched since the barrier before the last one, and a barrier of
// those threads.
template <int kLanes, int kPlays, class Barrier>
__device__ float team_sum(const float (&x)[kPlays], float* exchange, Barrier barrier) {
  float sum[kPlays];
  for (int play = 0; play < kPlays; ++play) {
    sum[play] = x[play];
    for (int offset = (kLanes < kWarp ? kLanes : kWarp) / 2; offset > 0; offset /= 2)
      sum[play] += __shfl_xor_sync(kAllLanes, sum[play], offset);
  }
  if constexpr (kLanes > kWarp) {
    static_assert(kLanes == kThreads);
    for (int play = 0; play < kPlays; ++play)
      if (threadIdx.x % kWarp == 0) exchange[threadIdx.x / kWarp + play * (kWarps / kPlays)] = sum[play];
    barrier();
    float total = 0;
    for (int warp = 0; warp < kWarps; ++warp) total += exchange[warp];
    return total;
  } else {
    static_assert(kPlays == 1);
    return sum[0];
  }
}
template <int kLanes>
__device__ float team_sum(float x, float* exchange) {
  const float one[1] = {x};
  return team_sum<kLanes>(one, exchange, [] { __syncthreads(); });
}

template <int kLanes_, int kVectors_>
struct Team {
  static constexpr int kLanes = kLanes_, kVectors = kVectors_, kTeams = kThreads / kLanes;
};

// Calls f(Team) with the team for rows of `vectors` 16-byte vectors; false where a row is too long for any. kWide: a
// warp's registers suffice for 4 KB, else for 2 KB.
template <bool kWide = true, class F>
bool with_team(int64_t vectors, F f) {
  if (vectors <= 8)
    f(Team<8, 1>());
  else if (vectors <= 16)
    f(Team<16, 1>());
  else if (vectors <= 128)
    f(Team<32, 4>());
  else if (kWide && vectors <= 256)
    f(Team<32, 8>());
  else if (vectors <= 512)
    f(Team<kThreads, 2>());
  else if (vectors <= 1024)
    f(Team<kThreads, 4>());
  else
    return false;
  return true;
}

inline dim3 blocks_of(int64_t rows, int64_t rows_a_block, int64_t groups = 1) {
  return dim3(static_cast<unsigned>(ceil_div(rows, rows_a_block)), static_cast<unsigned>(groups));
}

// Rows whose share of dw a block of `teams` sums up: four turns and more, so that writing the share costs little, and
// at most kMostBlocks, so that the shares stay in the L2 cache.
inline int64_t rows_for_weights(int64_t rows, int teams) {
  constexpr int64_t kMostBlocks = 1024;
  return std::max<int64_t>({4 * teams, 16, ceil_div(ceil_div(rows, kMostBlocks), teams) * teams});
}

}  // namespace qeng::row_team
