// What the passes of AttentionGrad on Hopper share: attention_grad_sm90.cu has the design.
#pragma once
#include "kernels/cuda/attention/attention_sm90.h"

namespace qeng {
namespace sm90 {

constexpr int kGradGroups = 2;  // of consumers
using GradTeam = Crew<kGradGroups>;
constexpr int kSquare = 128;  // queries of a tile of the query pass; queries and keys of a square of kept dS

// dS in bf16, which the key pass leaves for the query pass: squares of 128 queries by 128 keys. A document that attends
// to itself has m + 1 of them for its m-th 128 queries. A square is [2 halves of keys][2 halves of queries]
// [4 x 16 keys][4 x 16 queries][4] lines, each a matrix of 8 x 8 as wgmma leaves it. A half of which no query sees a
// key of the square may not be written.
struct KeptGradient {
  static constexpr int kBytes = kSquare * kSquare * 2, kWords = kBytes / 4;
  static constexpr int kLineBytes = 128, kLines = kBytes / kLineBytes;
  uint32_t* words;  // null: nothing is kept
  int squares;      // of a head

  // Squares before the s-th document, which begins at a row: enough for those before, as a document of L rows has at
  // most (L / 128)^2 / 2 + 1.5 L / 128 + 1.
  template <class Int>
  QENG_HD Int before(Int row, Int s) {
    return row * (row + 3 * kSquare) / (2 * kSquare * kSquare) + s;
  }
  // The square of queries and keys from these rows on; head: of those kept.
  __device__ int square(const AttentionTile& tile, int head, int query, int key) const {
    const int m = (query - tile.q_begin) / kSquare, n = (key - tile.k_begin) / kSquare;
    return head * squares + before(tile.q_begin, tile.document) + m * (m + 1) / 2 + n;
  }
  // By a warpgroup: dS^T of 64 keys and 64 queries, to a quarter of a square.
  __device__ __forceinline__ void store(int square, int quarter, const uint32_t (&ds)[4][4]) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) % kGroup / kWarp;
    uint32_t* const to = words + square * kWords + (quarter * 4 + warp) * (kWords / 16) + lane;
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) to[(4 * j + i) * kWarp] = ds[j][i];
  }
  // By a warpgroup: dS of the half's 64 queries and all keys of a square in shared memory as TMA leaves it, chunk c of
  // line r at c ^ (r % 8). Transposed, the second and third of four matrices change places.
  __device__ static __forceinline__ void load(uint32_t (&ds)[kSquare / 16][4], const char* square, int half) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) % kGroup / kWarp;
    const int matrix = lane / 16 + lane / 8 % 2 * 2, row = lane % 8;
#pragma unroll
    for (int k = 0; k < kSquare / 16; ++k) {
      const int line = (((k / 4 * 2 + half) * 4 + k % 4) * 4 + warp) * 4 + matrix;
      ptx::ldmatrix_x4_trans(ds[k], square + line * kLineBytes + (row ^ line % 8) * 16);
    }
  }
};

// Where the dS may be kept: at head_dim 64 reading and writing them takes as long as making them anew, and beyond 128
// the key pass has no tiles of 128 keys.
constexpr QENG_HD bool may_keep(int dim) { return dim > 64 && dim <= 128; }

struct GradArguments {
  AttentionPlan* plan;
  const float *lse, *delta;
  bf16 *dq, *dk, *dv;
  float* parts;  // of the key pass, where several blocks share a kv head: [share, 2 (dk, dv), tk, kv_heads, dim]
  int shares;    // blocks that share a kv head, each with group / shares query heads
  int tq, tk, heads, kv_heads, group, dim, window;
  float scale, c;    // c = scale * log2(e)
  int first, count;  // of the key pass's kv_heads * shares, or the query pass's heads: those of this launch
  KeptGradient kept;
};

template <class L>
__device__ inline void init_barriers() {
  if (threadIdx.x == 0) {
    uint64_t* const barrier = barriers_of<L>();
    init_ring(barrier + L::item_full, barrier + L::item_empty, kItems, GradTeam::kConsumerWarps);
    init_ring(barrier + L::own_full, barrier + L::own_empty, 1, GradTeam::kConsumerWarps);
    init_ring(barrier + L::full, barrier + L::empty, L::kStages, GradTeam::kConsumerWarps);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
}

// The query pass of all heads, which makes dS anew; or of some, from the dS that are kept. dq is written.
void queue_query_pass(const AttentionGrad& op, const AttentionShape& shape, GradArguments a, CudaContext& context);
constexpr PlanWish kKeptQueries{TileSide::queries, kSquare, kSquare};  // a.plan is of
void queue_kept_query_pass(const AttentionGrad& op, const AttentionShape& shape, const GradArguments& a,
                           CudaContext& context);

}  // namespace sm90
}  // namespace qeng
