// RowLinear by f32, bf16 and f16 weights, in f32; x is rounded to bf16 where the weight is bf16.
#include "kernels/cuda/linear/row_linear.h"
#include "kernels/cuda/vector.h"

namespace qeng {

namespace {

// Loads of the weight under way in each lane: more rows of x leave fewer registers, and more work for each load.
template <int kRows>
constexpr int kAhead = kRows == 1 ? 4 : 2;

// Blocks of a multiprocessor, or 0 to leave it to ptxas: of eight elements by one row it would make 40 registers on
// sm_86, and spill them. Here it has 64.
template <int n, int kRows>
constexpr int kBlocksAtOnce = n == 8 && kRows == 1 ? 8 : 0;

// W: of the weight, X: of x. n: elements to a load. kRows: 1 or kBatchRows.
template <class W, class X, int n, int kRows>
__global__ void __launch_bounds__(kRowWarps* kWarp, kBlocksAtOnce<n, kRows>) dense_rows(RowProducts p) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  int64_t j = int64_t{blockIdx.x} * kRowWarps + threadIdx.x / kWarp;
  const RowWeight& weight = weight_of(p, j);
  if (j >= weight.n) return;
  const int64_t first = int64_t{blockIdx.y} * kRows;
  const int rows = kRows == 1 ? 1 : static_cast<int>(p.rows - first < kRows ? p.rows - first : kRows);
  const W* w = static_cast<const W*>(weight.w) + j * p.k;
  const X* x = static_cast<const X*>(p.x) + first * p.k;

  float sum[kRows] = {};
  const auto add = [&](const Pack<W, n>& pack, int64_t l) {
    float a[n];
    unpack(pack, a);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows) continue;
      float b[n];
      unpack(load<n>(x + r * p.k + l), b);
      if constexpr (std::is_same_v<W, bf16> && std::is_same_v<X, float>)
#pragma unroll
        for (int i = 0; i < n; ++i) b[i] = to_f32(to_bf16(b[i]));
#pragma unroll
      for (int i = 0; i < n; ++i) sum[r] = __fmaf_rn(a[i], b[i], sum[r]);
    }
  };
  constexpr int64_t step = kWarp * n;
  int64_t l = lane * n;
  for (; l + (kAhead<kRows> - 1) * step < p.k; l += kAhead<kRows> * step) {
    Pack<W, n> packs[kAhead<kRows>];
#pragma unroll
    for (int u = 0; u < kAhead<kRows>; ++u) packs[u] = load_once<n>(w + l + u * step);
#pragma unroll
    for (int u = 0; u < kAhead<kRows>; ++u) add(packs[u], l + u * step);
  }
  for (; l < p.k; l += step) add(load_once<n>(w + l), l);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) continue;
    const float total = warp_sum(sum[r]);
    if (lane == 0) finish_row(p, weight, first + r, j, total);
  }
}

template <class W, class X>
void launch_dense(const char* name, const RowProducts& p, CudaContext& context) {
  constexpr int n = kVector<W, X>;
  const bool vectors = p.k % n == 0 && p.vectors && aligned(p.x, 16);
  const dim3 grid = row_grid(name, p), block(kRowWarps * kWarp);
  if (p.rows == 1)
    launch(context, name, vectors ? dense_rows<W, X, n, 1> : dense_rows<W, X, 1, 1>, grid, block, 0, p);
  else
    launch(context, name, vectors ? dense_rows<W, X, n, kBatchRows> : dense_rows<W, X, 1, kBatchRows>, grid, block, 0,
           p);
}

}  // namespace

void dense_products(const char* name, const RowProducts& p, DType dtype, CudaContext& context) {
  const auto by = [&](auto* type) {
    using W = std::remove_pointer_t<decltype(type)>;
    p.x_f32 ? launch_dense<W, float>(name, p, context) : launch_dense<W, bf16>(name, p, context);
  };
  switch (dtype) {
    case DType::f32: return by(static_cast<float*>(nullptr));
    case DType::bf16: return by(static_cast<bf16*>(nullptr));
    default: return by(static_cast<f16*>(nullptr));
  }
}

}  // namespace qeng
