// MatmulSum of bf16 on Hopper, by wgmma and TMA: a tile of c keeps its sums in registers through all products, one
// chain of depth, and is written once; tiles of several results follow each other as if they were one. The last
// warpgroup of a block fetches stages of both sides into a ring of shared memory, a tile after another and without
// waiting for its end; each of the two before it multiplies 64 rows.
#include <algorithm>

#include "kernels/cuda/linear/matmul_sum.h"
#include "kernels/cuda/ptx/ring.h"
#include "kernels/cuda/vector.h"

namespace qeng {

namespace {

constexpr int kGroup = 128, kGroups = 2, kHigh = 64;  // threads of a warpgroup, how many multiply, and rows of each
constexpr int kRows = kGroups * kHigh, kThreads = (kGroups + 1) * kGroup;
constexpr int kDepth = 64, kRowBytes = kDepth * 2;  // of a stage
constexpr int kPanel = kDepth * kRowBytes;
constexpr int kMostShared = 227 * 1024;
constexpr int kOutRows = 16;    // of c that a warp turns around in shared memory,
constexpr int kOutBytes = 128;  // as many bytes of each at a time
constexpr int kMostProducts = 8, kMostSums = 4;

// down_a, down_b: the depth runs down the rows of a, of b, as they are stored; otherwise along them. Down those of a it
// runs for results that have the same columns and rows of their own (tall); otherwise it is the other way.
template <int columns, bool down_a, bool down_b>
struct SumTile {
  static constexpr int kColumns = columns;
  static constexpr bool kDownA = down_a, kDownB = down_b, kTall = down_a;
  static constexpr int kSideA = kRows / kDepth * kPanel, kStage = kSideA + kColumns * kRowBytes;
  static constexpr int kOut = kGroups * kGroup / kWarp * kOutRows * kOutBytes;
  static constexpr int kStages = std::min(8, (kMostShared - kOut - 256) / kStage);
  static constexpr int kOutAt = kStages * kStage, kBarriersAt = kOutAt + kOut;
  static constexpr size_t kShared = kBarriersAt + 16 * kStages;
  static_assert(kStages >= 4 && kStage % 1024 == 0 && kShared <= kMostShared);
};

struct Sum {
  int first, end;       // of its products
  int64_t m, n, tiles;  // tiles: along the side that is its own
  const void* bias;     // or null
  void* c;
  bool bias_f32, acc;
};
struct Sums {
  TensorMap a[kMostProducts], b[kMostProducts];
  int k[kMostProducts];
  Sum sum[kMostSums];
  int count;
  int64_t own, shared;  // tiles along the side that each sum has of its own, of all, and along the other
};

struct Place {
  int sum;
  int64_t row, column;
};
// Eight tiles side by side meet all of the other side before the next eight do: with sixteen below each other they are
// a wave.
template <class T>
__device__ Place place_of(const Sums& p, int64_t number) {
  constexpr int kBand = 8;
  const int64_t band = number / (kBand * p.shared), left = p.own - band * kBand, width = left < kBand ? left : kBand;
  const int64_t within = number - band * kBand * p.shared, other = within / width;
  int64_t own = band * kBand + within % width;
  int i = 0;
  while (i + 1 < p.count && own >= p.sum[i].tiles) own -= p.sum[i++].tiles;
  if constexpr (T::kTall) return {i, own * kRows, other * T::kColumns};
  return {i, other * kRows, own * T::kColumns};
}

// A stage's part of one side: `count` rows or columns from `first` on, and the depth from k on.
template <bool kDown, int count>
__device__ __forceinline__ void fetch_side(char* to, const TensorMap* map, int first, int k, uint64_t* barrier) {
  if constexpr (kDown) {
    for (int panel = 0; panel < count / kDepth; ++panel)
      ptx::tma_load(to + panel * kPanel, map, first + panel * kDepth, 0, k, barrier);
  } else {
    ptx::tma_load(to, map, k, 0, first, barrier);
  }
}

template <class T>
__device__ __forceinline__ void fetch(const Sums& p, int64_t tiles) {
  char* const shared = shared_memory();
  uint64_t *const full = reinterpret_cast<uint64_t*>(shared + T::kBarriersAt), *const empty = full + T::kStages;
  Ring<T::kStages> turn;
  for (int64_t number = blockIdx.x; number < tiles; number += gridDim.x) {
    const Place tile = place_of<T>(p, number);
    const int row = static_cast<int>(tile.row), column = static_cast<int>(tile.column);
    for (int i = p.sum[tile.sum].first; i < p.sum[tile.sum].end; ++i)
      for (int k = 0; k < p.k[i]; k += kDepth, turn.next()) {
        char* const to = shared + turn.stage * T::kStage;
        uint64_t* const barrier = full + turn.stage;
        ptx::mbarrier_wait(empty + turn.stage, turn.parity ^ 1);
        ptx::mbarrier_arrive_expect(barrier, T::kStage);
        fetch_side<T::kDownA, kRows>(to, p.a + i, row, k, barrier);
        fetch_side<T::kDownB, T::kColumns>(to + T::kSideA, p.b + i, column, k, barrier);
      }
  }
}

// Rows of the warp's and 128 bytes of columns at a time, through its part of shared memory: 16 bytes to a lane. What a
// result in f32 is added to is asked for some passes ahead.
template <int kColumns, class Out>
__device__ __forceinline__ void write_tile(const Sum& p, Place tile, const float (&sum)[kColumns / 2], char* out) {
  constexpr int kSize = static_cast<int>(sizeof(Out)), kAtOnce = kOutBytes / kSize, kVector = 16 / kSize;
  constexpr int kPasses = kColumns / kAtOnce, kEach = kOutRows * 8 / kWarp, kAhead = 2;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t row0 = tile.row + warp * kOutRows;
  const auto place = [&](int pass, int i) -> Out* {  // of a vector of the lane's, or null
    const int64_t row = row0 + (i * kWarp + lane) / 8, column = tile.column + pass * kAtOnce + lane % 8 * kVector;
    return row < p.m && column < p.n ? static_cast<Out*>(p.c) + row * p.n + column : nullptr;
  };
  [[maybe_unused]] float old[kPasses][kEach][kVector];
  const auto ask = [&](int pass) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const Out* from = p.acc ? place(pass, i) : nullptr;
      unpack(from ? load<kVector>(from) : Pack<Out, kVector>{}, old[pass][i]);
    }
  };
  if constexpr (kSize == 4) {
#pragma unroll
    for (int pass = 0; pass < kAhead; ++pass) ask(pass);
  }
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
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
    if constexpr (kSize == 4)
      if (pass + kAhead < kPasses) ask(pass + kAhead);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int row = (i * kWarp + lane) / 8, chunk = lane % 8;
      auto values = load<kVector>(reinterpret_cast<const Out*>(out + row * kOutBytes + (chunk ^ row % 8) * 16));
      if constexpr (kSize == 4) {
        float value[kVector];
        unpack(values, value);
#pragma unroll
        for (int e = 0; e < kVector; ++e) value[e] += old[pass][i][e];
        values = pack<Out>(value);
      }
      if (Out* const to = place(pass, i)) store(to, values);
    }
    __syncwarp();
  }
}

// Adds so many slices of 16 of the depth, as one batch.
template <class T, int kCount>
__device__ __forceinline__ void slices(float (&sum)[T::kColumns / 2], uint64_t a, uint64_t b, bool accumulate) {
  constexpr auto kMajor = [](bool down) { return down ? ptx::Major::mn : ptx::Major::k; };
  constexpr auto kNext = [](bool down) { return down ? 16u * kRowBytes : 32u; };  // bytes from a slice to the next
  ptx::wgmma_start(sum);
#pragma unroll
  for (int d = 0; d < kCount; ++d)
    ptx::wgmma<kMajor(T::kDownB), kMajor(T::kDownA)>(sum, ptx::advance(a, d * kNext(T::kDownA)),
                                                     ptx::advance(b, d * kNext(T::kDownB)), accumulate || d > 0);
  ptx::wgmma_commit();
}

template <class T, class Out>
__device__ __forceinline__ void multiply(const Sums& p, int64_t tiles) {
  char* const shared = shared_memory();
  uint64_t *const full = reinterpret_cast<uint64_t*>(shared + T::kBarriersAt), *const empty = full + T::kStages;
  const int group = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kGroup, 0);
  char* const out = shared + T::kOutAt + static_cast<int>(threadIdx.x) / kWarp * (kOutRows * kOutBytes);
  Ring<T::kStages> turn;
  for (int64_t number = blockIdx.x; number < tiles; number += gridDim.x) {
    const Place tile = place_of<T>(p, number);
    const Sum& own = p.sum[tile.sum];
    float sum[T::kColumns / 2];
    int before = -1;  // the stage whose products may be under way
    for (int i = own.first; i < own.end; ++i)
      for (int k = 0; k < p.k[i]; k += kDepth, turn.next()) {
        const char* stage = shared + turn.stage * T::kStage;
        const uint64_t a = ptx::tile_descriptor(stage + group * kPanel),  // 64 rows, or 64 columns of 64 rows
            b = ptx::tile_descriptor(stage + T::kSideA, T::kDownB ? kPanel : 16);
        ptx::mbarrier_wait(full + turn.stage, turn.parity);
        if (k + kDepth / 2 < p.k[i])
          slices<T, kDepth / 16>(sum, a, b, before >= 0);
        else  // of an adapter
          slices<T, kDepth / 32>(sum, a, b, before >= 0);
        ptx::wgmma_wait<1>();
        if (before >= 0) release(empty + before);
        before = turn.stage;
      }
    ptx::wgmma_wait<0>(sum);
    release(empty + before);
    write_tile<T::kColumns, Out>(own, tile, sum, out);
  }
}

template <class T, class Out>
__global__ void __launch_bounds__(kThreads, 1) matmul_sum(const __grid_constant__ Sums p, int64_t tiles) {
#if QENG_SM90
  if (threadIdx.x == 0) {
    uint64_t* const full = reinterpret_cast<uint64_t*>(shared_memory() + T::kBarriersAt);
    init_ring(full, full + T::kStages, T::kStages, kGroups * kGroup / kWarp);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x < kGroups * kGroup) {
    ptx::registers_take<232>();
    multiply<T, Out>(p, tiles);
  } else {
    ptx::registers_give<40>();
    if (threadIdx.x == kGroups * kGroup) fetch<T>(p, tiles);
  }
#else
  __trap();
#endif
}

View matrix(const View& view) { return View(view.data, view.dtype, {view.rows(), 1, view.columns()}); }

template <class T, class Out>
void queue(const MatmulSum& op, CudaContext& context) {
  Sums p{};
  int products = 0;
  for (const MatmulSum::Sum& from : op.sums) {
    Sum& sum = p.sum[p.count++];
    sum.first = products, sum.m = from.c.rows(), sum.n = from.c.columns(), sum.c = from.c.data, sum.acc = from.acc;
    sum.bias = from.bias.data, sum.bias_f32 = from.bias.dtype == DType::f32;
    for (size_t i = 0; i < from.a.size(); ++i, ++products) {
      p.a[products] = panel_map(matrix(from.a[i]), T::kDownA ? kDepth : kRows);
      p.b[products] = panel_map(matrix(from.b[i]), T::kDownB ? kDepth : T::kColumns);
      p.k[products] = static_cast<int>(op.trans_a ? from.a[i].rows() : from.a[i].columns());
    }
    sum.end = products;
    const int64_t down = ceil_div(sum.m, kRows), across = ceil_div(sum.n, T::kColumns);
    sum.tiles = T::kTall ? down : across, p.shared = T::kTall ? across : down;
    p.own += sum.tiles;
  }
  const int64_t tiles = p.own * p.shared;
  QENG_LAUNCH(context, (matmul_sum<T, Out>),
              dim3(static_cast<unsigned>(std::min<int64_t>(tiles, context.multiprocessors))), dim3(kThreads),
              T::kShared, p, tiles);
}

template <int kColumns>
void queue(const MatmulSum& op, CudaContext& context) {
  for_float(op.sums[0].c, [&](auto* type) {
    using Out = std::remove_pointer_t<decltype(type)>;
    op.trans_a   ? queue<SumTile<kColumns, true, true>, Out>(op, context)
    : op.trans_b ? queue<SumTile<kColumns, false, false>, Out>(op, context)
                 : queue<SumTile<kColumns, false, true>, Out>(op, context);
  });
}

}  // namespace

bool suits_matmul_sum(const MatmulSum& op, const CudaContext& context) {
  const auto fits = [](const View& view) { return view.dtype == DType::bf16 && fits_tensor_map(matrix(view)); };
  const View& first = op.sums[0].c;
  bool suits =
      kHopperCompiled && context.capability == 90 && op.sums.size() <= kMostSums && !(op.trans_a && op.trans_b);
  size_t products = 0;
  for (const MatmulSum::Sum& sum : op.sums) {
    const View& c = sum.c;
    suits = suits && c.dtype == first.dtype && (op.trans_a ? c.columns() == first.columns() : c.rows() == first.rows());
    suits = suits && c.columns() % 8 == 0 && aligned(c.data, 16) && !(sum.acc && c.dtype == DType::bf16);
    for (size_t i = 0; i < sum.a.size(); ++i, ++products) suits = suits && fits(sum.a[i]) && fits(sum.b[i]);
  }
  return suits && products <= kMostProducts;
}

// Narrow tiles read each side more often; they are for results that have few tiles to each multiprocessor.
void matmul_sum_sm90(const MatmulSum& op, CudaContext& context) {
  const auto time = [&](int columns, double each) {
    int64_t tiles = 0;
    for (const MatmulSum::Sum& sum : op.sums)
      tiles += ceil_div(sum.c.rows(), kRows) * ceil_div(sum.c.columns(), columns);
    return static_cast<double>(ceil_div(tiles, context.multiprocessors)) * each;
  };
  time(128, 0.55) < time(256, 1) ? queue<128>(op, context) : queue<256>(op, context);
}

}  // namespace qeng
