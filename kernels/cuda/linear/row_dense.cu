// RowLinear, and GroupedMatmul apart, by f32 weights, and by bf16 and f16 whose rows are no whole vectors or on GPUs before
// 8.0, in f32; x is rounded to bf16 where the weight is bf16. Other products of bf16 and f16 weights are for tensor cores
// (row_tensor.h).
#include "kernels/cuda/bounds.h"
#include "kernels/cuda/linear/grouped_rows.h"
#include "kernels/cuda/linear/row_tensor.h"

namespace qeng {

namespace {

// Loads of the weight under way in each lane: more rows of x leave fewer registers, and more work for each load.
template <int kRows>
constexpr int kAhead = kRows == 1 ? 4 : 2;

// Row j of a weight times rows first .. first + rows of x. W: of the weight, X: of x. n: elements to a load.
template <class W, class X, int n, int kRows>
__device__ void multiply_dense(const RowProducts& p, const RowWeight& weight, int64_t j, int64_t first, int rows) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
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

// kRows: 1 or kBatchRows. Unasked, ptxas takes so few registers for eight elements at a time that it spills.
template <class W, class X, int n, int kRows>
__global__ void QENG_BOUNDS(kRowWarps* kWarp, n == 8 ? 4 : 0, 4) dense_rows(RowProducts p) {
  int64_t j = int64_t{blockIdx.x} * kRowWarps + threadIdx.x / kWarp;
  const RowWeight& weight = weight_of(p, j);
  if (j >= weight.n) return;
  const int64_t first = int64_t{blockIdx.y} * kRows;
  const int rows = kRows == 1 ? 1 : static_cast<int>(p.rows - first < kRows ? p.rows - first : kRows);
  multiply_dense<W, X, n, kRows>(p, weight, j, first, rows);
}

template <class W, class X, int n, int kRows>
__global__ void __launch_bounds__(kRowWarps* kWarp, 4)  // unasked, ptxas takes so few registers that it spills
    grouped_dense_rows(GroupedProducts g) {
  if (blockIdx.x == 0 && blockIdx.y == 0) check_experts(g.experts);
  const int64_t j = int64_t{blockIdx.x} * kRowWarps + threadIdx.x / kWarp;
  if (j >= g.p.weight[0].n) return;
  const ExpertRows of = expert_rows<kRows>(g.experts, blockIdx.y);
  if (of.rows == 0) return;
  if (of.expert < g.experts.count)
    multiply_dense<W, X, n, kRows>(g.p, weight_of(g, of.expert), j, of.first, kRows == 1 ? 1 : of.rows);
  else if (threadIdx.x % kWarp == 0)
    clear_rows(g, of, j);
}

template <class W, class X>
void launch_dense(const char* name, const RowProducts& p, CudaContext& context) {
  constexpr int n = kVector<W, X>;  // elements to an access where rows are whole vectors
  const bool vectors = p.k % n == 0 && p.vectors && aligned(p.x, 16);
  const dim3 grid = row_grid(name, p), block(kRowWarps * kWarp);
  if (p.rows == 1)
    launch(context, name, vectors ? dense_rows<W, X, n, 1> : dense_rows<W, X, 1, 1>, grid, block, 0, p);
  else
    launch(context, name, vectors ? dense_rows<W, X, n, kBatchRows> : dense_rows<W, X, 1, kBatchRows>, grid, block, 0,
           p);
}

template <class W, class X>
void launch_grouped(const char* name, const GroupedProducts& g, CudaContext& context) {
  constexpr int n = kVector<W, X>;  // elements to an access where rows are whole vectors
  const bool vectors = g.p.k % n == 0 && g.p.vectors && aligned(g.p.x, 16);
  const dim3 block(kRowWarps * kWarp);
  if (mostly_single(g.experts))
    launch(context, name, vectors ? grouped_dense_rows<W, X, n, 1> : grouped_dense_rows<W, X, 1, 1>,
           grouped_grid<1>(name, g), block, 0, g);
  else
    launch(context, name, vectors ? grouped_dense_rows<W, X, n, kBatchRows> : grouped_dense_rows<W, X, 1, kBatchRows>,
           grouped_grid<kBatchRows>(name, g), block, 0, g);
}

// Calls f(w, x) with null pointers to the element types of the weight and of x.
template <class F>
void for_types(DType weight, bool x_f32, F f) {
  const auto by = [&](auto* w) { x_f32 ? f(w, static_cast<float*>(nullptr)) : f(w, static_cast<bf16*>(nullptr)); };
  switch (weight) {
    case DType::f32: return by(static_cast<float*>(nullptr));
    case DType::bf16: return by(static_cast<bf16*>(nullptr));
    default: return by(static_cast<f16*>(nullptr));
  }
}

constexpr int kCopyThreads = 256;
template <class X, class To>
__global__ void __launch_bounds__(kCopyThreads) copy_elements(const X* x, To* to, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kCopyThreads + threadIdx.x;
  if (i < count) put(to + i, to_f32(x[i]));
}
// Whether weights in half precision have rows of whole vectors of 16 bytes.
bool whole_vectors(const RowProducts& p, DType dtype) {
  bool whole = dtype != DType::f32 && p.k % 8 == 0;
  for (int i = 0; i < p.count; ++i) whole = whole && aligned(p.weight[i].w, 16);
  return whole;
}

// The same products of an x that is read by such vectors too: at a multiple of 16 bytes, and in bf16 where the weight is.
// So a sum has one order wherever x lies.
RowProducts with_x_for(DType dtype, RowProducts p, CudaContext& context) {
  const bool rounds = p.x_f32 && dtype == DType::bf16;
  if (!rounds && aligned(p.x, 16)) return p;
  const int64_t count = p.rows * p.k;
  const dim3 grid(static_cast<unsigned>(ceil_div(count, kCopyThreads)));
  const auto copy = [&](auto* from, auto* to) {
    using X = std::remove_pointer_t<decltype(from)>;
    using To = std::remove_pointer_t<decltype(to)>;
    to = context.scratch.take<To>(count);
    QENG_LAUNCH(context, (copy_elements<X, To>), grid, dim3(kCopyThreads), 0, static_cast<const X*>(p.x), to, count);
    p.x = to;
  };
  float* const f32 = nullptr;
  bf16* const b16 = nullptr;
  rounds ? copy(f32, b16) : p.x_f32 ? copy(f32, f32) : copy(b16, b16);
  return p;
}

}  // namespace

bool suits_tensor_cores(const RowProducts& p, DType dtype, const CudaContext& context) {
  return context.tensor_bf16() && whole_vectors(p, dtype);
}

void dense_products(const char* name, const RowProducts& p, const RowEnd& end, DType dtype, CudaContext& context) {
  const bool whole = whole_vectors(p, dtype);
  const RowProducts products = whole ? with_x_for(dtype, p, context) : p;
  if (suits_tensor_cores(p, dtype, context))
    return dtype == DType::bf16 && suits_row_wgmma(p, context) ? row_wgmma(name, products, end, context)
                                                               : row_mma(name, products, dtype, end, context);
  for_types(dtype, p.x_f32 && !(whole && dtype == DType::bf16), [&](auto* w, auto* x) {
    launch_dense<std::remove_pointer_t<decltype(w)>, std::remove_pointer_t<decltype(x)>>(name, products, context);
  });
}

void grouped_dense(const char* name, const GroupedProducts& g, DType dtype, CudaContext& context) {
  const bool whole = whole_vectors(g.p, dtype);
  GroupedProducts products = g;
  if (whole) products.p = with_x_for(dtype, g.p, context);
  if (suits_tensor_cores(g.p, dtype, context))
    return dtype == DType::bf16 && suits_row_wgmma(g.p, context) ? row_wgmma(name, products, context)
                                                                 : row_mma(name, products, dtype, context);
  for_types(dtype, g.p.x_f32 && !(whole && dtype == DType::bf16), [&](auto* w, auto* x) {
    launch_grouped<std::remove_pointer_t<decltype(w)>, std::remove_pointer_t<decltype(x)>>(name, products, context);
  });
}

}  // namespace qeng
