// The plan of an attention kernel's tiles: one block, a counting sort by length.
#include <algorithm>

#include "kernels/cuda/attention/attention.h"

namespace qeng {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / kWarp;
constexpr int kLengths = kThreads;  // classes of length, one thread each in the sum over classes

struct PlanArguments {
  const int32_t *cu_q, *cu_k;
  int documents, tq, tk, window;
  PlanWish wish;
  int length_shift;  // steps >> length_shift is less than kLengths
  AttentionPlan* plan;
  Fault* fault;
};

// Whether boundary i rises from 0 or the one before, and not past the rows.
__device__ inline bool right(const int32_t* cu, int i, int rows, Fault* fault) {
  const int value = cu[i], before = i > 0 ? cu[i - 1] : 0;
  if (value >= before && value <= rows && (i > 0 || value == 0)) return true;
  report(fault, FaultKind::bounds, i, value, rows);
  return false;
}

// Document s of the given ones, or the rows past the last, which for the queries have no keys and for the keys no
// queries.
__device__ inline AttentionTile document(const PlanArguments& a, int s) {
  const bool past = s == a.documents, queries = a.wish.side == TileSide::queries;
  AttentionTile tile{};
  tile.q_begin = a.cu_q[s], tile.q_end = !past ? a.cu_q[s + 1] : queries ? a.tq : tile.q_begin;
  tile.k_begin = a.cu_k[s], tile.k_end = !past ? a.cu_k[s + 1] : queries ? tile.k_begin : a.tk;
  return tile;
}

__device__ inline int length_class(const PlanArguments& a, const AttentionTile& tile) {
  const bool queries = a.wish.side == TileSide::queries;
  const int last = min(tile.first + a.wish.rows, queries ? tile.q_end : tile.k_end);
  const Span span = queries ? keys_seen(tile, tile.first, last, a.window, a.wish.step)
                            : queries_seeing(tile, tile.first, last, a.window, a.wish.step);
  const int steps = span.empty() ? 0 : (span.end - span.begin + a.wish.step - 1) / a.wish.step;
  return kLengths - 1 - min(steps >> a.length_shift, kLengths - 1);  // ascending from the longest
}

// Calls f(tile) for each tile: each warp deals out the tiles of 32 documents over its lanes.
template <class F>
__device__ void each_tile(const PlanArguments& a, F f) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int s0 = static_cast<int>(threadIdx.x) - lane; s0 <= a.documents; s0 += kThreads) {
    AttentionTile own{};
    if (s0 + lane <= a.documents) own = document(a, s0 + lane);
    const int rows = a.wish.side == TileSide::queries ? own.q_end - own.q_begin : own.k_end - own.k_begin;
    const int count = (rows + a.wish.rows - 1) / a.wish.rows;
    int through = count;  // tiles of the lanes up to this one
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const int other = __shfl_up_sync(kAllLanes, through, static_cast<unsigned>(offset));
      if (lane >= offset) through += other;
    }
    const int total = __shfl_sync(kAllLanes, through, kWarp - 1);
    for (int r0 = 0; r0 < total; r0 += kWarp) {
      const int r = r0 + lane;
      int owner = 0;  // the first lane with through > r
      for (int half = kWarp / 2; half > 0; half /= 2)
        if (r >= __shfl_sync(kAllLanes, through, owner + half - 1)) owner += half;
      AttentionTile tile{};
      tile.q_begin = __shfl_sync(kAllLanes, own.q_begin, owner), tile.q_end = __shfl_sync(kAllLanes, own.q_end, owner);
      tile.k_begin = __shfl_sync(kAllLanes, own.k_begin, owner), tile.k_end = __shfl_sync(kAllLanes, own.k_end, owner);
      const int number = r - (__shfl_sync(kAllLanes, through, owner) - __shfl_sync(kAllLanes, count, owner));
      tile.document = s0 + owner;
      tile.first = (a.wish.side == TileSide::queries ? tile.q_begin : tile.k_begin) + number * a.wish.rows;
      if (r < total) f(tile);
    }
  }
}

__global__ void __launch_bounds__(kThreads) plan_kernel(PlanArguments a) {
  int* place = reinterpret_cast<int*>(shared_memory());  // [kLengths]: how many of a class, then where the next goes
  int* warp_total = place + kLengths;                    // [kWarps]
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  place[thread] = 0;
  bool wrong = false;
  for (int i = thread; i <= a.documents; i += kThreads)
    wrong |= !right(a.cu_q, i, a.tq, a.fault) || !right(a.cu_k, i, a.tk, a.fault);
  if (__syncthreads_or(wrong)) {
    if (thread == 0) a.plan->tiles = 0, a.plan->taken = 0;
    return;
  }
  each_tile(a, [&](const AttentionTile& tile) { atomicAdd(&place[length_class(a, tile)], 1); });
  __syncthreads();
  const int count = place[thread];
  int through = count;
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const int other = __shfl_up_sync(kAllLanes, through, static_cast<unsigned>(offset));
    if (lane >= offset) through += other;
  }
  if (lane == kWarp - 1) warp_total[thread / kWarp] = through;
  __syncthreads();
  for (int w = 0; w < thread / kWarp; ++w) through += warp_total[w];
  place[thread] = through - count;
  if (thread == kThreads - 1) a.plan->tiles = through, a.plan->taken = 0;
  __syncthreads();
  each_tile(a, [&](const AttentionTile& tile) { a.plan->list()[atomicAdd(&place[length_class(a, tile)], 1)] = tile; });
}

}  // namespace

// Each document may leave one tile partly empty, and so may the rows past the last.
int64_t most_tiles(const AttentionShape& shape, PlanWish wish) {
  const int64_t rows = wish.side == TileSide::queries ? shape.tq : shape.tk;
  return rows / wish.rows + std::min<int64_t>(shape.documents + 1, rows);
}

AttentionPlan* plan_attention(const AttentionShape& shape, const View& cu_q, const View& cu_k, PlanWish wish,
                              CudaContext& context) {
  void* plan = context.scratch.take(sizeof(AttentionPlan) +
                                    sizeof(AttentionTile) * static_cast<size_t>(most_tiles(shape, wish)));
  PlanArguments a{cu_q.as<int32_t>(),
                  cu_k.as<int32_t>(),
                  shape.documents,
                  shape.tq,
                  shape.tk,
                  shape.window,
                  wish,
                  0,
                  static_cast<AttentionPlan*>(plan),
                  context.fault};
  while (((std::max(shape.tq, shape.tk) / wish.step + 1) >> a.length_shift) >= kLengths) ++a.length_shift;
  QENG_LAUNCH(context, plan_kernel, dim3(1), dim3(kThreads), sizeof(int) * (kLengths + kWarps), a);
  return a.plan;
}

}  // namespace qeng
