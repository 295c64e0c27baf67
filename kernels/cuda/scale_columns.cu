// ScaleColumns and its gradient. A thread keeps the factors of its columns in registers and goes down 128 rows, so that
// each element costs one multiplication and no division finds its column; the sums are those of bias_grad.cu.
#include <algorithm>

#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/vector.h"
#include "kernels/error.h"
#include "kernels/view_text.h"

namespace qeng {

namespace {

constexpr int kTeams = 8, kRows = 128, kInFlight = 4;  // a team: a warp, which takes every eighth row
constexpr int kThreads = kTeams * kWarp;

// The rows and columns of a thread; its columns may lie past the last one.
template <int n>
struct Place {
  int64_t block, first, column, row, end;
  __device__ Place(int64_t rows, unsigned tiles)
      : block(blockIdx.x / tiles),
        first(int64_t{blockIdx.x % tiles} * kWarp * n),
        column(first + threadIdx.x % kWarp * n),
        row(block * kRows + threadIdx.x / kWarp),
        end(min(rows, (block + 1) * kRows)) {}
};

// y may be x. B: bias's type; bias: or null.
template <class T, class B, int n>
__global__ void __launch_bounds__(kThreads)
    scale_rows(const T* x, const float* scale, const B* bias, T* y, int64_t rows, int64_t columns, unsigned tiles) {
  const Place<n> place(rows, tiles);
  if (place.column >= columns) return;
  float factor[n], added[n] = {};
  unpack(load<n>(scale + place.column), factor);
  if (bias) unpack(load<n>(bias + place.column), added);
  for (int64_t row = place.row; row < place.end; row += kTeams * kInFlight) {
    Pack<T, n> packs[kInFlight] = {};
    for (int u = 0; u < kInFlight; ++u)
      if (row + u * kTeams < place.end) packs[u] = load_once<n>(x + (row + u * kTeams) * columns + place.column);
    for (int u = 0; u < kInFlight; ++u) {
      if (row + u * kTeams >= place.end) break;
      float value[n];
      unpack(packs[u], value);
      for (int k = 0; k < n; ++k) value[k] = bias ? fmaf(value[k], factor[k], added[k]) : value[k] * factor[k];
      store(y + (row + u * kTeams) * columns + place.column, pack<T>(value));
    }
  }
}

// partial: [blocks of kRows rows, columns]. dx may be dy.
template <class T, int n>
__global__ void __launch_bounds__(kThreads)
    scale_rows_grad(const T* x, const float* scale, const T* dy, T* dx, int64_t rows, int64_t columns, unsigned tiles,
                    float* partial) {
  constexpr int tile = kWarp * n;
  float* sums = reinterpret_cast<float*>(shared_memory());  // [kTeams, tile]
  const Place<n> place(rows, tiles);
  float sum[n] = {};
  if (place.column < columns) {
    float factor[n];
    unpack(load<n>(scale + place.column), factor);
    for (int64_t row = place.row; row < place.end; row += kTeams * kInFlight) {
      Pack<T, n> gradients[kInFlight] = {}, inputs[kInFlight] = {};
      for (int u = 0; u < kInFlight; ++u) {
        if (row + u * kTeams >= place.end) break;
        const int64_t i = (row + u * kTeams) * columns + place.column;
        gradients[u] = load_once<n>(dy + i), inputs[u] = load_once<n>(x + i);
      }
      for (int u = 0; u < kInFlight; ++u) {
        if (row + u * kTeams >= place.end) break;
        float gradient[n], input[n];
        unpack(gradients[u], gradient), unpack(inputs[u], input);
        for (int k = 0; k < n; ++k) sum[k] += gradient[k] * input[k], gradient[k] *= factor[k];
        store(dx + (row + u * kTeams) * columns + place.column, pack<T>(gradient));
      }
    }
  }
  store(sums + threadIdx.x * n, pack<float>(sum));
  __syncthreads();
  if (threadIdx.x >= tile || place.first + threadIdx.x >= columns) return;
  float total = sums[threadIdx.x];
  for (int team = 1; team < kTeams; ++team) total += sums[team * tile + threadIdx.x];
  partial[place.block * columns + place.first + threadIdx.x] = total;
}

struct Grid {
  int width;  // columns of a thread
  int64_t blocks, tiles;
  Grid(int64_t rows, int64_t columns, int columns_of_thread)
      : width(columns_of_thread), blocks(ceil_div(rows, kRows)), tiles(ceil_div(columns, kWarp * columns_of_thread)) {}
  dim3 grid(const char* name, const View& x) const {
    if (blocks * tiles > INT32_MAX) fail("unsupported", name, ": x is ", shape_text(x), ", more than one launch takes");
    return dim3(static_cast<unsigned>(blocks * tiles));
  }
};

void launch_scaling(CudaContext& context, const char* name, const View& x, const View& scale, const View& bias,
                    const View& y) {
  const int64_t rows = x.rows(), columns = x.columns();
  const auto with_bias = [&](auto* type, auto* bias_type) {
    using T = std::remove_pointer_t<decltype(type)>;
    using B = std::remove_pointer_t<decltype(bias_type)>;
    constexpr int width = kVector<T>;
    const bool vectors = columns % width == 0 && aligned_for(width, x, y) && aligned(scale.data, 16) &&
                         aligned(bias.data, std::min<size_t>(16, width * sizeof(B)));
    const Grid grid(rows, columns, vectors ? width : 1);
    launch(context, name, vectors ? scale_rows<T, B, width> : scale_rows<T, B, 1>, grid.grid(name, x), dim3(kThreads),
           0, x.as<T>(), scale.as<float>(), bias.as<B>(), y.as<T>(), rows, columns, grid.tiles);
  };
  for_float(x, [&](auto* type) {
    if (bias && bias.dtype == x.dtype) return with_bias(type, type);
    with_bias(type, static_cast<float*>(nullptr));
  });
}

}  // namespace

void run(const ScaleColumns& op, CudaContext& context) {
  launch_scaling(context, op.name, op.x, op.scale, op.bias, op.y);
}

void run(const ScaleColumnsGrad& op, CudaContext& context) {
  if (!op.dscale) return launch_scaling(context, op.name, op.dy, op.scale, View(), op.dx);
  const int64_t rows = op.x.rows(), columns = op.x.columns();
  float* partial = context.scratch.take<float>(ceil_div(rows, kRows) * columns);
  for_float(op.x, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int width = kVector<T>;
    const bool vectors = columns % width == 0 && aligned_for(width, op.x, op.dy, op.dx) && aligned(op.scale.data, 16);
    const Grid grid(rows, columns, vectors ? width : 1);
    launch(context, op.name, vectors ? scale_rows_grad<T, width> : scale_rows_grad<T, 1>, grid.grid(op.name, op.x),
           dim3(kThreads), sizeof(float) * kThreads * static_cast<size_t>(grid.width), op.x.as<T>(),
           op.scale.as<float>(), op.dy.as<T>(), op.dx.as<T>(), rows, columns, grid.tiles, partial);
  });
  launch_add_partial_sums(context, op.name, partial, ceil_div(rows, kRows), columns, op.dscale.as<float>(), op.acc);
}

}  // namespace qeng
