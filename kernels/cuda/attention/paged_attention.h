// The plan of PagedAttention: which queries, and which of their keys, a thread block works on at a time.
//
// Lengths and pages are device data that a replay of a recorded graph finds changed, so the grid follows from shapes
// alone. One block first divides the queries of each sequence into tiles, and lists what there is to do; the blocks of
// the kernels after it take item after item until none is left.
//
// The bits of a query follow from itself and its keys: keys are taken in pieces of kPieceKeys counted from the
// sequence's first key, each with a softmax of its own, and pieces are merged in their order. An item is a tile with
// all of its pieces; or, where tiles are too few to fill the device (decoding), a tile with one piece, whose sums go to
// memory and are merged by a second kernel, in the same way.
#pragma once
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/divisor.h"

namespace qeng {

constexpr int kTileRows = 16;       // queries times query heads of a group: they share each load of a key
constexpr int kManyTileRows = 64;   // of a prompt, where tensor cores take them (paged_mma.cu)
constexpr int kWideTileRows = 128;  // and on Hopper (paged_sm90.cu)
constexpr int kPieceKeys = 256;     // 128 KB of keys and values of a head in bf16, several microseconds of one block

struct PagedShape {
  int tokens, sequences, heads, kv_heads, group, dim, value_dim;
  int most_pages, page_tokens, pool_pages;
  int window;       // 0: none
  int tile_rows;    // kTileRows, kManyTileRows or kWideTileRows
  int tile_heads;   // query heads of a tile: the group, or up to kTileRows of it
  int head_blocks;  // of tile_heads, to a group
  int tile_queries;
  int columns;  // kv_heads * head_blocks: each item is done for each of them
  int most_tiles, most_pieces;
  bool divided;  // an item has one piece
  Divisor by_page_tokens, by_head_blocks, by_columns;
  bool operator==(const PagedShape&) const = default;
};
PagedShape paged_shape(const PagedAttention& op, const CudaContext& context);

// Queries first .. first + queries of a sequence, of which query first + i sees keys below seen + i (at most `window`).
// As an item: pieces piece .. piece + pieces of its keys. As a tile of a divided plan: items item .. item + pieces.
struct alignas(16) PagedItem {
  int first, queries, seen, sequence, piece, pieces, item, unused;
};
struct alignas(16) PagedPlan {  // the items lie behind it, and where it is divided the tiles behind them
  int items, tiles, taken, unused;
  __device__ PagedItem* list() { return reinterpret_cast<PagedItem*>(this + 1); }
  __device__ PagedItem* tile_list(const PagedShape& shape) {
    return list() + int64_t{shape.most_tiles} * shape.most_pieces;
  }
};
// In `memory`, filled by a kernel that this queues; it reports boundaries and lengths that are wrong.
PagedPlan* plan_pages(const PagedShape& shape, const View& cu_q, const View& lengths, CudaScratch& memory,
                      CudaContext& context);

// The next item, by one thread of a block. Each block comes once more than it gets one; the last of all leaves the plan as
// it was, for another kernel.
__device__ inline int take_item(PagedPlan* plan, int columns) {
  const int item = atomicAdd(&plan->taken, 1);
  if (item == plan->items * columns + static_cast<int>(gridDim.x) - 1) atomicExch(&plan->taken, 0);
  return item;
}
// The same in each thread of the block; a barrier before and after (as next_item of attention.h).
__device__ inline int next_item(PagedPlan* plan, int columns, int* shared_item) {
  __syncthreads();
  if (threadIdx.x == 0) *shared_item = take_item(plan, columns);
  __syncthreads();
  return *shared_item;
}

// Merging the softmax of a later piece into that of the pieces before it: sums become sum * before + piece * later.
// Into nothing it is exact, and a piece with nothing changes nothing. Each operation is rounded as written here,
// wherever the function is inlined.
struct MergeFactors {
  float before, later;
};
__device__ inline MergeFactors merge_pieces(float& top, float& total, float piece_top, float piece_total) {
  const float highest = fmaxf(top, piece_top), offset = highest == kMasked ? 0.0f : highest;
  const MergeFactors factors{ptx::exp2_approx(__fsub_rn(top, offset)), ptx::exp2_approx(__fsub_rn(piece_top, offset))};
  top = highest;
  total = __fmaf_rn(piece_total, factors.later, __fmul_rn(total, factors.before));
  return factors;
}
__device__ inline float merged(float sum, float piece, MergeFactors factors) {
  return __fmaf_rn(piece, factors.later, __fmul_rn(sum, factors.before));
}

// Floats that a piece leaves for a row: the sums of value_dim columns in whole fours, the largest score, the total.
__host__ __device__ inline int partial_row(int value_dim) { return (value_dim + 3) / 4 * 4 + 4; }

}  // namespace qeng
