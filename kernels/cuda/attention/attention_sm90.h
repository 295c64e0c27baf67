// What the Hopper kernels of attention share. A block is three or four warpgroups: the first fetches tiles by TMA into
// rings of shared memory and needs few registers; the others work on them with wgmma. Tiles are panels as in
// ptx_sm90.h: a head_dim that is no multiple of 64 is filled up with zeros, which add nothing.
#pragma once
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/ptx/ring.h"

namespace qeng {
namespace sm90 {

constexpr int kGroup = 128;  // threads of a warpgroup
constexpr int kSharedLimit = 227 * 1024;
constexpr int kConsumerBarrier = 1;  // named barriers: the consumers together; whose turn it is
constexpr int kTurnBarrier = 2;      // and as many as there are consumer groups

// A block with so many consumer groups. A thread has kStart registers when it starts (65536 in all); then one of the
// first group kFew, which is more than 32 where there is room, and of the others kMany, just about all that is left.
template <int groups>
struct Crew {
  static_assert(groups == 2 || groups == 3);
  static constexpr int kConsumers = groups * kGroup, kConsumerWarps = kConsumers / kWarp;
  static constexpr int kThreads = kGroup + kConsumers, kStart = groups == 2 ? 168 : 128;
  static constexpr int kFew = groups == 2 ? 40 : 32, kMany = groups == 2 ? 232 : 160;
  static_assert(kFew + groups * kMany <= (1 + groups) * kStart);
};

constexpr QENG_HD int panels(int dim) { return (dim + kPanelColumns - 1) / kPanelColumns; }
constexpr QENG_HD int panel_bytes(int rows) { return rows * kPanelColumns * 2; }
constexpr QENG_HD int tile_bytes(int dim, int rows) { return panels(dim) * panel_bytes(rows); }

// Calls f(std::integral_constant<int, d>()) with the least head_dim d that the kernels are made for and that holds dim.
template <class F>
void with_head_dim(int dim, F f) {
  if (dim <= 64)
    f(std::integral_constant<int, 64>());
  else if (dim <= 96)
    f(std::integral_constant<int, 96>());
  else if (dim <= 128)
    f(std::integral_constant<int, 128>());
  else
    f(std::integral_constant<int, 256>());
}
// A grid whose blocks take items until none is left.
inline dim3 one_a_multiprocessor(int64_t items, const CudaContext& context) {
  return dim3(static_cast<unsigned>(std::min<int64_t>(items, context.multiprocessors)));
}

// What the first group found to do next and tells the others: a tile and a head, or head -1, nothing any more.
struct Item {
  AttentionTile tile;
  int head, unused[3];
};

// The number of the thread's warpgroup, in a form that shows the compiler that a warp agrees on it.
__device__ inline int warpgroup() { return __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kGroup, 0); }

// Items lie in a ring of two, so that the fetching group is one ahead. A kernel's layout L says where: kItem,
// kBarriers, and the numbers of the barriers item_full and item_empty.
constexpr int kItems = 2;
template <class L>
__device__ inline uint64_t* barriers_of() {
  return reinterpret_cast<uint64_t*>(shared_memory() + L::kBarriers);
}
template <class L>
__device__ inline Item* item_at(const Ring<kItems>& ring) {
  return reinterpret_cast<Item*>(shared_memory() + L::kItem) + ring.stage;
}
// The next item, for the first warp; tells the consumers. Each block asks once in vain, and the last of them leaves the
// plan ready for another launch.
template <class L>
__device__ inline Item hand_out(AttentionPlan* plan, int heads, Ring<kItems>& ring) {
  int number = 0;
  if (threadIdx.x == 0) {
    number = atomicAdd(&plan->taken, 1);
    if (number == plan->tiles * heads + static_cast<int>(gridDim.x) - 1) atomicExch(&plan->taken, 0);
  }
  number = __shfl_sync(kAllLanes, number, 0);
  Item item{{}, -1, {}};
  if (number < plan->tiles * heads) item = {plan->list()[number / heads], number % heads, {}};
  if (threadIdx.x == 0) {
    ptx::mbarrier_wait(barriers_of<L>() + L::item_empty + ring.stage, ring.parity ^ 1);
    *item_at<L>(ring) = item;
    ptx::mbarrier_arrive(barriers_of<L>() + L::item_full + ring.stage);
  }
  ring.next();
  return item;
}
// The item to work on, for a consumer; it lies there until done_with it.
template <class L>
__device__ inline const Item* receive(const Ring<kItems>& ring) {
  ptx::mbarrier_wait(barriers_of<L>() + L::item_full + ring.stage, ring.parity);
  return item_at<L>(ring);
}
template <class L>
__device__ inline void done_with(Ring<kItems>& ring) {
  release(barriers_of<L>() + L::item_empty + ring.stage);
  ring.next();
}
// Fetches `rows` rows (the map's box) of one head from `row` on. By one thread.
template <int dim, int rows>
__device__ inline void fetch_tile(char* tile, const TensorMap* map, int head, int row, uint64_t* full) {
#pragma unroll
  for (int p = 0; p < panels(dim); ++p)
    ptx::tma_load(tile + p * panel_bytes(rows), map, p * kPanelColumns, head, row, full);
}

// Rows from `first` on become zero. They lie past the document's end and meet probabilities of 0, but TMA may have
// fetched what is no number, and 0 times that is none either. By all consumer groups, before any multiplies.
template <int dim, int rows, int groups>
__device__ inline void clear_rows(char* tile, int first) {
  constexpr int kRowBytes = kPanelColumns * 2, kChunks = kRowBytes / 16;
  const int thread = static_cast<int>(threadIdx.x) - kGroup;
  for (int row = first + thread / kChunks; row < rows; row += Crew<groups>::kConsumers / kChunks)
#pragma unroll
    for (int p = 0; p < panels(dim); ++p)
      *reinterpret_cast<uint4*>(tile + p * panel_bytes(rows) + row * kRowBytes + thread % kChunks * 16) =
          make_uint4(0, 0, 0, 0);
}
template <int groups>
__device__ inline void end_clearing() {
  ptx::fence_proxy_async();
  ptx::barrier_sync(kConsumerBarrier, Crew<groups>::kConsumers);
}

// s = a b^T over `dim` columns. a: 64 rows of a tile of a_rows, b: a tile of `columns` rows, both by their first row.
template <int dim, int a_rows, int columns>
__device__ __forceinline__ void multiply(float (&s)[columns / 2], const char* a, const char* b) {
  const uint64_t a0 = ptx::tile_descriptor(a), b0 = ptx::tile_descriptor(b);
#pragma unroll
  for (int k = 0; k < dim / 16; ++k)
    ptx::wgmma<ptx::Major::k>(s, ptx::advance(a0, k / 4 * panel_bytes(a_rows) + k % 4 * 32),
                              ptx::advance(b0, k / 4 * panel_bytes(columns) + k % 4 * 32), k != 0);
}
// o += p b. p: 64 x rows as fragments, b: a tile of `rows` rows, by the first of its `columns` columns.
template <int columns, int rows>
__device__ __forceinline__ void multiply_add(float (&o)[columns / 2], const uint32_t (&p)[rows / 16][4],
                                             const char* b) {
  const uint64_t b0 = ptx::tile_descriptor(b, panel_bytes(rows));
#pragma unroll
  for (int k = 0; k < rows / 16; ++k) ptx::wgmma<ptx::Major::mn>(o, p[k], ptx::advance(b0, k * 2048));
}

// Sums as they come out of one product, rounded to bf16, are fragments for the next.
template <int columns>
__device__ __forceinline__ void pack(uint32_t (&p)[columns / 16][4], const float (&s)[columns / 2]) {
#pragma unroll
  for (int k = 0; k < columns / 16; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) p[k][i] = ptx::pack_bf16(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
}

// Of a query head's rows, for the gradient. lse in base 2; a row past the end or without keys has probability 0
// everywhere, which +inf gives.
__device__ inline float base2_lse(const float* lse, int row, int end) {
  if (row >= end) return INFINITY;
  return lse[row] == -INFINITY ? INFINITY : lse[row] * kLog2e;
}
__device__ inline float delta_of(const float* delta, int row, int end) { return row < end ? delta[row] : 0.0f; }

// The place of a thread in its warpgroup's 64 rows: rows row and row + 8, columns 8 i + column and the next.
__device__ inline int fragment_row() {
  return static_cast<int>(threadIdx.x % kGroup) / kWarp * 16 + static_cast<int>(threadIdx.x % kWarp) / 4;
}
__device__ inline int fragment_column() { return static_cast<int>(threadIdx.x % 4) * 2; }

// Scores of keys that the thread's rows do not see become -inf. first: the keys' first.
template <int keys>
__device__ __forceinline__ void mask(float (&s)[keys / 2], const AttentionTile& tile, int query, int first,
                                     int window) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int past = tile.end(query + 8 * r) - first - fragment_column();
    const int begin = tile.begin(query + 8 * r, window) - first - fragment_column();
#pragma unroll
    for (int i = 0; i < keys / 2; ++i)
      if (i / 2 % 2 == r) {
        const int column = i / 4 * 8 + i % 2;
        if (column >= past || column < begin) s[i] = kMasked;
      }
  }
}

// Writes factor[r] * x to row[r], columns below dim, where wanted[r]. The four lanes of a row trade their pairs of
// columns, so that each writes 16 bytes.
template <int columns>
__device__ __forceinline__ void store_rows(const float (&x)[columns / 2], const float (&factor)[2],
                                           bf16* const (&row)[2], const bool (&wanted)[2], int dim) {
  const int t = static_cast<int>(threadIdx.x % 4);
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int i = 0; i < columns / 32; ++i) {
      uint32_t word[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float* pair = x + 4 * (4 * i + n) + 2 * r;
        word[n] = ptx::pack_bf16(pair[0] * factor[r], pair[1] * factor[r]);
      }
      // Transposes the 4 x 4 words of the four lanes: afterwards lane t holds what tile 4 i + t has of this row.
#pragma unroll
      for (int step = 1; step <= 2; step *= 2)
#pragma unroll
        for (int n = 0; n < 4; ++n)
          if (!(n & step)) {
            const uint32_t other = __shfl_xor_sync(kAllLanes, t & step ? word[n] : word[n + step], step);
            if (t & step)
              word[n] = other;
            else
              word[n + step] = other;
          }
      const int column = 32 * i + 8 * t;
      if (wanted[r] && column < dim)
        *reinterpret_cast<uint4*>(row[r] + column) = make_uint4(word[0], word[1], word[2], word[3]);
    }
}
// The same to rows first and first + 8 of a [.., row_stride] array.
template <int columns>
__device__ __forceinline__ void store_rows(const float (&x)[columns / 2], const float (&factor)[2], bf16* first,
                                           int64_t row_stride, const bool (&wanted)[2], int dim) {
  bf16* const row[2] = {first, first + 8 * row_stride};
  store_rows<columns>(x, factor, row, wanted, dim);
}

// Whether these kernels can and shall work on the operands ([tokens, heads, head_dim]): on Hopper, in bf16, with rows
// that TMA and 16-byte stores reach, and scores that grow with the product of q and k, as the running maximum takes for
// granted; unless QENG_ATTENTION=mma forbids it. Throws Error("value") where that variable is no word it knows.
bool suits_sm90(const CudaContext& context, float scale, std::initializer_list<View> operands);

}  // namespace sm90
}  // namespace qeng
