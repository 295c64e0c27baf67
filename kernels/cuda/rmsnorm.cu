// Root-mean-square norm of rows, with or without the residual's addition before it, and its gradient. row_team.h says
// which threads take a row. Where groups of a token's columns have weights of their own, a column of the grid takes the
// rows of one group: row r of it is row r * groups + group of x.
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/norm_row.h"

namespace qeng {
namespace {

using namespace row_team;

// Row r of the grid's column as a row of x, and its weights' first element.
__device__ inline int64_t place_of(int64_t r) { return r * gridDim.y + blockIdx.y; }
template <class Int>
__device__ Int group_start(Int dim) {
  return static_cast<Int>(blockIdx.y) * dim;
}

// ---------------------------------------------------------------- forward

#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 800 || __CUDA_ARCH__ >= 1000)
constexpr int kBlocksAtOnce = 1;  // unasked, ptxas takes so few registers that it spills
#else
constexpr int kBlocksAtOnce = 0;  // as it likes
#endif

// kSum: of the rows sum = x + addend, which are written too; otherwise addend and sum are null.
template <class T, int kLanes, int kVectors, bool kSum>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    rmsnorm_rows(const T* __restrict__ x, const T* __restrict__ addend, const T* __restrict__ w, T* sum, T* y,
                 float* rstd, int64_t rows, int dim, float eps, float shift) {
  constexpr int kWidth = kVector<T>, kTeams = kThreads / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int64_t number = int64_t{blockIdx.x} * kTeams + threadIdx.x / kLanes, start = place_of(number) * dim;
  const NormRow<T> row{x + start,
                       kSum ? addend + start : nullptr,
                       w + group_start(dim),
                       kSum ? sum + start : nullptr,
                       y + start,
                       rstd + place_of(number),
                       dim,
                       eps,
                       shift};
  const int width = number < rows ? dim : 0;
  const auto column = [=](int v) { return (lane + v * kLanes) * kWidth; };

  Pack<T, kWidth> packs[kVectors] = {};
  for (int v = 0; v < kVectors; ++v)
    if (column(v) < width) packs[v] = load<kWidth>(row.x + column(v));
  if constexpr (kSum) {
    Pack<T, kWidth> others[kVectors] = {};
    for (int v = 0; v < kVectors; ++v)
      if (column(v) < width) others[v] = load<kWidth>(row.addend + column(v));
    for (int v = 0; v < kVectors; ++v)
      if (column(v) < width) store(row.sum + column(v), packs[v] = added(packs[v], others[v]));
  }
  float squares = 0;
  for (int v = 0; v < kVectors; ++v) squares = add_squares(packs[v], squares);
  const float factor = row.factor(team_sum<kLanes>(squares, reinterpret_cast<float*>(shared_memory())));
  if (lane == 0 && number < rows) *row.rstd = factor;
  for (int v = 0; v < kVectors; ++v)
    if (column(v) < width) store(row.y + column(v), row.scaled(packs[v], factor, column(v)));
}

template <class T>
__global__ void __launch_bounds__(kWarp) rmsnorm_any(const T* x, const T* addend, const T* __restrict__ w, T* sum, T* y,
                                                     float* rstd, int64_t dim, float eps, float shift) {
  const int64_t place = place_of(blockIdx.x), start = place * dim;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < dim; i += kWarp) {
    if (sum) put(sum + start + i, to_f32(x[start + i]) + to_f32(addend[start + i]));
    const float value = to_f32(sum ? sum[start + i] : x[start + i]);
    squares = fmaf(value, value, squares);
  }
  const float factor = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(dim) + eps);
  if (threadIdx.x == 0) rstd[place] = factor;
  for (int64_t i = threadIdx.x; i < dim; i += kWarp)
    put(y + start + i,
        to_f32(sum ? sum[start + i] : x[start + i]) * factor * (to_f32(w[group_start(dim) + i]) + shift));
}

// ---------------------------------------------------------------- gradient

// Rows first .. end of a block, kTeams at a time. dresidual: null, or added to dx, which it may be itself.
// partial: [blocks, groups, dim], the block's share of dw.
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
    const int64_t row = base + team, start = place_of(row) * dim;
    const int width = row < end ? dim : 0;
    Pack<T, kWidth> in[kVectors] = {}, grad[kVectors] = {}, residual[kVectors] = {};
    for (int v = 0; v < kVectors; ++v)
      if (column(v) < width)
        in[v] = load<kWidth>(x + start + column(v)), grad[v] = load<kWidth>(dy + start + column(v));
    const float factor = row < end ? rstd[place_of(row)] : 0;
    float dot = 0;
    for (int v = 0; v < kVectors; ++v) {
      if (column(v) >= width) continue;
      float values[kWidth], d[kWidth], weights[kWidth];
      unpack(in[v], values);
      unpack(grad[v], d);
      unpack(load<kWidth>(w + group_start(dim) + column(v)), weights);
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
      unpack(load<kWidth>(w + group_start(dim) + column(v)), weights);
      for (int i = 0; i < kWidth; ++i)
        values[i] = addend[i] + factor * (d[i] * (weights[i] + shift) - values[i] * factor * mean);
      store(dx + start + column(v), pack<T>(values));
    }
  }

  if constexpr (kWeights) {
    float* total = partial + place_of(blockIdx.x) * dim;
    float* mine = kTeams > 1 ? sums + team * dim : total;
    for (int v = 0; v < kVectors; ++v)
      if (column(v) < dim) store(mine + column(v), pack<float>(dw[v]));
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
  float* total = partial ? partial + place_of(blockIdx.x) * dim : nullptr;
  for (int64_t row = first; row < end; ++row) {
    const int64_t place = place_of(row), start = place * dim;
    const float factor = rstd[place];
    float dot = 0;
    for (int64_t i = threadIdx.x; i < dim; i += kWarp) {
      const float d = to_f32(dy[start + i]), xhat = to_f32(x[start + i]) * factor;
      dot = fmaf(d * (to_f32(w[group_start(dim) + i]) + shift), xhat, dot);
      if (total) total[i] = fmaf(d, xhat, row == first ? 0.0f : total[i]);
    }
    const float mean = warp_sum(dot) / static_cast<float>(dim);
    for (int64_t i = threadIdx.x; i < dim; i += kWarp) {
      const float g = to_f32(dy[start + i]) * (to_f32(w[group_start(dim) + i]) + shift),
                  xhat = to_f32(x[start + i]) * factor;
      put(dx + start + i, (dresidual ? to_f32(dresidual[start + i]) : 0.0f) + factor * (g - xhat * mean));
    }
  }
}

// ---------------------------------------------------------------- launchers

int64_t groups_of(const View& w) { return w.rank == 2 ? w.shape[0] : 1; }

template <bool kSum>
void normalize(CudaContext& context, const View& x, const View& addend, const View& w, const View& sum, const View& y,
               const View& rstd, float eps, bool plus_one) {
  for_float(x, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const int64_t dim = x.columns(), groups = groups_of(w), rows = x.rows() / groups;
    const float shift = plus_one ? 1.0f : 0.0f;
    const bool vectors = dim % kVector<T> == 0 && aligned_for(kVector<T>, x, addend, w, sum, y);
    if (vectors && with_team(dim / kVector<T>, [&](auto team) {
          using Its = decltype(team);
          QENG_LAUNCH(context, (rmsnorm_rows<T, Its::kLanes, Its::kVectors, kSum>),
                      blocks_of(rows, Its::kTeams, groups), dim3(kThreads), sizeof(float) * kWarps, x.as<T>(),
                      addend.as<T>(), w.as<T>(), sum.as<T>(), y.as<T>(), rstd.as<float>(), rows, static_cast<int>(dim),
                      eps, shift);
        }))
      return;
    QENG_LAUNCH(context, rmsnorm_any<T>, blocks_of(rows, 1, groups), dim3(kWarp), 0, x.as<T>(), addend.as<T>(),
                w.as<T>(), sum.as<T>(), y.as<T>(), rstd.as<float>(), dim, eps, shift);
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
  const int64_t dim = op.x.columns(), groups = groups_of(op.w), rows = op.x.rows() / groups;
  for_float(op.x, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T *x = op.x.as<T>(), *w = op.w.as<T>(), *dy = op.dy.as<T>();
    const T* dresidual = op.dresidual.as<T>();
    const float shift = op.plus_one ? 1.0f : 0.0f;
    float* partial = nullptr;
    int64_t rows_a_block = 0;
    const auto split = [&](int teams) {  // the grid; takes the memory for partial
      rows_a_block = op.dw ? rows_for_weights(rows, teams) : teams;
      const dim3 grid = blocks_of(rows, rows_a_block, groups);
      if (op.dw) partial = context.scratch.take<float>(int64_t{grid.x} * groups * dim);
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
      launch_add_partial_sums(context, op.name, partial, ceil_div(rows, rows_a_block), groups * dim, op.dw.as<float>(),
                              op.acc_dw);
  });
}

}  // namespace qeng
