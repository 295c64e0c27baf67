// MatmulSum of bf16 on Hopper, by wgmma and TMA: a tile of c keeps its sums in registers through all products, one chain of
// depth, and is written once. The last warpgroup of a block fetches stages of both sides into a ring of shared memory, a
// tile after another and without waiting for its end; each of the two before it multiplies 64 rows.
#include <algorithm>

#include "kernels/cuda/linear/matmul_sum.h"
#include "kernels/cuda/ptx/ring.h"

namespace qeng {

namespace {

constexpr int kGroup = 128, kGroups = 2, kHigh = 64;  // threads of a warpgroup, how many multiply, and rows of each
constexpr int kRows = kGroups * kHigh, kThreads = (kGroups + 1) * kGroup;
constexpr int kDepth = 64, kRowBytes = kDepth * 2;  // of a stage
constexpr int kMostShared = 227 * 1024;
constexpr int kOutRows = 16;    // of c that a warp turns around in shared memory,
constexpr int kOutBytes = 128;  // as many bytes of each at a time
constexpr int kMostProducts = 8;

template <int kColumns>
struct SumTile {
  static constexpr int kSideA = kRows * kRowBytes, kStage = kSideA + kColumns * kRowBytes;
  static constexpr int kOut = kGroups * kGroup / kWarp * kOutRows * kOutBytes;
  static constexpr int kStages = std::min(8, (kMostShared - kOut - 256) / kStage);
  static constexpr int kOutAt = kStages * kStage, kBarriersAt = kOutAt + kOut;
  static constexpr size_t kShared = kBarriersAt + 16 * kStages;
  static_assert(kStages >= 4 && kStage % 1024 == 0 && kShared <= kMostShared);
};

struct Products {
  TensorMap a[kMostProducts], b[kMostProducts];
  int k[kMostProducts];
  int count;
  int64_t m, n;
  const void* bias;  // or null
  void* c;
  bool bias_f32;
};

struct Place {
  int64_t row, column;
};
// Eight tiles side by side meet all rows before the next eight do: with sixteen below each other they are a wave.
template <int kColumns>
__device__ Place place_of(const Products& p, int64_t number) {
  constexpr int kBand = 8;
  const int64_t down = (p.m + kRows - 1) / kRows, across = (p.n + kColumns - 1) / kColumns;
  const int64_t band = number / (kBand * down), left = across - band * kBand, width = left < kBand ? left : kBand;
  const int64_t within = number - band * kBand * down;
  return {within / width * kRows, (band * kBand + within % width) * kColumns};
}

template <int kColumns, bool kDown>
__device__ __forceinline__ void fetch(const Products& p, int64_t tiles) {
  using T = SumTile<kColumns>;
  char* const shared = shared_memory();
  uint64_t *const full = reinterpret_cast<uint64_t*>(shared + T::kBarriersAt), *const empty = full + T::kStages;
  Ring<T::kStages> turn;
  for (int64_t number = blockIdx.x; number < tiles; number += gridDim.x) {
    const Place tile = place_of<kColumns>(p, number);
    const int row = static_cast<int>(tile.row), column = static_cast<int>(tile.column);
    for (int i = 0; i < p.count; ++i)
      for (int k = 0; k < p.k[i]; k += kDepth, turn.next()) {
        char* const to = shared + turn.stage * T::kStage;
        uint64_t* const barrier = full + turn.stage;
        ptx::mbarrier_wait(empty + turn.stage, turn.parity ^ 1);
        ptx::mbarrier_arrive_expect(barrier, T::kStage);
        ptx::tma_load(to, p.a + i, k, 0, row, barrier);
        if constexpr (kDown) {
          for (int panel = 0; panel < kColumns / kDepth; ++panel)
            ptx::tma_load(to + T::kSideA + panel * (kDepth * kRowBytes), p.b + i, column + panel * kDepth, 0, k,
                          barrier);
        } else {
          ptx::tma_load(to + T::kSideA, p.b + i, k, 0, column, barrier);
        }
      }
  }
}

// Rows of the warp's and 128 bytes of columns at a time, through its part of shared memory: 16 bytes to a lane.
template <int kColumns, class Out>
__device__ __forceinline__ void write_tile(const Products& p, Place tile, const float (&sum)[kColumns / 2], char* out) {
  constexpr int kSize = static_cast<int>(sizeof(Out)), kAtOnce = kOutBytes / kSize, kVector = 16 / kSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t row0 = tile.row + warp * kOutRows;
#pragma unroll
  for (int pass = 0; pass < kColumns / kAtOnce; ++pass) {
#pragma unroll
    for (int n = 0; n < kAtOnce / 8; ++n) {
      const float* own = sum + (pass * (kAtOnce / 8) + n) * 4;
      const int within = n * 8 + lane % 4 * 2;
      const int64_t column = tile.column + pass * kAtOnce + within;
      float add[2] = {};
      if (p.bias && column < p.n)
        add[0] = read_float(p.bias, p.bias_f32, column), add[1] = read_float(p.bias, p.bias_f32, column + 1);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = lane / 4 + 8 * half, chunk = within / kVector ^ row % 8;
        char* to = out + row * kOutBytes + chunk * 16 + within % kVector * kSize;
        const float left = own[2 * half] + add[0], right = own[2 * half + 1] + add[1];
        if constexpr (kSize == 2)
          *reinterpret_cast<uint32_t*>(to) = ptx::pack_bf16(left, right);
        else
          *reinterpret_cast<float2*>(to) = make_float2(left, right);
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = lane; i < kOutRows * 8; i += kWarp) {
      const int row = i / 8, chunk = i % 8;
      const int64_t column = tile.column + pass * kAtOnce + chunk * kVector;
      if (row0 + row < p.m && column < p.n)
        *reinterpret_cast<uint4*>(static_cast<Out*>(p.c) + (row0 + row) * p.n + column) =
            *reinterpret_cast<const uint4*>(out + row * kOutBytes + (chunk ^ row % 8) * 16);
    }
    __syncwarp();
  }
}

// Adds so many slices of 16 of the depth, as one batch.
template <ptx::Major kMajor, int kCount, uint32_t kSlice, int kSums>
__device__ __forceinline__ void slices(float (&sum)[kSums], uint64_t a, uint64_t b, bool accumulate) {
  ptx::wgmma_start(sum);
#pragma unroll
  for (int d = 0; d < kCount; ++d)
    ptx::wgmma<kMajor>(sum, ptx::advance(a, d * 32), ptx::advance(b, d * kSlice), accumulate || d > 0);
  ptx::wgmma_commit();
}

template <int kColumns, bool kDown, class Out>
__device__ __forceinline__ void multiply(const Products& p, int64_t tiles) {
  using T = SumTile<kColumns>;
  constexpr ptx::Major kMajor = kDown ? ptx::Major::mn : ptx::Major::k;
  constexpr uint32_t kSlice = kDown ? 16 * kRowBytes : 32;  // bytes from 16 of the depth to the next, in b
  char* const shared = shared_memory();
  uint64_t *const full = reinterpret_cast<uint64_t*>(shared + T::kBarriersAt), *const empty = full + T::kStages;
  const int group = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kGroup, 0);
  char* const out = shared + T::kOutAt + static_cast<int>(threadIdx.x) / kWarp * (kOutRows * kOutBytes);
  Ring<T::kStages> turn;
  for (int64_t number = blockIdx.x; number < tiles; number += gridDim.x) {
    float sum[kColumns / 2];
    int before = -1;  // the stage whose products may be under way
    for (int i = 0; i < p.count; ++i)
      for (int k = 0; k < p.k[i]; k += kDepth, turn.next()) {
        const char* stage = shared + turn.stage * T::kStage;
        const uint64_t a = ptx::tile_descriptor(stage + group * (kHigh * kRowBytes)),
                       b = ptx::tile_descriptor(stage + T::kSideA, kDown ? kDepth * kRowBytes : 16);
        ptx::mbarrier_wait(full + turn.stage, turn.parity);
        if (k + kDepth / 2 < p.k[i])
          slices<kMajor, kDepth / 16, kSlice>(sum, a, b, before >= 0);
        else  // of an adapter
          slices<kMajor, kDepth / 32, kSlice>(sum, a, b, before >= 0);
        ptx::wgmma_wait<1>();
        if (before >= 0) release(empty + before);
        before = turn.stage;
      }
    ptx::wgmma_wait<0>(sum);
    release(empty + before);
    write_tile<kColumns, Out>(p, place_of<kColumns>(p, number), sum, out);
  }
}

template <int kColumns, bool kDown, class Out>
__global__ void __launch_bounds__(kThreads, 1) matmul_sum(const __grid_constant__ Products p, int64_t tiles) {
#if QENG_SM90
  using T = SumTile<kColumns>;
  if (threadIdx.x == 0) {
    uint64_t* const full = reinterpret_cast<uint64_t*>(shared_memory() + T::kBarriersAt);
    init_ring(full, full + T::kStages, T::kStages, kGroups * kGroup / kWarp);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x < kGroups * kGroup) {
    ptx::registers_take<232>();
    multiply<kColumns, kDown, Out>(p, tiles);
  } else {
    ptx::registers_give<40>();
    if (threadIdx.x == kGroups * kGroup) fetch<kColumns, kDown>(p, tiles);
  }
#else
  __trap();
#endif
}

View matrix(const View& view) { return View(view.data, view.dtype, {view.rows(), 1, view.columns()}); }

template <int kColumns, bool kDown, class Out>
void queue(const MatmulSum& op, CudaContext& context) {
  Products p{};
  p.count = static_cast<int>(op.a.size()), p.m = op.c.rows(), p.n = op.c.columns();
  p.bias = op.bias.data, p.bias_f32 = op.bias.dtype == DType::f32, p.c = op.c.data;
  for (int i = 0; i < p.count; ++i) {
    const View &a = op.a[static_cast<size_t>(i)], &b = op.b[static_cast<size_t>(i)];
    p.a[i] = panel_map(matrix(a), kRows), p.b[i] = panel_map(matrix(b), kDown ? kDepth : kColumns);
    p.k[i] = static_cast<int>(a.columns());
  }
  const int64_t tiles = ceil_div(p.m, kRows) * ceil_div(p.n, kColumns);
  QENG_LAUNCH(context, (matmul_sum<kColumns, kDown, Out>),
              dim3(static_cast<unsigned>(std::min<int64_t>(tiles, context.multiprocessors))), dim3(kThreads),
              SumTile<kColumns>::kShared, p, tiles);
}

template <int kColumns>
void queue(const MatmulSum& op, CudaContext& context) {
  for_float(op.c, [&](auto* type) {
    using Out = std::remove_pointer_t<decltype(type)>;
    op.trans_b ? queue<kColumns, false, Out>(op, context) : queue<kColumns, true, Out>(op, context);
  });
}

}  // namespace

bool suits_matmul_sum(const MatmulSum& op, const CudaContext& context) {
  const auto fits = [](const View& view) { return view.dtype == DType::bf16 && fits_tensor_map(matrix(view)); };
  bool suits = kHopperCompiled && context.capability == 90 && !op.acc && op.a.size() <= kMostProducts &&
               op.c.columns() % 8 == 0 && aligned(op.c.data, 16);
  for (size_t i = 0; i < op.a.size(); ++i) suits = suits && fits(op.a[i]) && fits(op.b[i]);
  return suits;
}

// Narrow tiles read each side more often; they are for a c that has few tiles to each multiprocessor.
void matmul_sum_sm90(const MatmulSum& op, CudaContext& context) {
  const auto time = [&](int64_t columns, double each) {
    const int64_t tiles = ceil_div(op.c.rows(), kRows) * ceil_div(op.c.columns(), columns);
    return static_cast<double>(ceil_div(tiles, context.multiprocessors)) * each;
  };
  time(128, 0.55) < time(256, 1) ? queue<128>(op, context) : queue<256>(op, context);
}

}  // namespace qeng
