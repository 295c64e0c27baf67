// GroupedMatmul: tiles of one expert's rows each, by tensor cores or, where operands are f32 or not aligned, without.
// Stored weights are decoded first, some experts at a time. Rows apart are in grouped_rows.cu.
#include <algorithm>

#include "kernels/cuda/linear/experts.h"
#include "kernels/cuda/linear/grouped_rows.h"
#include "kernels/cuda/linear/mma_tile.h"
#include "kernels/cuda/linear/simt_tile.h"
#include "kernels/cuda/linear/stored.h"

namespace qeng {

namespace {

struct Product {
  Experts experts;
  const void *x, *w, *bias;  // w, bias: of the first expert; bias: or null
  void* y;
  int64_t n, k;
  bool tall, bias_f32, acc, clears;  // clears: rows of no expert become 0
};

// y[row, column .. column + count)
template <class Out>
__device__ void clear_row(const Product& p, int64_t row, int64_t column, int64_t count) {
  for (int64_t j = column; j < column + count && j < p.n; ++j) put(static_cast<Out*>(p.y) + row * p.n + j, 0.0f);
}

template <class In, class Out, bool kTall>
__global__ void __launch_bounds__(simt_tile::kThreads, 1)  // unasked, ptxas takes 128 registers and spills
    grouped_simt(Product p) {
  using namespace simt_tile;
  if (blockIdx.x == 0 && blockIdx.y == 0) check_experts(p.experts);
  const ExpertRows of = expert_rows<kTile>(p.experts, blockIdx.y);
  const int64_t first_n = int64_t{blockIdx.x} * kTile;
  if (of.expert == p.experts.count) {
    for (int i = static_cast<int>(threadIdx.x) / kSide; i < of.rows && p.clears; i += kThreads / kSide)
      clear_row<Out>(p, of.first + i, first_n + threadIdx.x % kSide * (kTile / kSide), kTile / kSide);
    return;
  }
  if (of.rows == 0) return;
  const Side x{static_cast<const In*>(p.x) + of.first * p.k, of.rows, p.k, 1};
  const Side w{static_cast<const In*>(p.w) + of.expert * p.n * p.k, p.n, kTall ? 1 : p.k, kTall ? p.n : 1};
  const int64_t bias = of.expert * p.n;
  const GemmResult result{static_cast<Out*>(p.y) + of.first * p.n,
                          !p.bias      ? nullptr
                          : p.bias_f32 ? static_cast<const void*>(static_cast<const float*>(p.bias) + bias)
                                       : static_cast<const void*>(static_cast<const bf16*>(p.bias) + bias),
                          p.bias_f32,
                          p.acc,
                          1.0f,
                          p.n};
  float sum[kSide][kSide] = {};
  multiply<In>(x, w, 0, first_n, p.k, sum);
  write_part<Out>(result, of.rows, p.n, 0, first_n, sum);
}

template <class Out, bool kTall>
__global__ void __launch_bounds__(mma_tile::kThreads) grouped_mma(Product p) {
  if (!ptx::from_sm80()) return;
  using namespace mma_tile;
  if (blockIdx.x == 0 && blockIdx.y == 0) check_experts(p.experts);
  const ExpertRows of = expert_rows<kRows>(p.experts, blockIdx.y);
  const int64_t column0 = int64_t{blockIdx.x} * kColumns;
  if (of.expert == p.experts.count) {
    for (int i = static_cast<int>(threadIdx.x) / kWarp; i < of.rows && p.clears; i += kThreads / kWarp)
      clear_row<Out>(p, of.first + i, column0 + threadIdx.x % kWarp * (kColumns / kWarp), kColumns / kWarp);
    return;
  }
  if (of.rows == 0) return;
  const bf16* w = static_cast<const bf16*>(p.w) + of.expert * p.n * p.k + column0 * (kTall ? 1 : p.k);
  const Side<false> left{static_cast<const bf16*>(p.x) + of.first * p.k, p.k, of.rows, p.k};
  const Side<kTall> right{w, kTall ? p.n : p.k, p.n - column0, p.k};
  Sums sums = {};
  multiply(left, right, sums);
  each_pair(sums, [&](int row, int column, float value, float next) {
    if (row >= of.rows || column0 + column >= p.n) return;
    const int64_t bias = of.expert * p.n + column0 + column;
    if (p.bias) value += read_float(p.bias, p.bias_f32, bias), next += read_float(p.bias, p.bias_f32, bias + 1);
    Out* y = static_cast<Out*>(p.y) + (of.first + row) * p.n + column0 + column;
    if (p.acc) value += to_f32(y[0]), next += to_f32(y[1]);
    if constexpr (std::is_same_v<Out, float>)
      *reinterpret_cast<float2*>(y) = make_float2(value, next);
    else
      *reinterpret_cast<uint32_t*>(y) = ptx::pack_bf16(value, next);
  });
}

bool fits_mma(const GroupedMatmul& op, const Product& p, const CudaContext& context) {
  return context.tensor_bf16() && op.x.dtype == DType::bf16 && p.n % 8 == 0 && p.k % 8 == 0 && aligned(p.x, 16) &&
         aligned(p.w, 16) && aligned(p.y, 16);
}

// Weights of x's dtype.
void multiply(const GroupedMatmul& op, const Product& p, CudaContext& context) {
  if (fits_mma(op, p, context)) {
    const dim3 grid(static_cast<unsigned>(ceil_div(p.n, mma_tile::kColumns)),
                    expert_slots<mma_tile::kRows>(op.name, p.experts));
    for_float(op.y, [&](auto* type) {
      using Out = std::remove_pointer_t<decltype(type)>;
      if (p.tall)
        QENG_LAUNCH(context, (grouped_mma<Out, true>), grid, dim3(mma_tile::kThreads), (mma_tile::kShared<false, true>),
                    p);
      else
        QENG_LAUNCH(context, (grouped_mma<Out, false>), grid, dim3(mma_tile::kThreads),
                    (mma_tile::kShared<false, false>), p);
    });
    return;
  }
  const dim3 grid(static_cast<unsigned>(ceil_div(p.n, simt_tile::kTile)),
                  expert_slots<simt_tile::kTile>(op.name, p.experts));
  CudaGemm types;
  types.in = op.x.dtype, types.out = op.y.dtype;
  for_gemm_types(types, [&](auto* in, auto* out) {
    using In = std::remove_pointer_t<decltype(in)>;
    using Out = std::remove_pointer_t<decltype(out)>;
    if (p.tall)
      QENG_LAUNCH(context, (grouped_simt<In, Out, true>), grid, dim3(simt_tile::kThreads), simt_tile::kShared, p);
    else
      QENG_LAUNCH(context, (grouped_simt<In, Out, false>), grid, dim3(simt_tile::kThreads), simt_tile::kShared, p);
  });
}

// Elements of weights that are decoded at a time: 256 MB in bf16. In the emulator few, so that tests have several.
#ifdef QENG_EMULATED
constexpr int64_t kPanel = 2048;
#else
constexpr int64_t kPanel = int64_t{1} << 27;
#endif

void multiply_decoded(const GroupedMatmul& op, const Product& p, CudaContext& context) {
  const int64_t rows = op.w.shape[1], each = rows * op.w.columns();
  const int64_t together = std::clamp<int64_t>(kPanel / each, 1, p.experts.count);
  DecodeRows decoded;
  decoded.table = op.w, decoded.columns = op.w.columns(), decoded.out = op.x.dtype;
  decoded.y = context.scratch.take(static_cast<size_t>(together * each) * dtype_size(op.x.dtype));
  for (int64_t e = 0; e < p.experts.count; e += together) {
    const int64_t count = std::min<int64_t>(together, p.experts.count - e);
    decoded.row = e * rows, decoded.rows = count * rows;
    decode_rows(op.name, decoded, context);
    Product part = p;
    part.experts.first += e, part.experts.count = static_cast<int>(count);
    part.experts.from = static_cast<int>(e), part.w = decoded.y;
    if (p.bias) part.bias = at(op.bias, e * p.n);
    part.clears = p.clears && e + count == p.experts.count;
    multiply(op, part, context);
  }
}

}  // namespace

void run(const GroupedMatmul& op, CudaContext& context) {
  if (op.y.elements() == 0) return;
  const int64_t experts = op.w.shape[0];
  const Experts rows{op.first.as<int32_t>(), static_cast<int>(experts), 0, op.x.rows(), context.fault};
  if (op.apart) return grouped_rows(op, rows, context);
  const Product p{rows,           op.x.data, op.w.data,
                  op.bias.data,   op.y.data, op.y.columns(),
                  op.x.columns(), op.tall,   op.bias.dtype == DType::f32,
                  op.acc,         !op.acc};
  if (op.w.dtype == op.x.dtype) return multiply(op, p, context);
  multiply_decoded(op, p, context);
}

}  // namespace qeng
