// The products of low-rank adapters, LoraDown, LoraDownGrad and LoraUpGrad, by mma.m16n8k16: the ranks are so few that the
// time is that of reading x or dy, which is read once. Where operands are f32, not aligned or of high rank, or tensor cores
// have no bf16, these are products one after another.
#include <algorithm>

#include "kernels/cuda/linear/gemm.h"
#include "kernels/cuda/linear/tile_copy.h"
#include "kernels/cuda/vector.h"

namespace qeng {

namespace {

constexpr int kThreads = 4 * kWarp, kTile = 64, kChunks = kTile / 8;  // chunks: of 16 bytes, in the row of a tile
constexpr int kMostAdapters = 4, kMostTogether = 128, kMostRank = 64;
constexpr int64_t kParts = 132;  // blocks that sums are divided among, where shapes allow: not what a device has

// Matrices that count as one: rows or columns first .. first + rank of it are this one's.
struct Adapter {
  const bf16* in;
  void* out;
  int first, rank;
  float alpha;
};
struct Adapters {
  Adapter each[kMostAdapters];
  int count;
  __device__ const Adapter* of(int index) const {
    for (int i = 0; i < count; ++i)
      if (index < each[i].first + each[i].rank) return each + i;
    return nullptr;
  }
};

// A tile of 64 rows of at least 32 columns: narrower ones are filled up, and the rest is not read.
template <int kWidth>
using Narrow = SharedTile<std::max(32, kWidth), kTile>;

template <int kAcross>
using Copy = TileCopy<kThreads, kAcross>;

// sums[16 rows of the first side][kWidth columns] += 64 steps of depth. lane_a, lane_b: lane_offset of the tiles; a:
// where in its tile the 16 rows begin; with kDown depth runs down the tile, else along its rows.
template <class A, bool kDownA, class B, bool kDownB, int kWidth>
__device__ inline void multiply(const char* tile_a, int lane_a, int row_a, const char* tile_b, int lane_b, int row_b,
                                float (&sums)[kWidth / 8][4]) {
#pragma unroll
  for (int d = 0; d < kTile / 16; ++d) {
    uint32_t left[4];
    if constexpr (kDownA) {
      ptx::ldmatrix_x4_trans(left, tile_a + A::moved(lane_a, 16 * d, row_a / 8));
      const uint32_t other = left[1];
      left[1] = left[2], left[2] = other;
    } else {
      ptx::ldmatrix_x4(left, tile_a + A::moved(lane_a, row_a, 2 * d));
    }
#pragma unroll
    for (int n = 0; n < kWidth / 16; ++n) {
      uint32_t r[4];
      if constexpr (kDownB)
        ptx::ldmatrix_x4_trans(r, tile_b + B::moved(lane_b, 16 * d, (row_b + 16 * n) / 8));
      else
        ptx::ldmatrix_x4(r, tile_b + B::moved(lane_b, row_b + 16 * n, 2 * d));
      ptx::mma_bf16(sums[2 * n], left, r[0], kDownB ? r[1] : r[2]);
      ptx::mma_bf16(sums[2 * n + 1], left, kDownB ? r[2] : r[1], r[3]);
    }
  }
}

// ---------------------------------------------------------------- u = alpha x a^T

struct Down {
  Adapters a;  // in: a, out: u
  const bf16* x;
  int64_t rows, k;
};

template <int kWidth>
struct DownTiles {
  using X = SharedTile<kTile, kTile>;
  using A = SharedTile<kTile, kWidth>;
  static constexpr int kStage = X::kBytes + A::kBytes, kStages = kWidth > 64 ? 4 : 6;
  static constexpr size_t kShared = kStages * kStage;
};

// A block makes 64 rows of all u.
template <int kWidth>
__global__ void __launch_bounds__(kThreads, 2) lora_down(const __grid_constant__ Down p) {
  if (!ptx::from_sm80()) return;
  using T = DownTiles<kWidth>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, row0 = static_cast<int>(threadIdx.x) / kWarp * 16;
  const int64_t first = int64_t{blockIdx.x} * kTile;
  using O = Copy<kChunks>;
  const bf16* const x_from = p.x + (first + O::row()) * p.k + O::chunk() * 8;
  const bf16* a_from[kWidth / O::kAtOnce];  // rows of several matrices, or none
#pragma unroll
  for (int i = 0; i < kWidth / O::kAtOnce; ++i) {
    const int row = O::row() + i * O::kAtOnce;
    const Adapter* of = p.a.of(row);
    a_from[i] = of ? of->in + (row - of->first) * p.k + O::chunk() * 8 : nullptr;
  }
  const auto start = [&](int64_t k, int stage) {
    char* const to = shared_memory() + stage * T::kStage;
    if (k < p.k) {
      const bool real = k + O::chunk() * 8 < p.k;
      Copy<kChunks>::start<typename T::X, kTile>(to, x_from + k, p.k, p.rows - first, real);
      char* const a_to = to + T::X::kBytes + T::A::offset(O::row(), O::chunk());
#pragma unroll
      for (int i = 0; i < kWidth / O::kAtOnce; ++i) {
        const bool copied = real && a_from[i];
        ptx::cp_async_16(a_to + i * O::kAtOnce * T::A::kRowBytes, copied ? a_from[i] + k : p.x, copied ? 16 : 0);
      }
    }
    ptx::cp_async_commit();
  };
  for (int stage = 0; stage < T::kStages - 1; ++stage) start(stage * kTile, stage);
  const int lane_x = lane_offset<typename T::X>(), lane_a = lane_offset<typename T::A>();
  float sums[kWidth / 8][4] = {};
  int stage = 0;
  for (int64_t k = 0; k < p.k; k += kTile, stage = stage + 1 == T::kStages ? 0 : stage + 1) {
    ptx::cp_async_wait<T::kStages - 2>();
    __syncthreads();  // this stage is there, and nobody needs the one before
    start(k + (T::kStages - 1) * kTile, stage == 0 ? T::kStages - 1 : stage - 1);
    const char* x = shared_memory() + stage * T::kStage;
    multiply<typename T::X, false, typename T::A, false, kWidth>(x, lane_x, row0, x + T::X::kBytes, lane_a, 0, sums);
  }
#pragma unroll
  for (int n = 0; n < kWidth / 8; ++n) {
    const Adapter* of = p.a.of(8 * n);
    if (!of) break;
    for (int half = 0; half < 2; ++half) {
      const int64_t row = first + row0 + lane / 4 + 8 * half;
      bf16* u = static_cast<bf16*>(of->out) + row * of->rank + 8 * n - of->first + lane % 4 * 2;
      if (row < p.rows)
        *reinterpret_cast<uint32_t*>(u) =
            ptx::pack_bf16(of->alpha * sums[n][2 * half], of->alpha * sums[n][2 * half + 1]);
    }
  }
}

// ---------------------------------------------------------------- da = du^T x

struct DownGrad {
  Adapters du;  // in: du, out: f32, a part [rank, k] for each range of rows
  const bf16* x;
  int64_t rows, k, rows_of_block;
};

constexpr int kWide = 128;  // columns of x that a block takes, a quarter for each warp
template <int kWidth>
struct DownGradTiles {
  using X = SharedTile<kWide, kTile>;
  using Du = Narrow<kWidth>;
  static constexpr int kStage = X::kBytes + Du::kBytes, kStages = kWidth > 64 ? 3 : 4;
  static constexpr size_t kShared = kStages * kStage;
};

template <int kWidth>
__global__ void __launch_bounds__(kThreads, 2) lora_down_grad(const __grid_constant__ DownGrad p) {
  if (!ptx::from_sm80()) return;
  using T = DownGradTiles<kWidth>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, own = static_cast<int>(threadIdx.x) / kWarp * 32;
  const int64_t column0 = int64_t{blockIdx.x} * kWide, begin = int64_t{blockIdx.y} * p.rows_of_block;
  const int64_t end = begin + p.rows_of_block < p.rows ? begin + p.rows_of_block : p.rows;
  using X = Copy<kWide / 8>;
  using Du = Copy<kWidth / 8>;
  const int64_t x_column = column0 + X::chunk() * 8;
  const Adapter* const of = p.du.of(Du::chunk() * 8);
  const int rank = of ? of->rank : 0;
  const bf16* const x_from = p.x + X::row() * p.k + (x_column < p.k ? x_column : 0);
  const bf16* const du_from = of ? of->in + Du::row() * rank + Du::chunk() * 8 - of->first : p.x;
  const auto start = [&](int64_t row0, int stage) {
    char* const to = shared_memory() + stage * T::kStage;
    if (row0 < end) {
      X::start<typename T::X, kTile>(to, x_from + row0 * p.k, p.k, end - row0, x_column < p.k);
      Du::template start<typename T::Du, kTile>(to + T::X::kBytes, du_from + row0 * rank, rank, end - row0,
                                                of != nullptr);
    }
    ptx::cp_async_commit();
  };
  for (int stage = 0; stage < T::kStages - 1; ++stage) start(begin + stage * kTile, stage);
  const int lane_x = lane_offset<typename T::X>(), lane_du = lane_offset<typename T::Du>();
  float sums[kWidth / 16][4][4] = {};
  int stage = 0;
  for (int64_t row0 = begin; row0 < end; row0 += kTile, stage = stage + 1 == T::kStages ? 0 : stage + 1) {
    ptx::cp_async_wait<T::kStages - 2>();
    __syncthreads();  // this stage is there, and nobody needs the one before
    start(row0 + (T::kStages - 1) * kTile, stage == 0 ? T::kStages - 1 : stage - 1);
    const char* x = shared_memory() + stage * T::kStage;
#pragma unroll
    for (int i = 0; i < kWidth / 16; ++i)
      multiply<typename T::Du, true, typename T::X, true, 32>(x + T::X::kBytes, lane_du, 16 * i, x, lane_x, own,
                                                              sums[i]);
  }
#pragma unroll
  for (int i = 0; i < kWidth / 16; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = 16 * i + 8 * half;
      const Adapter* made = p.du.of(row);
      if (!made) continue;
      float* to = static_cast<float*>(made->out) + (blockIdx.y * made->rank + row + lane / 4 - made->first) * p.k;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int64_t column = column0 + own + 8 * n + lane % 4 * 2;
        if (column < p.k)
          *reinterpret_cast<float2*>(to + column) = make_float2(sums[i][n][2 * half], sums[i][n][2 * half + 1]);
      }
    }
}

// ---------------------------------------------------------------- du = dy b, db = dy^T u

struct UpGrad {
  const bf16 *dy, *b, *u;
  float *du, *db;  // parts: [ranges of n][rows, rank], [ranges of rows][n, rank]; db: or null
  int64_t rows, n, columns_of_block;
  int rank;
};

// Of kTall tiles of rows, so that db is summed over these and du over tiles of columns, both in registers.
template <int kWidth>
struct UpGradTiles {
  static constexpr int kTall = 128 / kWidth, kStages = 6;
  static constexpr int kSlots = (kStages - 1 + kTall - 1) / kTall + 1;  // of b: as many as stages may look ahead
  using Dy = SharedTile<kTile, kTile>;
  using Side = Narrow<kWidth>;  // of b, of u
  static constexpr int kUAt = kStages * Dy::kBytes, kBAt = kUAt + kTall * Side::kBytes;
  static constexpr size_t kShared = kBAt + kSlots * Side::kBytes;
  static_assert(kShared <= 99 * 1024);
};

template <int kWidth>
__global__ void __launch_bounds__(kThreads, 2) lora_up_grad(const __grid_constant__ UpGrad p) {
  if (!ptx::from_sm80()) return;
  using T = UpGradTiles<kWidth>;
  using Side = typename T::Side;
  char* const shared = shared_memory();
  const int lane = static_cast<int>(threadIdx.x) % kWarp, own = static_cast<int>(threadIdx.x) / kWarp * 16;
  const int64_t row0 = int64_t{blockIdx.y} * T::kTall * kTile, begin = int64_t{blockIdx.x} * p.columns_of_block;
  const int64_t end = begin + p.columns_of_block < p.n ? begin + p.columns_of_block : p.n;
  const int steps = static_cast<int>((end - begin + kTile - 1) / kTile) * T::kTall;

  using Dy = Copy<kChunks>;
  using Rank = Copy<kWidth / 8>;
  const bf16* const dy_from = p.dy + (row0 + Dy::row()) * p.n + begin + Dy::chunk() * 8;
  const auto narrow = [&](char* to, const bf16* from, int64_t first, int64_t last) {
    Rank::template start<Side, kTile>(to, from + (first + Rank::row()) * p.rank + Rank::chunk() * 8, p.rank,
                                      last - first, Rank::chunk() * 8 < p.rank);
  };
  const auto start = [&](int step) {
    if (step < steps) {
      const int across = step / T::kTall, down = step % T::kTall;
      const int64_t column = across * kTile, first = down * kTile;
      Dy::start<typename T::Dy, kTile>(shared + step % T::kStages * T::Dy::kBytes, dy_from + first * p.n + column, p.n,
                                       p.rows - row0 - first, begin + column + Dy::chunk() * 8 < end);
      if (down == 0) narrow(shared + T::kBAt + across % T::kSlots * Side::kBytes, p.b, begin + column, end);
    }
    ptx::cp_async_commit();
  };
#pragma unroll 1
  for (int down = 0; down < T::kTall; ++down)
    narrow(shared + T::kUAt + down * Side::kBytes, p.u, row0 + down * kTile, p.rows);
#pragma unroll 1
  for (int step = 0; step < T::kStages - 1; ++step) start(step);

  const int lane_dy = lane_offset<typename T::Dy>(), lane_side = lane_offset<Side>();
  float du[T::kTall][kWidth / 8][4] = {};
  for (int step = 0; step < steps; step += T::kTall) {
    float db[kWidth / 8][4] = {};
    const char* b = shared + T::kBAt + step / T::kTall % T::kSlots * Side::kBytes;
#pragma unroll
    for (int down = 0; down < T::kTall; ++down) {
      ptx::cp_async_wait<T::kStages - 2>();
      __syncthreads();  // this stage is there, and nobody needs the one before
      start(step + down + T::kStages - 1);
      const char* dy = shared + (step + down) % T::kStages * T::Dy::kBytes;
      multiply<typename T::Dy, false, Side, true, kWidth>(dy, lane_dy, own, b, lane_side, 0, du[down]);
      multiply<typename T::Dy, true, Side, true, kWidth>(dy, lane_dy, own, shared + T::kUAt + down * Side::kBytes,
                                                         lane_side, 0, db);
    }
    if (!p.db) continue;
#pragma unroll
    for (int i = 0; i < kWidth / 4; ++i) {
      const int half = i % 2, column = i / 2 * 8 + lane % 4 * 2;
      const int64_t j = begin + step / T::kTall * kTile + own + lane / 4 + 8 * half;
      if (j < end && column < p.rank)
        *reinterpret_cast<float2*>(p.db + (blockIdx.y * p.n + j) * p.rank + column) =
            make_float2(db[i / 2][2 * half], db[i / 2][2 * half + 1]);
    }
  }
#pragma unroll
  for (int down = 0; down < T::kTall; ++down)
#pragma unroll
    for (int i = 0; i < kWidth / 4; ++i) {
      const int half = i % 2, column = i / 2 * 8 + lane % 4 * 2;
      const int64_t row = row0 + down * kTile + own + lane / 4 + 8 * half;
      if (row < p.rows && column < p.rank)
        *reinterpret_cast<float2*>(p.du + (blockIdx.x * p.rows + row) * p.rank + column) =
            make_float2(du[down][i / 2][2 * half], du[down][i / 2][2 * half + 1]);
    }
}

// ---------------------------------------------------------------- sums of parts

constexpr int kSumThreads = 256;

// out (+)= alpha * sum over i of part[i], in order; four elements to a thread.   part: [parts, count]
template <class Out>
__global__ void __launch_bounds__(kSumThreads)
    add_lora_parts(const float* part, int64_t parts, int64_t count, Out* out, bool acc, float alpha) {
  const int64_t i = (int64_t{blockIdx.x} * kSumThreads + threadIdx.x) * 4;
  if (i >= count) return;
  float sum[4] = {}, value[4];
#pragma unroll 4
  for (int64_t p = 0; p < parts; ++p) {
    unpack(load<4>(part + p * count + i), value);
    for (int j = 0; j < 4; ++j) sum[j] += value[j];
  }
  if (acc) unpack(load<4>(out + i), value);
  for (int j = 0; j < 4; ++j) sum[j] = alpha * sum[j] + (acc ? value[j] : 0.0f);
  store(out + i, pack<Out>(sum));
}

template <class Out>
void add_parts(const float* part, int64_t parts, int64_t count, Out* out, bool acc, float alpha, CudaContext& context) {
  QENG_LAUNCH(context, add_lora_parts<Out>, dim3(static_cast<unsigned>(ceil_div(count, 4 * kSumThreads))),
              dim3(kSumThreads), 0, part, parts, count, out, acc, alpha);
}

// Calls f with the least width that holds `rank`, as a constant.
template <class F>
void for_width(int64_t rank, F f) {
  if (rank <= 16)
    f(std::integral_constant<int, 16>());
  else if (rank <= 32)
    f(std::integral_constant<int, 32>());
  else if (rank <= 64)
    f(std::integral_constant<int, 64>());
  else
    f(std::integral_constant<int, 128>());
}

bool whole_rows(const View& view) {
  return view.dtype == DType::bf16 && view.columns() % 8 == 0 && aligned(view.data, 16);
}

// The matrices as one; none where kernels of few ranks do not take them. ranks: which dimension the rank is.
Adapters together(const View& x, const std::vector<View>& in, int rank_at, const CudaContext& context) {
  Adapters all{};
  int64_t width = 0;
  bool fits = context.tensor_bf16() && whole_rows(x) && in.size() <= kMostAdapters;
  for (const View& each : in) {
    width += each.shape[rank_at];
    fits = fits && whole_rows(each) && each.shape[rank_at] % 8 == 0;
  }
  if (!fits || width > kMostTogether) return all;
  for (const View& each : in) {
    const int first = all.count ? all.each[all.count - 1].first + all.each[all.count - 1].rank : 0;
    all.each[all.count++] = {each.as<bf16>(), nullptr, first, static_cast<int>(each.shape[rank_at]), 1};
  }
  return all;
}
int width_of(const Adapters& all) { return all.each[all.count - 1].first + all.each[all.count - 1].rank; }

}  // namespace

void run(const LoraDown& op, CudaContext& context) {
  Down p{together(op.x, op.a, 0, context), op.x.as<bf16>(), op.x.rows(), op.x.columns()};
  if (p.a.count == 0) {
    for (size_t i = 0; i < op.a.size(); ++i)
      run(Matmul{.a = op.x, .b = op.a[i], .c = op.u[i], .trans_b = true, .alpha = op.alpha[i]}, context);
    return;
  }
  for (int i = 0; i < p.a.count; ++i)
    p.a.each[i].out = op.u[static_cast<size_t>(i)].data, p.a.each[i].alpha = op.alpha[static_cast<size_t>(i)];
  for_width(width_of(p.a), [&](auto width) {
    QENG_LAUNCH(context, lora_down<width>, dim3(static_cast<unsigned>(ceil_div(p.rows, kTile))), dim3(kThreads),
                DownTiles<width>::kShared, p);
  });
}

void run(const LoraDownGrad& op, CudaContext& context) {
  DownGrad p{together(op.x, op.du, 1, context), op.x.as<bf16>(), op.x.rows(), op.x.columns(), 0};
  bool fits = p.du.count > 0 && p.rows > 0;
  for (const View& da : op.da) fits = fits && da.dtype == DType::f32 && aligned(da.data, 16);
  if (!fits) {
    for (size_t i = 0; i < op.du.size(); ++i)
      run(Matmul{.a = op.du[i], .b = op.x, .c = op.da[i], .trans_a = true, .acc = op.acc}, context);
    return;
  }
  // Parts of some tiles of rows at least.
  const int64_t across = ceil_div(p.k, kWide), tiles = ceil_div(p.rows, kTile);
  const int64_t wanted = std::clamp<int64_t>(kParts / across, 1, ceil_div(tiles, 4));
  p.rows_of_block = ceil_div(tiles, wanted) * kTile;
  const int64_t parts = ceil_div(p.rows, p.rows_of_block);
  float* memory = context.scratch.take<float>(parts * width_of(p.du) * p.k);
  for (int i = 0; i < p.du.count; ++i) p.du.each[i].out = memory + parts * p.du.each[i].first * p.k;
  for_width(width_of(p.du), [&](auto width) {
    QENG_LAUNCH(context, lora_down_grad<width>, dim3(static_cast<unsigned>(across), static_cast<unsigned>(parts)),
                dim3(kThreads), DownGradTiles<width>::kShared, p);
  });
  for (int i = 0; i < p.du.count; ++i)
    add_parts(static_cast<const float*>(p.du.each[i].out), parts, p.du.each[i].rank * p.k,
              op.da[static_cast<size_t>(i)].as<float>(), op.acc, 1.0f, context);
}

void run(const LoraUpGrad& op, CudaContext& context) {
  const int64_t rows = op.dy.rows(), n = op.dy.columns(), rank = op.b.columns();
  const bool fits = context.tensor_bf16() && whole_rows(op.dy) && whole_rows(op.b) && whole_rows(op.u) &&
                    aligned(op.du.data, 16) && rank <= kMostRank && rows > 0 &&
                    (!op.db || (op.db.dtype == DType::f32 && aligned(op.db.data, 16)));
  if (!fits) {
    run(Matmul{.a = op.dy, .b = op.b, .c = op.du, .alpha = op.alpha}, context);
    if (op.db) run(Matmul{.a = op.dy, .b = op.u, .c = op.db, .trans_a = true, .acc = op.acc}, context);
    return;
  }
  for_width(rank, [&](auto width) {
    if constexpr (width <= kMostRank) {
      const int64_t down = ceil_div(rows, UpGradTiles<width>::kTall * kTile), tiles = ceil_div(n, kTile);
      const int64_t wanted = std::clamp<int64_t>(kParts / down, 1, tiles);
      const int64_t columns = ceil_div(tiles, wanted) * kTile, across = ceil_div(n, columns);
      float* du = context.scratch.take<float>(across * rows * rank);
      float* db = op.db ? context.scratch.take<float>(down * n * rank) : nullptr;
      const UpGrad p{op.dy.as<bf16>(), op.b.as<bf16>(),       op.u.as<bf16>(), du, db, rows, n,
                     columns,          static_cast<int>(rank)};
      QENG_LAUNCH(context, lora_up_grad<width>, dim3(static_cast<unsigned>(across), static_cast<unsigned>(down)),
                  dim3(kThreads), UpGradTiles<width>::kShared, p);
      add_parts(du, across, rows * rank, op.du.as<bf16>(), false, op.alpha, context);
      if (op.db) add_parts(db, down, n * rank, op.db.as<float>(), op.acc, 1.0f, context);
    }
  });
}

}  // namespace qeng
