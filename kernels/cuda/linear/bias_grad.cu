// Sums over the rows of a matrix. A block of threads takes 128 rows of 32 accesses and leaves their sum as a row of
// partial sums, so the order of the sums follows from the shape, and what is written is 2 % of the bf16 that is read.
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/vector.h"
#include "kernels/error.h"
#include "kernels/view_text.h"

namespace qeng {

namespace {

constexpr int kTeams = 8, kRows = 128, kInFlight = 4;  // a team: a warp, which adds every eighth row

template <class T, int n>
__global__ void __launch_bounds__(kTeams* kWarp)
    sum_rows(const T* dy, int64_t rows, int64_t columns, unsigned tiles, float* partial) {
  constexpr int tile = kWarp * n;
  float* sums = reinterpret_cast<float*>(shared_memory());  // [kTeams, tile]
  const int64_t block = blockIdx.x / tiles, first = int64_t{blockIdx.x % tiles} * tile,
                column = first + threadIdx.x % kWarp * n, end = min(rows, (block + 1) * kRows);
  float sum[n] = {};
  if (column < columns) {
    for (int64_t row = block * kRows + threadIdx.x / kWarp; row < end; row += kTeams * kInFlight) {
      Pack<T, n> packs[kInFlight] = {};
      for (int u = 0; u < kInFlight; ++u)
        if (row + u * kTeams < end) packs[u] = load<n>(dy + (row + u * kTeams) * columns + column);
      for (int u = 0; u < kInFlight; ++u) {
        float value[n];
        unpack(packs[u], value);
        for (int k = 0; k < n; ++k) sum[k] += value[k];
      }
    }
  }
  store(sums + threadIdx.x * n, pack<float>(sum));
  __syncthreads();
  if (threadIdx.x >= tile || first + threadIdx.x >= columns) return;
  float total = sums[threadIdx.x];
  for (int team = 1; team < kTeams; ++team) total += sums[team * tile + threadIdx.x];
  partial[block * columns + first + threadIdx.x] = total;
}

}  // namespace

void run(const BiasGrad& op, CudaContext& context) {
  const int64_t rows = op.dy.rows(), columns = op.dy.columns(), blocks = ceil_div(rows, kRows);
  float* partial = context.scratch.take<float>(blocks * columns);
  for_float(op.dy, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int width = kVector<T>;
    const bool vectors = columns % width == 0 && aligned_for(width, op.dy);
    const int n = vectors ? width : 1;
    const int64_t tiles = ceil_div(columns, kWarp * n);
    if (blocks * tiles > INT32_MAX)
      fail("unsupported", op.name, ": dy is ", shape_text(op.dy), ", more than one launch takes");
    launch(context, op.name, vectors ? sum_rows<T, width> : sum_rows<T, 1>, dim3(static_cast<unsigned>(blocks * tiles)),
           dim3(kTeams * kWarp), sizeof(float) * kTeams * kWarp * n, op.dy.as<T>(), rows, columns, tiles, partial);
  });
  launch_add_partial_sums(context, op.name, partial, blocks, columns, op.db.as<float>(), op.acc);
}

}  // namespace qeng
