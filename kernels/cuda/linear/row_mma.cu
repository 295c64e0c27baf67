// RowLinear, and GroupedMatmul apart, by bf16 weights and mma.m16n8k16, for all GPUs: each thread block makes a tile of
// y, whose stages arrive in a ring of shared memory while others are multiplied. By f16 weights and more than few rows
// of x as well, in TF32 (row_halves.h): at half the rate of an x in bf16, at a quarter of one in f32.
#include <algorithm>

#include "kernels/cuda/linear/row_end.h"
#include "kernels/cuda/linear/row_halves.h"
#include "kernels/cuda/linear/tile_copy.h"

namespace qeng {

namespace {

// Blocks of a multiprocessor, by their warps: 85, 128 (of f16 168) and 255 registers a thread. Unasked, ptxas makes
// fewer, and spills.
template <class W, int kWarps>
constexpr int kBlocksAtOnce = kWarps == 2   ? 12
                              : kWarps == 4 ? (std::is_same_v<W, f16> ? 3 : 4)
                                            : 1;

// kWeights rows of a weight by kRows rows of x. Warps: kDown by kAcross of them. A stage is 128 bytes of each row of
// the weight, and as many elements of x: of f32, two panels of 128 bytes.
template <class X, int kWeights, int kRows, int kDown, int kAcross, int kStages>
struct MmaTile {
  static constexpr int kThreads = kDown * kAcross * kWarp, kAlong = kAcross;
  static constexpr int kHigh = kWeights / kDown / 16, kWide = kRows / kAcross / 16;  // of a warp, in tiles of 16
  static constexpr int kPanel = 128;
  using Weights = SharedTile<kTensorDepth, kWeights>;
  using Rows = SharedTile<kTensorDepth* int{sizeof(X)} / 2, kRows>;
  static constexpr int kStage = Weights::kBytes + Rows::kBytes;
  static constexpr int kPitch = sum_pitch(kWeights);
  static constexpr int kRing = std::max(kStages * kStage, kRows* kPitch * 4);
  static constexpr size_t kShared = kRing + kEndBytes;
  static_assert(kWeights % (16 * kDown) == 0 && kRows % (16 * kAcross) == 0);
  static_assert(kShared <= 99 * 1024, "the least of the GPUs that have mma");

  // What a thread copies to a Tile of kCount rows of a matrix of `depth` columns: of those from `first` on, which are
  // `rows`, zeros where there are none.
  template <class Tile, int kCount, class T>
  struct Copies {
    using Copy = TileCopy<kThreads, kPanel / 16>;
    const T* from;
    int rows;
    __device__ Copies(const void* matrix, int64_t first, int64_t end, int64_t depth)
        : from(static_cast<const T*>(matrix) + (first + Copy::row()) * depth + Copy::chunk() * (16 / sizeof(T))),
          rows(static_cast<int>(end - first < kCount ? end - first : kCount)) {}
    // Starts with columns k .. k + 64.
    __device__ void start(char* tile, int64_t k, int64_t depth) const {
#pragma unroll
      for (int panel = 0; panel < Tile::kBytes / (kCount * kPanel); ++panel) {
        const int column = (panel * kPanel + Copy::chunk() * 16) / int{sizeof(T)};
        Copy::template start<Tile, kCount>(tile + panel * Tile::kGroupStride,
                                           from + k + panel * kPanel / int{sizeof(T)}, depth, rows, k + column < depth);
      }
    }
  };
};

// Of a thread: the first rows of its warp, of the weight and of x, and its place in fragments.
template <class T>
struct Place {
  int down, over, g, t;
  __device__ explicit Place(int thread)
      : down(thread / kWarp / T::kAlong * T::kHigh * 16),
        over(thread / kWarp % T::kAlong * T::kWide * 16),
        g(thread % kWarp / 4),
        t(thread % 4) {}
};

// Adds products of 16 kHigh rows of a weight and 16 kWide of x, 16 k of each. Sums 2 n and 2 n + 1 are of tile n of x.
// w(i): gives tile i's matrices to ldmatrix; x(n, e, half): those of tile n, or of f32 the lane's two elements of its
// even rows or the odd ones (e), and of the first 8 k or the last.
template <class W, class X, int kHigh, int kWide, class OfW, class OfX>
__device__ __forceinline__ void add_products(float (&sums)[kHigh][2 * kWide][4], OfW w, OfX x) {
  constexpr bool kHalves = std::is_same_v<W, f16>;
  uint32_t left[kHigh][4];
  float halves[kHigh][2][4];
#pragma unroll
  for (int i = 0; i < kHigh; ++i)
    if constexpr (kHalves)
      load_halves(halves[i], w(i));
    else
      ptx::ldmatrix_x4(left[i], w(i));
#pragma unroll
  for (int n = 0; n < kWide; ++n) {
    uint32_t pairs[4];
    if constexpr (kPieces<X> == 1) ptx::ldmatrix_x4(pairs, x(n, 0, 0));
#pragma unroll
    for (int e = 0; e < 2; ++e)
      if constexpr (kHalves) {
        Right<X> right;
#pragma unroll
        for (int half = 0; half < 2; ++half)
          if constexpr (kPieces<X> == 1)
            right.take(half, {pairs[e + 2 * half]});
          else
            right.take(half, load<2>(reinterpret_cast<const X*>(x(n, e, half))));
        add_halves(halves, right, [&](int i) -> float(&)[4] { return sums[i][2 * n + e]; });
      } else {
#pragma unroll
        for (int i = 0; i < kHigh; ++i) ptx::mma_bf16(sums[i][2 * n + e], left[i], pairs[e], pairs[e + 2]);
      }
  }
}

template <class W, class X, class Products, int kWeights, int kRows, int kDown, int kAcross, int kStages>
__global__ void __launch_bounds__(kDown* kAcross* kWarp, kBlocksAtOnce<W, kDown * kAcross>)
    row_mma_kernel(const __grid_constant__ Products products, int64_t across, const __grid_constant__ RowEnd end) {
  if (!ptx::from_sm80()) return;
  using T = MmaTile<X, kWeights, kRows, kDown, kAcross, kStages>;
  constexpr bool kSplit = kPieces < X >> 1;
  const RowProducts& p = products_of(products);
  if (blockIdx.x == 0) check_rows(products);
  const RowTile tile = RowTiles<kWeights, kRows>::tile(products, across, blockIdx.x);
  if (tile.rows == 0) return;
  if (tile.unclaimed) return clear_tile<kWeights, T::kThreads>(p, tile, static_cast<int>(threadIdx.x));
  int lane_w, lane_x;  // where the warp's tiles lie for the lane
  {
    const Place<T> at(static_cast<int>(threadIdx.x));
    lane_w = T::Weights::moved(lane_offset<typename T::Weights>(), at.down, 0);
    // Of f32 a load takes 8 bytes of four rows at once: of every other row, or two of them would lie in the same banks.
    lane_x = T::Rows::moved(
        kSplit ? T::Rows::offset(2 * at.g, at.t / 2) + at.t % 2 * 8 : lane_offset<typename T::Rows>(), at.over, 0);
  }
  char* const shared = shared_memory();

  const typename T::template Copies<typename T::Weights, kWeights, W> of_w(tile.weight.w, tile.first_j, tile.weight.n,
                                                                           p.k);
  const typename T::template Copies<typename T::Rows, kRows, X> of_x(p.x, tile.first_row, tile.first_row + tile.rows,
                                                                     p.k);
  const auto fetch = [&](int64_t k, int stage) {
    char* to = shared + stage * T::kStage;
    if (k < p.k) of_w.start(to, k, p.k), of_x.start(to + T::Weights::kBytes, k, p.k);
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
    const auto add_stage = [&](float(&to)[T::kHigh][2 * T::kWide][4]) {
#pragma unroll(kSplit ? 2 : 4)
      for (int d = 0; d < kTensorDepth / 16; ++d)
        add_products<W, X, T::kHigh, T::kWide>(
            to, [&](int i) { return w + T::Weights::moved(lane_w, 16 * i, 2 * d); },
            [&](int n, int e, int half) {
              return x + T::Rows::moved(lane_x, 16 * n + e, (kSplit ? 4 * d + 2 * half : 2 * d) ^ e);
            });
    };
    if constexpr (std::is_same_v<W, f16>) {
      float part[T::kHigh][2 * T::kWide][4] = {};
      add_stage(part);
#pragma unroll
      for (int i = 0; i < T::kHigh; ++i)
#pragma unroll
        for (int n = 0; n < 2 * T::kWide; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) sums[i][n][e] = __fadd_rn(sums[i][n][e], part[i][n][e]);
    } else {
      add_stage(sums);
    }
  }
  ptx::cp_async_wait<0>();
  __syncthreads();  // the ring has been read by all, and nothing arrives any more
  float* const to = reinterpret_cast<float*>(shared);
  // From here on what the loop does not keep in registers is found again.
  const Place<T> at(ptx::thread_anew());
#pragma unroll
  for (int i = 0; i < T::kHigh; ++i)
#pragma unroll
    for (int n = 0; n < 2 * T::kWide; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int column = 2 * at.t + e % 2, row = kSplit ? n / 2 * 16 + 2 * column + n % 2 : 8 * n + column;
        to[(at.over + row) * T::kPitch + at.down + 16 * i + at.g + e / 2 * 8] = sums[i][n][e];
      }
  __syncthreads();
  const RowTile made = RowTiles<kWeights, kRows>::tile(products, across, ptx::opaque(blockIdx.x));
  write_sums<kWeights, T::kThreads>(p, made, to, T::kPitch, 0, kRows, made.first_j, static_cast<int>(threadIdx.x));
  if constexpr (kRows == kFewRows && std::is_same_v<Products, RowProducts>)
    if (end.kind != EndKind::none)
      end_rows<T::kThreads>(end, made.weight.number, made.first_j, kWeights, shared + T::kRing);
}

template <class W, class X, int kWeights, int kRows, int kDown, int kAcross, int kStages, class Products>
void queue(const char* name, const Products& products, const RowEnd& end, CudaContext& context) {
  using T = MmaTile<X, kWeights, kRows, kDown, kAcross, kStages>;
  using Tiles = RowTiles<kWeights, kRows>;
  QENG_LAUNCH(context, (row_mma_kernel<W, X, Products, kWeights, kRows, kDown, kAcross, kStages>),
              dim3(static_cast<unsigned>(Tiles::count(name, products))), dim3(T::kThreads), T::kShared, products,
              Tiles::across(products), end);
}

// Few rows: small blocks, of which several share a multiprocessor, so that the memory is kept busy; 5 stages of 6 KB.
// Many: 16 products of a warp for 6 reads of shared memory, and three stages, the most that 99 KB hold.
template <class Products>
void by_rows(const char* name, const Products& products, const RowEnd& end, int64_t rows, CudaContext& context) {
  if (rows <= kFewRows)
    queue<bf16, bf16, 32, kFewRows, 2, 1, 5>(name, products, end, context);
  else if (rows <= 64)
    queue<bf16, bf16, 64, 64, 4, 1, 4>(name, products, end, context);
  else
    queue<bf16, bf16, 128, 128, 4, 2, 3>(name, products, end, context);
}
// f16 weights. By an x in f32 a warp has more rows of the weight and fewer of x, which are more work to take apart; and
// fewer stages fit.
template <class X, class Products>
void halves_by_rows(const char* name, const Products& products, int64_t rows, CudaContext& context) {
  constexpr bool kWhole = std::is_same_v<X, bf16>;
  if (rows <= 64)
    queue<f16, X, 64, 64, kWhole ? 4 : 2, kWhole ? 1 : 2, kWhole ? 4 : 3>(name, products, RowEnd(), context);
  else
    queue<f16, X, 128, 128, kWhole ? 4 : 2, kWhole ? 2 : 4, kWhole ? 3 : 2>(name, products, RowEnd(), context);
}
template <class Products>
void halves_by_rows(const char* name, const Products& products, int64_t rows, CudaContext& context) {
  if (products_of(products).x_f32)
    halves_by_rows<float>(name, products, rows, context);
  else
    halves_by_rows<bf16>(name, products, rows, context);
}

}  // namespace

void row_mma(const char* name, const RowProducts& p, DType dtype, const RowEnd& end, CudaContext& context) {
  if (dtype == DType::bf16) return by_rows(name, p, end, p.rows, context);
  if (p.rows <= kFewRows) return row_few(name, p, context);
  halves_by_rows(name, p, p.rows, context);
}
void row_mma(const char* name, const GroupedProducts& g, DType dtype, CudaContext& context) {
  const int64_t rows = rows_of_expert(g.experts);
  if (dtype == DType::bf16) return by_rows(name, g, RowEnd(), rows, context);
  if (rows <= kFewRows) return row_few(name, g, context);
  halves_by_rows(name, g, rows, context);
}

}  // namespace qeng
