// Root-mean-square norm of rows, with or without the residual's addition before it, and its gradient.
//
// A row made of 16-byte vectors belongs to a team of threads of a block of kThreads: 8, 16 or 32 lanes of a warp up to
// 4 KB, the whole block up to 16 KB. Its elements stay in registers between the sum over the row and the result, so
// each is read once. Other rows (odd widths, odd addresses, longer) are read twice, element by element, by a warp.
//
// dw: a block of rows sums its rows in registers, the teams' sums are added in order, then the blocks'. How many rows
// make a block follows from the shape alone, so dw has the same bits on every device.
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/vector.h"

namespace qeng {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

// The sum over a row's team, the same in each of its threads. Teams of a warp and less: all lanes of the warp come
// here. A team of the whole block needs exchange: [kWarps] in shared memory, untouched since the barrier before the
// last one.
template <int kLanes>
__device__ float team_sum(float x, float* exchange) {
  for (int offset = (kLanes < kWarp ? kLanes : kWarp) / 2; offset > 0; offset /= 2)
    x += __shfl_xor_sync(kAllLanes, x, offset);
  if constexpr (kLanes > kWarp) {
    static_assert(kLanes == kThreads);
    if (threadIdx.x % kWarp == 0) exchange[threadIdx.x / kWarp] = x;
    __syncthreads();
    x = 0;
    for (int warp = 0; warp < kWarps; ++warp) x += exchange[warp];
  }
  return x;
}

// ---------------------------------------------------------------- forward

// kSum: of the rows sum = x + addend, which are written too; otherwise addend and sum are null.
template <class T, int kLanes, int kVectors, bool kSum>
__global__ void __launch_bounds__(kThreads)
    rmsnorm_rows(const T* __restrict__ x, const T* __restrict__ addend, const T* __restrict__ w, T* sum, T* y,
                 float* rstd, int64_t rows, int dim, float eps, float shift) {
  constexpr int kWidth = kVector<T>, kTeams = kThreads / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int64_t row = int64_t{blockIdx.x} * kTeams + threadIdx.x / kLanes;
  const int width = row < rows ? dim : 0;
  const auto column = [=](int v) { return (lane + v * kLanes) * kWidth; };

  Pack<T, kWidth> packs[kVectors] = {};
  for (int v = 0; v < kVectors; ++v)
    if (column(v) < width) packs[v] = load<kWidth>(x + row * dim + column(v));
  if constexpr (kSum) {
    Pack<T, kWidth> others[kVectors] = {};
    for (int v = 0; v < kVectors; ++v)
      if (column(v) < width) others[v] = load<kWidth>(addend + row * dim + column(v));
    for (int v = 0; v < kVectors; ++v) {
      if (column(v) >= width) continue;
      float a[kWidth], b[kWidth];
      unpack(packs[v], a);
      unpack(others[v], b);
      for (int i = 0; i < kWidth; ++i) a[i] += b[i];
      packs[v] = pack<T>(a);
      store(sum + row * dim + column(v), packs[v]);
    }
  }
  float squares = 0;
  for (int v = 0; v < kVectors; ++v) {
    float values[kWidth];
    unpack(packs[v], values);
    for (int i = 0; i < kWidth; ++i) squares = fmaf(values[i], values[i], squares);
  }
  const float factor =
      1.0f /
      sqrtf(team_sum<kLanes>(squares, reinterpret_cast<float*>(shared_memory())) / static_cast<float>(dim) + eps);
  if (lane == 0 && row < rows) rstd[row] = factor;
  for (int v = 0; v < kVectors; ++v) {
    if (column(v) >= width) continue;
    float values[kWidth], weights[kWidth];
    unpack(packs[v], values);
    unpack(load<kWidth>(w + column(v)), weights);
    for (int i = 0; i < kWidth; ++i) values[i] = values[i] * factor * (weights[i] + shift);
    store(y + row * dim + column(v), pack<T>(values));
  }
}

template <class T>
__global__ void __launch_bounds__(kWarp) rmsnorm_any(const T* x, const T* addend, const T* __restrict__ w, T* sum, T* y,
                                                     float* rstd, int64_t dim, float eps, float shift) {
  const int64_t row = blockIdx.x, start = row * dim;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < dim; i += kWarp) {
    if (sum) put(sum + start + i, to_f32(x[start + i]) + to_f32(addend[start + i]));
    const float value = to_f32(sum ? sum[start + i] : x[start + i]);
    squares = fmaf(value, value, squares);
  }
  const float factor = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(dim) + eps);
  if (threadIdx.x == 0) rstd[row] = factor;
  for (int64_t i = threadIdx.x; i < dim; i += kWarp)
    put(y + start + i, to_f32(sum ? sum[start + i] : x[start + i]) * factor * (to_f32(w[i]) + shift));
}

// ---------------------------------------------------------------- gradient

// Rows first .. end of a block, kTeams at a time. dresidual: null, or added to dx, which it may be itself.
// partial: [blocks, dim], the block's share of dw.
template <class T, int kLanes, int kVectors, bool kWeights>
__global__ void __launch_bounds__(kThreads)
    rmsnorm_grad_rows(const T* __restrict__ x, const T* __restrict__ w, const float* __restrict__ rstd,
                      const T* __restrict__ dy, const T* dresidual, T* dx, float* partial, int64_t rows,
                      int64_t rows_a_block, int dim, float shift) {
  constexpr int kWidth = kVector<T>, kTeams = kThreads / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes, team = static_cast<int>(threadIdx.x) / kLanes;
  const int64_t first = int64_t{blockIdx.x} * rows_a_block, last = first + rows_a_block,
                end = last < rows ? last : rows;
  float *exchange = reinterpret_cast<float*>(shared_memory()), *sums = exchange + 2 * kWarps;
  const auto column = [=](int v) { return (lane + v * kLanes) * kWidth; };

  float dw[kWeights ? kVectors : 1][kWidth] = {};
  int turn = 0;  // exchange has two halves: one is read while the other is written for the next rows
  for (int64_t base = first; base < end; base += kTeams, turn ^= 1) {
    const int64_t row = base + team, start = row * dim;
    const int width = row < end ? dim : 0;
    Pack<T, kWidth> in[kVectors] = {}, grad[kVectors] = {}, residual[kVectors] = {};
    for (int v = 0; v < kVectors; ++v)
      if (column(v) < width)
        in[v] = load<kWidth>(x + start + column(v)), grad[v] = load<kWidth>(dy + start + column(v));
    const float factor = row < end ? rstd[row] : 0;
    float dot = 0;
    for (int v = 0; v < kVectors; ++v) {
      if (column(v) >= width) continue;
      float values[kWidth], d[kWidth], weights[kWidth];
      unpack(in[v], values);
      unpack(grad[v], d);
      unpack(load<kWidth>(w + column(v)), weights);
      for (int i = 0; i < kWidth; ++i) {
        const float xhat = values[i] * factor;
        dot = fmaf(d[i] * (weights[i] + shift), xhat, dot);
        if constexpr (kWeights) dw[v][i] = fmaf(d[i], xhat, dw[v][i]);
      }
    }
    if (dresidual)
      for (int v = 0; v < kVectors; ++v)
        if (column(v) < width) residual[v] = load<kWidth>(dresidual + start + column(v));
    const float mean = team_sum<kLanes>(dot, exchange + turn * kWarps) / static_cast<float>(dim);
    for (int v = 0; v < kVectors; ++v) {
      if (column(v) >= width) continue;
      float values[kWidth], d[kWidth], weights[kWidth], addend[kWidth];
      unpack(in[v], values);
      unpack(grad[v], d);
      unpack(residual[v], addend);
      unpack(load<kWidth>(w + column(v)), weights);
      for (int i = 0; i < kWidth; ++i)
        values[i] = addend[i] + factor * (d[i] * (weights[i] + shift) - values[i] * factor * mean);
      store(dx + start + column(v), pack<T>(values));
    }
  }

  if constexpr (kWeights) {
    float* total = partial + int64_t{blockIdx.x} * dim;
    float* mine = kTeams > 1 ? sums + team * dim : total;
    for (int v = 0; v < kVectors; ++v)
      for (int i = 0; i < kWidth && column(v) < dim; ++i) mine[column(v) + i] = dw[v][i];
    if constexpr (kTeams > 1) {
      __syncthreads();
      for (int j = static_cast<int>(threadIdx.x); j < dim; j += kThreads) {
        float sum = 0;
        for (int t = 0; t < kTeams; ++t) sum += sums[t * dim + j];
        total[j] = sum;
      }
    }
  }
}

// One warp a block; partial: null, or as above.
template <class T>
__global__ void __launch_bounds__(kWarp)
    rmsnorm_grad_any(const T* __restrict__ x, const T* __restrict__ w, const float* __restrict__ rstd,
                     const T* __restrict__ dy, const T* dresidual, T* dx, float* partial, int64_t rows,
                     int64_t rows_a_block, int64_t dim, float shift) {
  const int64_t first = int64_t{blockIdx.x} * rows_a_block, last = first + rows_a_block,
                end = last < rows ? last : rows;
  float* total = partial ? partial + int64_t{blockIdx.x} * dim : nullptr;
  for (int64_t row = first; row < end; ++row) {
    const int64_t start = row * dim;
    const float factor = rstd[row];
    float dot = 0;
    for (int64_t i = threadIdx.x; i < dim; i += kWarp) {
      const float d = to_f32(dy[start + i]), xhat = to_f32(x[start + i]) * factor;
      dot = fmaf(d * (to_f32(w[i]) + shift), xhat, dot);
      if (total) total[i] = fmaf(d, xhat, row == first ? 0.0f : total[i]);
    }
    const float mean = warp_sum(dot) / static_cast<float>(dim);
    for (int64_t i = threadIdx.x; i < dim; i += kWarp) {
      const float g = to_f32(dy[start + i]) * (to_f32(w[i]) + shift), xhat = to_f32(x[start + i]) * factor;
      put(dx + start + i, (dresidual ? to_f32(dresidual[start + i]) : 0.0f) + factor * (g - xhat * mean));
    }
  }
}

// ---------------------------------------------------------------- launchers

template <int kLanes_, int kVectors_>
struct Team {
  static constexpr int kLanes = kLanes_, kVectors = kVectors_, kTeams = kThreads / kLanes;
};

// Calls f(Team) with the team for rows of `vectors` 16-byte vectors; false where a row is too long for any.
template <class F>
bool with_team(int64_t vectors, F f) {
  if (vectors <= 8)
    f(Team<8, 1>());
  else if (vectors <= 16)
    f(Team<16, 1>());
  else if (vectors <= 128)
    f(Team<32, 4>());
  else if (vectors <= 256)
    f(Team<32, 8>());
  else if (vectors <= 512)
    f(Team<kThreads, 2>());
  else if (vectors <= 1024)
    f(Team<kThreads, 4>());
  else
    return false;
  return true;
}

dim3 blocks_of(int64_t rows, int64_t rows_a_block) { return dim3(static_cast<unsigned>(ceil_div(rows, rows_a_block))); }

// Rows whose share of dw a block of `teams` sums up: four turns and more, so that writing the share costs little, and
// at most kMostBlocks, so that the shares stay in the L2 cache.
int64_t rows_for_weights(int64_t rows, int teams) {
  constexpr int64_t kMostBlocks = 1024;
  return std::max<int64_t>({4 * teams, 16, ceil_div(ceil_div(rows, kMostBlocks), teams) * teams});
}

template <bool kSum>
void normalize(CudaContext& context, const View& x, const View& addend, const View& w, const View& sum, const View& y,
               const View& rstd, float eps, bool plus_one) {
  for_float(x, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const int64_t dim = x.columns(), rows = x.rows();
    const float shift = plus_one ? 1.0f : 0.0f;
    const bool vectors = dim % kVector<T> == 0 && aligned_for(kVector<T>, x, addend, w, sum, y);
    if (vectors && with_team(dim / kVector<T>, [&](auto team) {
          using Its = decltype(team);
          QENG_LAUNCH(context, (rmsnorm_rows<T, Its::kLanes, Its::kVectors, kSum>), blocks_of(rows, Its::kTeams),
                      dim3(kThreads), sizeof(float) * kWarps, x.as<T>(), addend.as<T>(), w.as<T>(), sum.as<T>(),
                      y.as<T>(), rstd.as<float>(), rows, static_cast<int>(dim), eps, shift);
        }))
      return;
    QENG_LAUNCH(context, rmsnorm_any<T>, blocks_of(rows, 1), dim3(kWarp), 0, x.as<T>(), addend.as<T>(), w.as<T>(),
                sum.as<T>(), y.as<T>(), rstd.as<float>(), dim, eps, shift);
  });
}

}  // namespace

void run(const RmsNorm& op, CudaContext& context) {
  normalize<false>(context, op.x, {}, op.w, {}, op.y, op.rstd, op.eps, op.plus_one);
}

void run(const AddRmsNorm& op, CudaContext& context) {
  normalize<true>(context, op.a, op.b, op.w, op.sum, op.y, op.rstd, op.eps, op.plus_one);
}

void run(const RmsNormGrad& op, CudaContext& context) {
  const int64_t dim = op.x.columns(), rows = op.x.rows();
  for_float(op.x, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T *x = op.x.as<T>(), *w = op.w.as<T>(), *dy = op.dy.as<T>();
    const T* dresidual = op.dresidual.as<T>();
    const float shift = op.plus_one ? 1.0f : 0.0f;
    float* partial = nullptr;
    int64_t rows_a_block = 0;
    const auto split = [&](int teams) {  // the grid; takes the memory for partial
      rows_a_block = op.dw ? rows_for_weights(rows, teams) : teams;
      const dim3 grid = blocks_of(rows, rows_a_block);
      if (op.dw) partial = context.scratch.take<float>(int64_t{grid.x} * dim);
      return grid;
    };
    const bool vectors = dim % kVector<T> == 0 && aligned_for(kVector<T>, op.x, op.w, op.dy, op.dresidual, op.dx);
    if (!vectors || !with_team(dim / kVector<T>, [&](auto team) {
          using Its = decltype(team);
          const dim3 grid = split(Its::kTeams);
          const size_t sums = op.dw && Its::kTeams > 1 ? static_cast<size_t>(Its::kTeams * dim) : 0;
          QENG_LAUNCH(context,
                      (op.dw ? rmsnorm_grad_rows<T, Its::kLanes, Its::kVectors, true>
                             : rmsnorm_grad_rows<T, Its::kLanes, Its::kVectors, false>),
                      grid, dim3(kThreads), sizeof(float) * (2 * kWarps + sums), x, w, op.rstd.as<float>(), dy,
                      dresidual, op.dx.as<T>(), partial, rows, rows_a_block, static_cast<int>(dim), shift);
        })) {
      const dim3 grid = split(1);
      QENG_LAUNCH(context, rmsnorm_grad_any<T>, grid, dim3(kWarp), 0, x, w, op.rstd.as<float>(), dy, dresidual,
                  op.dx.as<T>(), partial, rows, rows_a_block, dim, shift);
    }
    if (op.dw)
      launch_add_partial_sums(context, op.name, partial, ceil_div(rows, rows_a_block), dim, op.dw.as<float>(),
                              op.acc_dw);
  });
}

}  // namespace qeng
