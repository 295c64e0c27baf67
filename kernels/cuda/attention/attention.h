// What the kernels of Attention and AttentionGrad share: the shape, the plan of tiles, which pair of query and key is
// seen, softmax in base 2.
//
// Boundaries are device data that a replay of a recorded graph may find changed, so no grid can be made to their
// measure. Each operation first queues plan_attention, one block that checks the boundaries, divides the documents into
// tiles that never straddle two of them, and lists the tiles with the longest first. The kernels after it have a fixed
// number of blocks, each of which takes the next item (tile and head) until none is left. What a tile gives does not
// depend on which block computes it.
//
//   for (int item = next_item(plan, shared_item); item < plan->tiles * heads; item = next_item(plan, shared_item)) {
//     const AttentionTile tile = plan->list()[item / heads];
//     const int head = item % heads;  // the longest tile of each head, then the next
#pragma once
#include <algorithm>
#include <cmath>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/ptx/ptx.h"
#include "kernels/error.h"
#include "kernels/view_text.h"

namespace qeng {

struct AttentionShape {
  int tq, tk, heads, kv_heads, group, dim, value_dim, documents;
  int window;  // at most tk + 1; no window: tk + 1
};

template <class AnyOp>
AttentionShape attention_shape(const AnyOp& op) {
  const int64_t tq = op.q.shape[0], tk = op.k.shape[0], heads = op.q.shape[1], kv_heads = op.k.shape[1];
  const int64_t dim = op.q.shape[2], value_dim = op.v.shape[2], group = heads / kv_heads;
  constexpr int64_t kMostRows = int64_t{1} << 30;  // positions are 32 bit, and so are sums of two of them
  if (tq > kMostRows || tk > kMostRows || heads > kMostRows / 1024)
    fail("unsupported", op.name, ": q is ", shape_text(op.q), ", k is ", shape_text(op.k),
         "; cuda takes at most 2^30 tokens and 2^20 heads");
  if (std::max(dim, value_dim) > 256)
    fail("unsupported", op.name, ": q is ", shape_text(op.q), ", v is ", shape_text(op.v),
         "; cuda takes heads of at most 256, the cpu backend any");
  const auto i = [](int64_t x) { return static_cast<int>(x); };
  return {i(tq),
          i(tk),
          i(heads),
          i(kv_heads),
          i(group),
          i(dim),
          i(value_dim),
          i(op.cu_q.elements() - 1),
          i(op.window > 0 ? std::min<int64_t>(op.window, tk + 1) : tk + 1)};
}

// ---------------------------------------------------------------- the plan

// Rows [first, first + the tile's size) of queries or keys, cut off at the document's end, and that document.
// Rows past the last document come as tiles of a document that has nothing on the other side.
struct alignas(16) AttentionTile {
  int first, q_begin, q_end, k_begin, k_end, document, unused[2];

  // Query t sees keys [begin(t, window), end(t)): its document's last query sees the last key, the one before one less.
  __device__ int end(int t) const { return t + 1 + k_end - q_end; }
  __device__ int begin(int t, int window) const { return max(k_begin, end(t) - window); }
  // The same for a key j of the document; the left side is linear in t - j.
  __device__ int keys_after(int t, int j) const { return t - j + (k_end - q_end); }
  __device__ static bool sees(int keys_after, int window) {
    return static_cast<unsigned>(keys_after) < static_cast<unsigned>(window);
  }
};

struct alignas(16) AttentionPlan {  // the list lies behind it
  int tiles;
  int taken;  // items handed out so far
  __device__ AttentionTile* list() { return reinterpret_cast<AttentionTile*>(this + 1); }
};

enum class TileSide { queries, keys };

// A plan in scratch memory, filled by a kernel that this queues. rows: queries or keys of a tile; step: keys or queries
// that a kernel takes at a time, the measure of a tile's length. Boundaries that do not rise from 0 or pass the rows
// are reported, and leave the plan without tiles.
struct PlanWish {
  TileSide side;
  int rows, step;
};
AttentionPlan* plan_attention(const AttentionShape& shape, const View& cu_q, const View& cu_k, PlanWish wish,
                              CudaContext& context);
// Most tiles that a plan can have.
int64_t most_tiles(const AttentionShape& shape, PlanWish wish);
// A grid to work off a plan's items: as many blocks as may be resident, or a few more, which find nothing left.
constexpr int kResident = 4;  // blocks of a multiprocessor; the kernels here take 25 to 99 KB and up to 255 registers
inline dim3 plan_blocks(int64_t most_items, const CudaContext& context) {
  return dim3(static_cast<unsigned>(std::min<int64_t>(most_items, int64_t{kResident} * context.multiprocessors)));
}

// The next item, the same in each thread of the block. shared_item: shared memory for it. A barrier of the block before
// and after: what an item left in shared memory may be overwritten on return.
__device__ inline int next_item(AttentionPlan* plan, int* shared_item) {
  __syncthreads();
  if (threadIdx.x == 0) *shared_item = atomicAdd(&plan->taken, 1);
  __syncthreads();
  return *shared_item;
}

// Positions [begin, end), taken `step` at a time from `begin` on.
struct Span {
  int begin, end;
  __device__ bool empty() const { return begin >= end; }
};
// Keys that some query of [t0, t1) sees, t1 <= q_end: from the step (counted from k_begin) that holds the first of
// them.
__device__ inline Span keys_seen(const AttentionTile& tile, int t0, int t1, int window, int step) {
  const int begin = tile.begin(t0, window) - tile.k_begin;
  return {tile.k_begin + begin / step * step, t0 < t1 ? tile.end(t1 - 1) : 0};
}
// Queries that see some key of [j0, j1), j1 <= k_end: from the step (counted from q_begin) that holds the first of
// them.
__device__ inline Span queries_seeing(const AttentionTile& tile, int j0, int j1, int window, int step) {
  const int shift = tile.k_end - tile.q_end;
  const int begin = max(0, j0 - shift - tile.q_begin);
  return {tile.q_begin + begin / step * step, j0 < j1 ? min(tile.q_end, j1 - 1 - shift + window) : 0};
}
// Whether some, or each, query of [t0, t1) sees some, or each, key of [j0, j1): whether there is anything to do, and
// whether nothing is to be masked. t1 <= q_end, j0 >= k_begin; keys past k_end are seen by none of them.
__device__ inline bool any_seen(const AttentionTile& tile, int t0, int t1, int j0, int j1, int window) {
  return t0 < t1 && tile.keys_after(t1 - 1, j0) >= 0 && tile.keys_after(t0, j1 - 1) < window;
}
__device__ inline bool all_seen(const AttentionTile& tile, int t0, int t1, int j0, int j1, int window) {
  return tile.keys_after(t0, j1 - 1) >= 0 && tile.keys_after(t1 - 1, j0) < window;
}

// ---------------------------------------------------------------- softmax

constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
constexpr float kMasked = -INFINITY;  // a score that counts for nothing

// One row's online softmax (Milakov & Gimelshein 2018, arXiv 1805.02867) over scores that are still to be multiplied by
// c = scale * log2(e), c > 0. A row may be spread over threads, each with the same `top` and its part of `total`.
struct SoftmaxRow {
  float top = kMasked, total = 0;

  // What 2^(score * c - offset()) is relative to. A row that saw no key yet is relative to 0.
  __device__ float offset(float c) const { return top == kMasked ? 0.0f : top * c; }
  // Raises `top` to a new score; returns the factor for what was summed before (total and the output's row).
  __device__ float raise(float score, float c) {
    const float before = top;
    top = fmaxf(top, score);
    const float factor = ptx::exp2_approx(before * c - offset(c));
    total *= factor;
    return factor;
  }
  __device__ static float probability(float score, float c, float offset) {
    return ptx::exp2_approx(fmaf(score, c, -offset));
  }
  // Once total is whole, a sink (a score in natural units; null: none) takes its part of the softmax of a row that saw a
  // key. Returns the factor for the output's row besides inverse().
  __device__ float join(const float* sink, float c) {
    if (!sink || !(total > 0)) return 1;
    const float score = *sink * kLog2e / c, factor = raise(score, c);
    total += probability(score, c, offset(c));
    return factor;
  }
  // Then: the factor for the output's row, and the row's lse in natural units. A row that saw no key has
  // neither output nor lse; a NaN stays one.
  __device__ float inverse() const { return total > 0 ? 1.0f / total : total; }
  __device__ float lse(float c) const { return total == 0 ? 0.0f : offset(c) * kLn2 + logf(total); }
};

// ---------------------------------------------------------------- variants

// The same operations by wgmma and TMA, for compute capability 9.0 and shapes that suit them, without softcap; operands
// are checked already. False: nothing was queued.
bool attention_sm90(const Attention& op, const AttentionShape& shape, CudaContext& context);
bool attention_grad_sm90(const AttentionGrad& op, const AttentionShape& shape, CudaContext& context);

// For f32, any head_dim and value_dim up to 256, softcap and any alignment: no tensor cores.
void attention_general(const Attention& op, const AttentionShape& shape, CudaContext& context);
void attention_grad_general(const AttentionGrad& op, const AttentionShape& shape, CudaContext& context);

// delta[h, t] = <dout[t, h, :], o[t, h, :]>, and dsinks from it where they are wanted
void attention_delta(const AttentionGrad& op, const AttentionShape& shape, CudaContext& context);

}  // namespace qeng
