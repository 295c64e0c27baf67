// LayerNorm and its gradient. row_team.h says which threads take a row.
#include <algorithm>

#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/row_team.h"

namespace qeng {
namespace {

using namespace row_team;

// ---------------------------------------------------------------- forward

// W: the weights' type; b: or null.
template <class T, class W, int kLanes, int kVectors>
__global__ void __launch_bounds__(kThreads)
    layer_norm_rows(const T* __restrict__ x, const W* __restrict__ w, const W* __restrict__ b, T* y, float* mean,
                    float* rstd, int64_t rows, int dim, float eps) {
  constexpr int kWidth = kVector<T>, kTeams = kThreads / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int64_t row = int64_t{blockIdx.x} * kTeams + threadIdx.x / kLanes;
  const int width = row < rows ? dim : 0;
  const auto column = [=](int v) { return (lane + v * kLanes) * kWidth; };
  float* exchange = reinterpret_cast<float*>(shared_memory());  // [2, kWarps]

  Pack<T, kWidth> packs[kVectors] = {};
  float sum = 0, squares = 0;
  for (int v = 0; v < kVectors; ++v)
    if (column(v) < width) packs[v] = load<kWidth>(x + row * dim + column(v));
  for (int v = 0; v < kVectors; ++v) {
    float values[kWidth];
    unpack(packs[v], values);
    for (int i = 0; i < kWidth; ++i) sum += values[i];
  }
  const float centre = team_sum<kLanes>(sum, exchange) / static_cast<float>(dim);
  for (int v = 0; v < kVectors; ++v) {
    if (column(v) >= width) continue;
    float values[kWidth];
    unpack(packs[v], values);
    for (int i = 0; i < kWidth; ++i) squares = fmaf(values[i] - centre, values[i] - centre, squares);
  }
  const float factor = 1.0f / sqrtf(team_sum<kLanes>(squares, exchange + kWarps) / static_cast<float>(dim) + eps);
  if (lane == 0 && row < rows) mean[row] = centre, rstd[row] = factor;
  for (int v = 0; v < kVectors; ++v) {
    if (column(v) >= width) continue;
    float values[kWidth], weights[kWidth], added[kWidth] = {};
    unpack(packs[v], values);
    unpack(load<kWidth>(w + column(v)), weights);
    if (b) unpack(load<kWidth>(b + column(v)), added);
    for (int i = 0; i < kWidth; ++i) values[i] = fmaf((values[i] - centre) * factor, weights[i], added[i]);
    store(y + row * dim + column(v), pack<T>(values));
  }
}

template <class T, class W>
__global__ void __launch_bounds__(kWarp) layer_norm_any(const T* x, const W* __restrict__ w, const W* __restrict__ b,
                                                        T* y, float* mean, float* rstd, int64_t dim, float eps) {
  const int64_t row = blockIdx.x, start = row * dim;
  float sum = 0, squares = 0;
  for (int64_t i = threadIdx.x; i < dim; i += kWarp) sum += to_f32(x[start + i]);
  const float centre = warp_sum(sum) / static_cast<float>(dim);
  for (int64_t i = threadIdx.x; i < dim; i += kWarp) {
    const float value = to_f32(x[start + i]) - centre;
    squares = fmaf(value, value, squares);
  }
  const float factor = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(dim) + eps);
  if (threadIdx.x == 0) mean[row] = centre, rstd[row] = factor;
  for (int64_t i = threadIdx.x; i < dim; i += kWarp)
    put(y + start + i, fmaf((to_f32(x[start + i]) - centre) * factor, to_f32(w[i]), b ? to_f32(b[i]) : 0.0f));
}

// ---------------------------------------------------------------- gradient

// Rows first .. end of a block, kTeams at a time. dresidual: null, or added to dx, which it may be itself.
// partial: [2, blocks, dim], the blocks' shares of dw and db.
template <class T, class W, int kLanes, int kVectors, bool kWeights>
__global__ void __launch_bounds__(kThreads)
    layer_norm_grad_rows(const T* __restrict__ x, const W* __restrict__ w, const float* __restrict__ mean,
                         const float* __restrict__ rstd, const T* __restrict__ dy, const T* dresidual, T* dx,
                         float* partial, int64_t rows, int64_t rows_a_block, int dim) {
  constexpr int kWidth = kVector<T>, kTeams = kThreads / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes, team = static_cast<int>(threadIdx.x) / kLanes;
  const int64_t first = int64_t{blockIdx.x} * rows_a_block, last = first + rows_a_block,
                end = last < rows ? last : rows;
  float *exchange = reinterpret_cast<float*>(shared_memory()), *sums = exchange + 2 * kWarps;
  const auto column = [=](int v) { return (lane + v * kLanes) * kWidth; };

  float dw[kWeights ? kVectors : 1][kWidth] = {}, db[kWeights ? kVectors : 1][kWidth] = {};
  for (int64_t base = first; base < end; base += kTeams) {
    const int64_t row = base + team, start = row * dim;
    const int width = row < end ? dim : 0;
    Pack<T, kWidth> in[kVectors] = {}, grad[kVectors] = {}, residual[kVectors] = {};
    for (int v = 0; v < kVectors; ++v)
      if (column(v) < width)
        in[v] = load<kWidth>(x + start + column(v)), grad[v] = load<kWidth>(dy + start + column(v));
    const float centre = row < end ? mean[row] : 0, factor = row < end ? rstd[row] : 0;
    float sum = 0, dot = 0;
    for (int v = 0; v < kVectors; ++v) {
      if (column(v) >= width) continue;
      float values[kWidth], d[kWidth], weights[kWidth];
      unpack(in[v], values);
      unpack(grad[v], d);
      unpack(load<kWidth>(w + column(v)), weights);
      for (int i = 0; i < kWidth; ++i) {
        const float xhat = (values[i] - centre) * factor, g = d[i] * weights[i];
        sum += g;
        dot = fmaf(g, xhat, dot);
        if constexpr (kWeights) dw[v][i] = fmaf(d[i], xhat, dw[v][i]), db[v][i] += d[i];
      }
    }
    if (dresidual)
      for (int v = 0; v < kVectors; ++v)
        if (column(v) < width) residual[v] = load<kWidth>(dresidual + start + column(v));
    // Each sum has its half of exchange, which all have left behind when they meet at the other's barrier.
    const float mean_g = team_sum<kLanes>(sum, exchange) / static_cast<float>(dim);
    const float mean_dot = team_sum<kLanes>(dot, exchange + kWarps) / static_cast<float>(dim);
    for (int v = 0; v < kVectors; ++v) {
      if (column(v) >= width) continue;
      float values[kWidth], d[kWidth], weights[kWidth], addend[kWidth];
      unpack(in[v], values);
      unpack(grad[v], d);
      unpack(residual[v], addend);
      unpack(load<kWidth>(w + column(v)), weights);
      for (int i = 0; i < kWidth; ++i)
        values[i] = addend[i] + factor * (d[i] * weights[i] - mean_g - (values[i] - centre) * factor * mean_dot);
      store(dx + start + column(v), pack<T>(values));
    }
  }

  if constexpr (kWeights) {
    for (int which = 0; which < 2; ++which) {
      float* total = partial + (int64_t{which} * gridDim.x + blockIdx.x) * dim;
      float* mine = kTeams > 1 ? sums + team * dim : total;
      if (which > 0 && kTeams > 1) __syncthreads();
      for (int v = 0; v < kVectors; ++v) {
        float share[kWidth];
        for (int i = 0; i < kWidth; ++i) share[i] = which == 0 ? dw[v][i] : db[v][i];
        if (column(v) < dim) store(mine + column(v), pack<float>(share));
      }
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
}

// One warp a block; partial: null, or as above.
template <class T, class W>
__global__ void __launch_bounds__(kWarp)
    layer_norm_grad_any(const T* __restrict__ x, const W* __restrict__ w, const float* __restrict__ mean,
                        const float* __restrict__ rstd, const T* __restrict__ dy, const T* dresidual, T* dx,
                        float* partial, int64_t rows, int64_t rows_a_block, int64_t dim) {
  const int64_t first = int64_t{blockIdx.x} * rows_a_block, last = first + rows_a_block,
                end = last < rows ? last : rows;
  float *dw = partial ? partial + int64_t{blockIdx.x} * dim : nullptr, *db = dw + int64_t{gridDim.x} * dim;
  for (int64_t row = first; row < end; ++row) {
    const int64_t start = row * dim;
    const float centre = mean[row], factor = rstd[row];
    float sum = 0, dot = 0;
    for (int64_t i = threadIdx.x; i < dim; i += kWarp) {
      const float d = to_f32(dy[start + i]), xhat = (to_f32(x[start + i]) - centre) * factor, g = d * to_f32(w[i]);
      sum += g;
      dot = fmaf(g, xhat, dot);
      if (!partial) continue;
      dw[i] = fmaf(d, xhat, row == first ? 0.0f : dw[i]);
      db[i] = d + (row == first ? 0.0f : db[i]);
    }
    const float mean_g = warp_sum(sum) / static_cast<float>(dim), mean_dot = warp_sum(dot) / static_cast<float>(dim);
    for (int64_t i = threadIdx.x; i < dim; i += kWarp) {
      const float g = to_f32(dy[start + i]) * to_f32(w[i]), xhat = (to_f32(x[start + i]) - centre) * factor;
      put(dx + start + i, (dresidual ? to_f32(dresidual[start + i]) : 0.0f) + factor * (g - mean_g - xhat * mean_dot));
    }
  }
}

// ---------------------------------------------------------------- launchers

// Calls f with null pointers to the types of x and w.
template <class F>
void for_types(const View& x, const View& w, F f) {
  for_float(x, [&](auto* type) {
    if (w.dtype == x.dtype) return f(type, type);
    f(type, static_cast<float*>(nullptr));
  });
}

// Whether rows are read 16 bytes at a time: the types of x at once, weights in as many accesses as it takes.
template <class T, class W, class... Views>
bool in_vectors(int64_t dim, const View& w, const View& b, const Views&... rows) {
  constexpr size_t bytes = std::min<size_t>(16, kVector<T> * sizeof(W));
  return dim % kVector<T> == 0 && aligned_for(kVector<T>, rows...) && aligned(w.data, bytes) && aligned(b.data, bytes);
}

}  // namespace

void run(const LayerNorm& op, CudaContext& context) {
  const int64_t dim = op.x.columns(), rows = op.x.rows();
  for_types(op.x, op.w, [&](auto* type, auto* weight_type) {
    using T = std::remove_pointer_t<decltype(type)>;
    using W = std::remove_pointer_t<decltype(weight_type)>;
    const bool vectors = in_vectors<T, W>(dim, op.w, op.b, op.x, op.y);
    if (vectors && with_team(dim / kVector<T>, [&](auto team) {
          using Its = decltype(team);
          QENG_LAUNCH(context, (layer_norm_rows<T, W, Its::kLanes, Its::kVectors>), blocks_of(rows, Its::kTeams),
                      dim3(kThreads), sizeof(float) * 2 * kWarps, op.x.as<T>(), op.w.as<W>(), op.b.as<W>(),
                      op.y.as<T>(), op.mean.as<float>(), op.rstd.as<float>(), rows, static_cast<int>(dim), op.eps);
        }))
      return;
    QENG_LAUNCH(context, (layer_norm_any<T, W>), blocks_of(rows, 1), dim3(kWarp), 0, op.x.as<T>(), op.w.as<W>(),
                op.b.as<W>(), op.y.as<T>(), op.mean.as<float>(), op.rstd.as<float>(), dim, op.eps);
  });
}

void run(const LayerNormGrad& op, CudaContext& context) {
  const int64_t dim = op.x.columns(), rows = op.x.rows();
  const bool weights = op.dw || op.db;
  float* partial = nullptr;
  int64_t blocks = 0;
  for_types(op.x, op.w, [&](auto* type, auto* weight_type) {
    using T = std::remove_pointer_t<decltype(type)>;
    using W = std::remove_pointer_t<decltype(weight_type)>;
    const T *x = op.x.as<T>(), *dy = op.dy.as<T>(), *dresidual = op.dresidual.as<T>();
    int64_t rows_a_block = 0;
    const auto split = [&](int teams) {  // the grid; takes the memory for partial
      rows_a_block = weights ? rows_for_weights(rows, teams) : teams;
      blocks = ceil_div(rows, rows_a_block);
      if (weights) partial = context.scratch.take<float>(2 * blocks * dim);
      return blocks_of(rows, rows_a_block);
    };
    const bool vectors = in_vectors<T, W>(dim, op.w, View(), op.x, op.dy, op.dresidual, op.dx);
    if (vectors && with_team<false>(dim / kVector<T>, [&](auto team) {
          using Its = decltype(team);
          const dim3 grid = split(Its::kTeams);
          const size_t sums = weights && Its::kTeams > 1 ? static_cast<size_t>(Its::kTeams * dim) : 0;
          QENG_LAUNCH(context,
                      (weights ? layer_norm_grad_rows<T, W, Its::kLanes, Its::kVectors, true>
                               : layer_norm_grad_rows<T, W, Its::kLanes, Its::kVectors, false>),
                      grid, dim3(kThreads), sizeof(float) * (2 * kWarps + sums), x, op.w.as<W>(), op.mean.as<float>(),
                      op.rstd.as<float>(), dy, dresidual, op.dx.as<T>(), partial, rows, rows_a_block,
                      static_cast<int>(dim));
        }))
      return;
    const dim3 grid = split(1);
    QENG_LAUNCH(context, (layer_norm_grad_any<T, W>), grid, dim3(kWarp), 0, x, op.w.as<W>(), op.mean.as<float>(),
                op.rstd.as<float>(), dy, dresidual, op.dx.as<T>(), partial, rows, rows_a_block, dim);
  });
  if (op.dw) launch_add_partial_sums(context, op.name, partial, blocks, dim, op.dw.as<float>(), op.acc);
  if (op.db) launch_add_partial_sums(context, op.name, partial + blocks * dim, blocks, dim, op.db.as<float>(), op.acc);
}

}  // namespace qeng
