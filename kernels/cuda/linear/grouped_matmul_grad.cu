// GroupedMatmulGrad: a block makes a tile of one expert's dw from all of the expert's rows, in their order.
#include "kernels/cuda/linear/experts.h"
#include "kernels/cuda/linear/mma_tile.h"
#include "kernels/cuda/linear/simt_tile.h"
#include "kernels/error.h"
#include "kernels/view_text.h"

namespace qeng {

namespace {

struct Gradient {
  Experts experts;
  const void *dy, *x;
  float *dw, *dbias;
  int64_t n, k;
  bool acc;
};

// The rows of an expert; none where boundaries do not ascend, which is reported.
__device__ ExpertRows rows_of(const Gradient& g, int expert) {
  const int64_t begin = g.experts.first[expert], end = g.experts.first[expert + 1];
  if (begin < 0 || end < begin || end > g.experts.rows) return {expert, 0, 0};
  return {expert, static_cast<int>(end - begin), begin};
}

template <class In>
__global__ void __launch_bounds__(simt_tile::kThreads) grouped_simt_grad(Gradient g) {
  using namespace simt_tile;
  if (blockIdx.x == 0 && blockIdx.y == 0) check_experts(g.experts);
  const ExpertRows of = rows_of(g, static_cast<int>(blockIdx.y));
  const int64_t across = (g.k + kTile - 1) / kTile;
  const int64_t first_n = int64_t{blockIdx.x} / across * kTile, first_k = int64_t{blockIdx.x} % across * kTile;
  const Side dy{static_cast<const In*>(g.dy) + of.first * g.n, g.n, 1, g.n};
  const Side x{static_cast<const In*>(g.x) + of.first * g.k, g.k, 1, g.k};
  const GemmResult result{g.dw + of.expert * g.n * g.k, nullptr, false, g.acc, 1.0f, g.k};
  float sum[kSide][kSide] = {};
  multiply<In>(dy, x, first_n, first_k, of.rows, sum);
  write_part<float>(result, g.n, g.k, first_n, first_k, sum);
}

__global__ void __launch_bounds__(mma_tile::kThreads) grouped_mma_grad(Gradient g) {
  if (!ptx::from_sm80()) return;
  using namespace mma_tile;
  if (blockIdx.x == 0 && blockIdx.y == 0) check_experts(g.experts);
  const ExpertRows of = rows_of(g, static_cast<int>(blockIdx.y));
  if (of.rows == 0 && g.acc) return;
  const int64_t across = (g.k + kColumns - 1) / kColumns;
  const int64_t first_n = int64_t{blockIdx.x} / across * kRows, first_k = int64_t{blockIdx.x} % across * kColumns;
  const Side<true> dy{static_cast<const bf16*>(g.dy) + of.first * g.n + first_n, g.n, g.n - first_n, of.rows};
  const Side<true> x{static_cast<const bf16*>(g.x) + of.first * g.k + first_k, g.k, g.k - first_k, of.rows};
  Sums sums = {};
  multiply(dy, x, sums);
  each_pair(sums, [&](int row, int column, float value, float next) {
    if (first_n + row >= g.n || first_k + column >= g.k) return;
    auto* to = reinterpret_cast<float2*>(g.dw + (of.expert * g.n + first_n + row) * g.k + first_k + column);
    if (g.acc) value += to->x, next += to->y;
    *to = make_float2(value, next);
  });
}

constexpr int kBiasColumns = 32, kBiasTeams = 8;  // a team adds every eighth row

template <class In>
__global__ void __launch_bounds__(kBiasColumns* kBiasTeams) grouped_bias_grad(Gradient g) {
  float* sums = reinterpret_cast<float*>(shared_memory());  // [kBiasTeams, kBiasColumns]
  if (blockIdx.x == 0 && blockIdx.y == 0) check_experts(g.experts);
  const ExpertRows of = rows_of(g, static_cast<int>(blockIdx.y));
  const int64_t column = int64_t{blockIdx.x} * kBiasColumns + threadIdx.x % kBiasColumns;
  float sum = 0;
  if (column < g.n)
    for (int r = static_cast<int>(threadIdx.x) / kBiasColumns; r < of.rows; r += kBiasTeams)
      sum += to_f32(static_cast<const In*>(g.dy)[(of.first + r) * g.n + column]);
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x >= kBiasColumns || column >= g.n) return;
  for (int team = 1; team < kBiasTeams; ++team) sum += sums[team * kBiasColumns + threadIdx.x];
  float* to = g.dbias + of.expert * g.n + column;
  *to = g.acc ? *to + sum : sum;
}

dim3 grid_of(const GroupedMatmulGrad& op, const Gradient& g, int64_t tiles) {
  if (tiles > INT32_MAX || g.experts.count > 65535 || g.experts.rows > INT32_MAX)
    fail("unsupported", op.name, ": dy is ", shape_text(op.dy), ", x is ", shape_text(op.x), ", of ", g.experts.count,
         " experts, more than one launch takes");
  return dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(g.experts.count));
}

}  // namespace

void run(const GroupedMatmulGrad& op, CudaContext& context) {
  const int64_t n = op.dy.columns(), k = op.x.columns(), count = op.first.elements() - 1;
  const Experts experts{op.first.as<int32_t>(), static_cast<int>(count), 0, op.dy.rows(), context.fault};
  const Gradient g{experts, op.dy.data, op.x.data, op.dw.as<float>(), op.dbias.as<float>(), n, k, op.acc};
  if (op.dbias)
    for_float(op.dy, [&](auto* type) {
      QENG_LAUNCH(context, grouped_bias_grad<std::remove_pointer_t<decltype(type)>>,
                  grid_of(op, g, ceil_div(n, kBiasColumns)), dim3(kBiasColumns * kBiasTeams),
                  sizeof(float) * kBiasColumns * kBiasTeams, g);
    });
  if (!op.dw) return;
  const bool tensor_cores = context.tensor_bf16() && op.dy.dtype == DType::bf16 && n % 8 == 0 && k % 8 == 0 &&
                            aligned(op.dy.data, 16) && aligned(op.x.data, 16) && aligned(op.dw.data, 16);
  if (tensor_cores) {
    const int64_t tiles = ceil_div(n, mma_tile::kRows) * ceil_div(k, mma_tile::kColumns);
    QENG_LAUNCH(context, grouped_mma_grad, grid_of(op, g, tiles), dim3(mma_tile::kThreads),
                (mma_tile::kShared<true, true>), g);
    return;
  }
  const int64_t tiles = ceil_div(n, simt_tile::kTile) * ceil_div(k, simt_tile::kTile);
  for_float(op.dy, [&](auto* type) {
    QENG_LAUNCH(context, grouped_simt_grad<std::remove_pointer_t<decltype(type)>>, grid_of(op, g, tiles),
                dim3(simt_tile::kThreads), simt_tile::kShared, g);
  });
}

}  // namespace qeng
