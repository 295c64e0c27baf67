// RowLinear, and GroupedMatmul apart, by bf16 weights on Hopper: wgmma and TMA. The last warp of a block fetches stages of
// weights and of x into a ring of shared memory, a tile of y after another and without waiting for its end; each
// warpgroup before it multiplies 64 rows of the weight by the tile's rows of x.
#include <algorithm>

#include "kernels/cuda/linear/row_end.h"
#include "kernels/cuda/linear/row_tensor.h"
#include "kernels/cuda/ptx/ring.h"

namespace qeng {

namespace {

constexpr int kGroup = 128, kHigh = 64;      // threads of a warpgroup, and the rows of its products
constexpr int kRowBytes = kTensorDepth * 2;  // of a panel
constexpr int kMostShared = 227 * 1024, kFewRows = 16;
constexpr int kMostStages = 16;
constexpr int kPass = 64;  // rows of x whose sums lie in shared memory at once, on their way out

// kGroups warpgroups with kWeights rows of a weight each, 64 or 32 of them real, by kRows rows of x.
template <int kGroups, int kWeights, int kRows>
struct WgmmaTile {
  // A lone warp that fetches would be the third of a quarter of the multiprocessor, and take a third of its registers.
  static constexpr bool kMany = kGroups > 1;
  static constexpr int kThreads = kGroups * kGroup + (kMany ? kGroup : kWarp);
  static constexpr int kWeightBytes = kHigh * kRowBytes, kStage = kGroups * kWeightBytes + kRows * kRowBytes;
  static constexpr int kSumRows = kRows < kPass ? kRows : kPass, kPitch = sum_pitch(kHigh);
  static constexpr int kSums = kSumRows * kPitch * 4;  // bytes of a warpgroup
  static constexpr int kRest = kGroups * kSums + 16 * kMostStages + kEndBytes;
  static constexpr int kStages = std::min(kMostStages, (kMostShared - kRest) / kStage);
  static constexpr int kSumsAt = kStages * kStage, kBarriersAt = kSumsAt + kGroups * kSums;
  static constexpr int kEndAt = kBarriersAt + 16 * kStages;
  static constexpr size_t kShared = kEndAt + kEndBytes;
  static_assert(kStages >= 3 && kStage % 1024 == 0 && kShared <= kMostShared);
};

struct RowMaps {
  TensorMap weight[kMostWeights], x;
};

template <int kGroups, int kWeights, int kRows, class Products>
__device__ __forceinline__ void fetch(const RowMaps& maps, const Products& products, int64_t across, int64_t tiles) {
  using T = WgmmaTile<kGroups, kWeights, kRows>;
  const int64_t depth = products_of(products).k;
  char* const shared = shared_memory();
  uint64_t *const full = reinterpret_cast<uint64_t*>(shared + T::kBarriersAt), *const empty = full + T::kStages;
  Ring<T::kStages> turn;
  for (int64_t number = blockIdx.x; number < tiles; number += gridDim.x) {
    const RowTile tile = RowTiles<kGroups * kWeights, kRows>::tile(products, across, number);
    if (tile.rows == 0 || tile.unclaimed) continue;
    const TensorMap* weight = maps.weight + tile.map;
    for (int64_t k = 0; k < depth; k += kTensorDepth, turn.next()) {
      char* const to = shared + turn.stage * T::kStage;
      uint64_t* const barrier = full + turn.stage;
      ptx::mbarrier_wait(empty + turn.stage, turn.parity ^ 1);
      ptx::mbarrier_arrive_expect(barrier, (kGroups * kWeights + kRows) * kRowBytes);
      for (int group = 0; group < kGroups; ++group)
        ptx::tma_load(to + group * T::kWeightBytes, weight, static_cast<int>(k), 0,
                      static_cast<int>(tile.map_row) + group * kWeights, barrier);
      ptx::tma_load(to + kGroups * T::kWeightBytes, &maps.x, static_cast<int>(k), 0, static_cast<int>(tile.first_row),
                    barrier);
    }
  }
}

template <int kGroups, int kWeights, int kRows, class Products>
__device__ __forceinline__ void multiply(const Products& products, const RowEnd& end, int64_t across, int64_t tiles) {
  using T = WgmmaTile<kGroups, kWeights, kRows>;
  const RowProducts& p = products_of(products);
  char* const shared = shared_memory();
  uint64_t *const full = reinterpret_cast<uint64_t*>(shared + T::kBarriersAt), *const empty = full + T::kStages;
  const int group = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kGroup, 0);
  const int thread = static_cast<int>(threadIdx.x) % kGroup, lane = thread % kWarp;
  const int row = thread / kWarp * 16 + lane / 4, column = lane % 4 * 2;  // of the thread's first sum
  float* const out = reinterpret_cast<float*>(shared + T::kSumsAt + group * T::kSums);
  Ring<T::kStages> turn;
  for (int64_t number = blockIdx.x; number < tiles; number += gridDim.x) {
    const RowTile tile = RowTiles<kGroups * kWeights, kRows>::tile(products, across, number);
    if (tile.rows == 0) continue;
    if (tile.unclaimed) {
      clear_tile<kGroups * kWeights, kGroups * kGroup>(p, tile, static_cast<int>(threadIdx.x));
      continue;
    }
    float sum[kRows / 2];
    int before = -1;  // the stage whose products may be under way
    for (int64_t k = 0; k < p.k; k += kTensorDepth, turn.next()) {
      const char* stage = shared + turn.stage * T::kStage;
      ptx::mbarrier_wait(full + turn.stage, turn.parity);
      const uint64_t w = ptx::tile_descriptor(stage + group * T::kWeightBytes),
                     x = ptx::tile_descriptor(stage + kGroups * T::kWeightBytes);
      ptx::wgmma_start(sum);
#pragma unroll
      for (int d = 0; d < kTensorDepth / 16; ++d)
        ptx::wgmma<ptx::Major::k>(sum, ptx::advance(w, d * 32), ptx::advance(x, d * 32), k > 0 || d > 0);
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      if (before >= 0) release(empty + before);
      before = turn.stage;
    }
    ptx::wgmma_wait<0>(sum);
    release(empty + before);

#pragma unroll
    for (int pass = 0; pass < kRows; pass += T::kSumRows) {
      ptx::barrier_sync(1 + group, kGroup);  // the sums before are written
#pragma unroll
      for (int i = 0; i < T::kSumRows / 2; ++i)
        out[(i / 4 * 8 + column + i % 2) * T::kPitch + row + i / 2 % 2 * 8] = sum[pass / 2 + i];
      ptx::barrier_sync(1 + group, kGroup);
      write_sums<kWeights, kGroup>(p, tile, out, T::kPitch, pass, T::kSumRows, tile.first_j + group * kWeights, thread);
    }
    if constexpr (kRows == kFewRows && std::is_same_v<Products, RowProducts>)
      if (end.kind != EndKind::none)
        end_rows<kGroup>(end, tile.weight.number, tile.first_j, kWeights, shared + T::kEndAt);
  }
}

template <class Products, int kGroups, int kWeights, int kRows>
__global__ void __launch_bounds__(WgmmaTile<kGroups, kWeights, kRows>::kThreads, 1)
    row_wgmma_kernel(const __grid_constant__ RowMaps maps, const __grid_constant__ Products products, int64_t across,
                     int64_t tiles, const __grid_constant__ RowEnd end) {
#if QENG_SM90
  using T = WgmmaTile<kGroups, kWeights, kRows>;
  char* const shared = shared_memory();
  ptx::begin_ahead();
  if (blockIdx.x == 0) check_rows(products);
  if (threadIdx.x == 0) {
    uint64_t* const full = reinterpret_cast<uint64_t*>(shared + T::kBarriersAt);
    init_ring(full, full + T::kStages, T::kStages, kGroups * kGroup / kWarp);
    ptx::fence_mbarrier_init();
  }
  if constexpr (kWeights < kHigh) {  // rows that products read and nobody wants
    constexpr int kLeft = (kHigh - kWeights) * kRowBytes / 16;
    for (int i = static_cast<int>(threadIdx.x); i < T::kStages * kLeft; i += T::kThreads)
      *reinterpret_cast<uint4*>(shared + i / kLeft * T::kStage + kWeights * kRowBytes + i % kLeft * 16) =
          make_uint4(0, 0, 0, 0);
    ptx::fence_proxy_async();
  }
  __syncthreads();
  if (threadIdx.x < kGroups * kGroup) {
    if constexpr (T::kMany) ptx::registers_take<232>();
    multiply<kGroups, kWeights, kRows>(products, end, across, tiles);
  } else {
    if constexpr (T::kMany) ptx::registers_give<40>();
    if (threadIdx.x == kGroups * kGroup) fetch<kGroups, kWeights, kRows>(maps, products, across, tiles);
  }
#else
  __trap();
#endif
}

View matrix(const void* data, int64_t rows, int64_t k) {
  View view(nullptr, DType::bf16, {rows, 1, k});
  view.data = const_cast<void*>(data);
  return view;
}

template <int kGroups, int kWeights, int kRows, class Products>
void queue(const char* name, const Products& products, const RowEnd& end, int64_t experts, CudaContext& context) {
  using T = WgmmaTile<kGroups, kWeights, kRows>;
  using Tiles = RowTiles<kGroups * kWeights, kRows>;
  const RowProducts& p = products_of(products);
  RowMaps maps{};
  for (int i = 0; i < p.count; ++i)
    maps.weight[i] = panel_map(matrix(p.weight[i].w, experts * p.weight[i].n, p.k), kWeights);
  maps.x = panel_map(matrix(p.x, p.rows, p.k), kRows);
  const int64_t tiles = Tiles::count(name, products), grid = std::min<int64_t>(tiles, context.multiprocessors);
  QENG_LAUNCH_AHEAD(context, (row_wgmma_kernel<Products, kGroups, kWeights, kRows>), dim3(static_cast<unsigned>(grid)),
                    dim3(T::kThreads), T::kShared, maps, products, Tiles::across(products), tiles, end);
}

// Few rows are a matter of memory: half as many weights to a tile where else multiprocessors would be left over.
template <int kRows, class Products>
void few_rows(const char* name, const Products& products, const RowEnd& end, int64_t experts, CudaContext& context) {
  if (RowTiles<64, kRows>::count(name, products) < context.multiprocessors)
    queue<1, 32, kRows>(name, products, end, experts, context);
  else
    queue<1, 64, kRows>(name, products, end, experts, context);
}

}  // namespace

bool suits_row_wgmma(const RowProducts& p, const CudaContext& context) {
  bool suits = kHopperCompiled && context.capability == 90;
  for (int i = 0; i < p.count; ++i) suits = suits && fits_tensor_map(matrix(p.weight[i].w, p.weight[i].n, p.k));
  return suits;
}

// Many rows: tiles of 256, which read a weight half as often, unless more than an eighth of them would be empty.
void row_wgmma(const char* name, const RowProducts& p, const RowEnd& end, CudaContext& context) {
  const auto padded = [&](int64_t rows) { return ceil_div(p.rows, rows) * rows; };
  if (p.rows <= kFewRows)
    few_rows<kFewRows>(name, p, end, 1, context);
  else if (p.rows <= 64)
    few_rows<64>(name, p, end, 1, context);
  else if (8 * padded(256) <= 9 * padded(128))
    queue<2, 64, 256>(name, p, end, 1, context);
  else
    queue<2, 64, 128>(name, p, end, 1, context);
}
void row_wgmma(const char* name, const GroupedProducts& g, CudaContext& context) {
  const int64_t rows = rows_of_expert(g.experts);
  if (rows <= kFewRows)
    few_rows<kFewRows>(name, g, RowEnd(), g.experts.count, context);
  else if (rows <= 64)
    few_rows<64>(name, g, RowEnd(), g.experts.count, context);
  else
    queue<2, 64, 128>(name, g, RowEnd(), g.experts.count, context);
}

}  // namespace qeng
