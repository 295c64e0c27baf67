// RowLinear, and GroupedMatmul apart, by bf16 weights and mma.m16n8k16, for all GPUs: each thread block makes a tile of y,
// whose stages arrive in a ring of shared memory while others are multiplied. RowLinear by f16 weights as well, whose
// products with bf16 are exact in TF32, at half the rate.
#include <algorithm>

#include "kernels/cuda/linear/row_end.h"
#include "kernels/cuda/linear/row_tensor.h"
#include "kernels/cuda/linear/tile_copy.h"

namespace qeng {

namespace {

constexpr int kFewRows = 16;
// Blocks of a multiprocessor, by their warps: 85, 128 and 255 registers a thread. Unasked, ptxas makes fewer, and spills.
template <int kWarps>
constexpr int kBlocksAtOnce = kWarps == 2   ? 12
                              : kWarps == 4 ? 4
                                            : 1;

// kWeights rows of a weight by kRows rows of x. Warps: kDown by kAcross of them.
template <int kWeights, int kRows, int kDown, int kAcross, int kStages>
struct MmaTile {
  static constexpr int kThreads = kDown * kAcross * kWarp;
  static constexpr int kHigh = kWeights / kDown / 16, kWide = kRows / kAcross / 16;  // of a warp, in tiles of 16
  using Weights = SharedTile<kTensorDepth, kWeights>;
  using Rows = SharedTile<kTensorDepth, kRows>;
  static constexpr int kStage = Weights::kBytes + Rows::kBytes;
  static constexpr int kPitch = sum_pitch(kWeights);
  static constexpr int kRing = std::max(kStages * kStage, kRows* kPitch * 4);
  static constexpr size_t kShared = kRing + kEndBytes;
  static_assert(kWeights % (16 * kDown) == 0 && kRows % (16 * kAcross) == 0);
  static_assert(kShared <= 99 * 1024, "the least of the GPUs that have mma");

  // Starts copying k .. k + 64 of rows first .. of a matrix that has `rows`; zeros where there are none.
  template <class Tile, int kCount>
  __device__ static void fetch(char* tile, const bf16* from, int64_t first, int64_t rows, int64_t k, int64_t depth) {
    using Copy = TileCopy<kThreads, kTensorDepth / 8>;
    const int64_t column = k + Copy::chunk() * 8;
    Copy::template start<Tile, kCount>(tile, from + (first + Copy::row()) * depth + column, depth, rows - first,
                                       column < depth);
  }
};

// Adds products of 16 kHigh rows of a weight and 16 kWide of x, 16 k of each. w, x: give tile i's matrices to ldmatrix.
template <class W, int kHigh, int kWide, class OfW, class OfX>
__device__ __forceinline__ void add_products(float (&sums)[kHigh][2 * kWide][4], OfW w, OfX x) {
  constexpr bool kHalf = std::is_same_v<W, f16>;
  uint32_t left[kHigh][4];
  float half_left[kHalf ? kHigh : 1][2][4];  // of the first and of the last 8 k: the even ones of those, and the odd
#pragma unroll
  for (int i = 0; i < kHigh; ++i) {
    ptx::ldmatrix_x4(left[i], w(i));
    if constexpr (kHalf)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        ptx::unpack_f16(left[i][e], half_left[i][e / 2][e % 2], half_left[i][e / 2][e % 2 + 2]);
  }
#pragma unroll
  for (int n = 0; n < kWide; ++n) {
    uint32_t right[4];
    ptx::ldmatrix_x4(right, x(n));
#pragma unroll
    for (int i = 0; i < kHigh; ++i)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if constexpr (kHalf) {
#pragma unroll
          for (int k = 0; k < 2; ++k)
            ptx::mma_tf32(sums[i][2 * n + e], half_left[i][k], __uint_as_float(right[e + 2 * k] << 16),
                          __uint_as_float(right[e + 2 * k] & 0xffff0000u));
        } else {
          ptx::mma_bf16(sums[i][2 * n + e], left[i], right[e], right[e + 2]);
        }
  }
}

template <class W, class Products, int kWeights, int kRows, int kDown, int kAcross, int kStages>
__global__ void __launch_bounds__(kDown* kAcross* kWarp, kBlocksAtOnce<kDown * kAcross>)
    row_mma_kernel(const __grid_constant__ Products products, int64_t across, const __grid_constant__ RowEnd end) {
  using T = MmaTile<kWeights, kRows, kDown, kAcross, kStages>;
  const RowProducts& p = products_of(products);
  if (blockIdx.x == 0) check_rows(products);
  const RowTile tile = RowTiles<kWeights, kRows>::tile(products, across, blockIdx.x);
  if (tile.rows == 0) return;
  if (tile.unclaimed) return clear_tile<kWeights, T::kThreads>(p, tile, static_cast<int>(threadIdx.x));
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int down = warp / kAcross * T::kHigh * 16, over = warp % kAcross * T::kWide * 16;
  const int lane_w = lane_offset<typename T::Weights>(), lane_x = lane_offset<typename T::Rows>();
  char* const shared = shared_memory();

  const auto fetch = [&](int64_t k, int stage) {
    char* to = shared + stage * T::kStage;
    if (k < p.k) {
      T::template fetch<typename T::Weights, kWeights>(to, static_cast<const bf16*>(tile.weight.w), tile.first_j,
                                                       tile.weight.n, k, p.k);
      T::template fetch<typename T::Rows, kRows>(to + T::Weights::kBytes, static_cast<const bf16*>(p.x), tile.first_row,
                                                 tile.first_row + tile.rows, k, p.k);
    }
    ptx::cp_async_commit();
  };
  for (int stage = 0; stage < kStages - 1; ++stage) fetch(stage * kTensorDepth, stage);
  float sums[T::kHigh][2 * T::kWide][4] = {};
  int stage = 0;
  for (int64_t k = 0; k < p.k; k += kTensorDepth, stage = stage + 1 == kStages ? 0 : stage + 1) {
    ptx::cp_async_wait<kStages - 2>();
    __syncthreads();  // this stage is there, and nobody needs the one before
    fetch(k + (kStages - 1) * kTensorDepth, stage == 0 ? kStages - 1 : stage - 1);
    const char *w = shared + stage * T::kStage, *x = w + T::Weights::kBytes;
#pragma unroll
    for (int d = 0; d < kTensorDepth / 16; ++d)
      add_products<W, T::kHigh, T::kWide>(
          sums, [&](int i) { return w + T::Weights::moved(lane_w, down + 16 * i, 2 * d); },
          [&](int n) { return x + T::Rows::moved(lane_x, over + 16 * n, 2 * d); });
  }
  ptx::cp_async_wait<0>();
  __syncthreads();  // the ring has been read by all, and nothing arrives any more
  float* const to = reinterpret_cast<float*>(shared);
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < T::kHigh; ++i)
#pragma unroll
    for (int n = 0; n < 2 * T::kWide; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        to[(over + 8 * n + 2 * t + e % 2) * T::kPitch + down + 16 * i + g + e / 2 * 8] = sums[i][n][e];
  __syncthreads();
  write_sums<kWeights, T::kThreads>(p, tile, to, T::kPitch, 0, kRows, tile.first_j, static_cast<int>(threadIdx.x));
  if constexpr (kRows == kFewRows && std::is_same_v<Products, RowProducts>)
    if (end.kind != EndKind::none)
      end_rows<T::kThreads>(end, tile.weight.number, tile.first_j, kWeights, shared + T::kRing);
}

template <class W, int kWeights, int kRows, int kDown, int kAcross, int kStages, class Products>
void queue(const char* name, const Products& products, const RowEnd& end, CudaContext& context) {
  using T = MmaTile<kWeights, kRows, kDown, kAcross, kStages>;
  using Tiles = RowTiles<kWeights, kRows>;
  QENG_LAUNCH(context, (row_mma_kernel<W, Products, kWeights, kRows, kDown, kAcross, kStages>),
              dim3(static_cast<unsigned>(Tiles::count(name, products))), dim3(T::kThreads), T::kShared, products,
              Tiles::across(products), end);
}

// Few rows: small blocks, of which several share a multiprocessor, so that the memory is kept busy; 5 stages of 6 KB.
// Many: 16 products of a warp for 6 reads of shared memory, and three stages, the most that 99 KB hold.
template <class W, class Products>
void by_rows(const char* name, const Products& products, const RowEnd& end, int64_t rows, CudaContext& context) {
  if (rows <= kFewRows)
    queue<W, 32, kFewRows, 2, 1, 5>(name, products, end, context);
  else if (rows <= 64)
    queue<W, 64, 64, 4, 1, 4>(name, products, end, context);
  else
    queue<W, 128, 128, 4, 2, 3>(name, products, end, context);
}

}  // namespace

void row_mma(const char* name, const RowProducts& p, DType dtype, const RowEnd& end, CudaContext& context) {
  if (dtype == DType::f16)
    by_rows<f16>(name, p, end, p.rows, context);
  else
    by_rows<bf16>(name, p, end, p.rows, context);
}
void row_mma(const char* name, const GroupedProducts& g, CudaContext& context) {
  by_rows<bf16>(name, g, RowEnd(), rows_of_expert(g.experts), context);
}

}  // namespace qeng
