// RowLinear: which weights share a launch, and the rounding of x for block formats.
#include <algorithm>

#include "kernels/cuda/linear/row_end.h"
#include "kernels/cuda/vector.h"
#include "kernels/error.h"
#include "kernels/view_text.h"

namespace qeng {

namespace {

constexpr int kThreads = 128;

// pieces: warps to a row; vectors: rows of x lie at multiples of 16 bytes
template <class T>
__global__ void __launch_bounds__(kThreads)
    round_activations(const T* x, int64_t rows, int64_t k, int pieces, bool vectors, RoundedRows to) {
  ptx::begin_ahead();
  const int64_t warp = int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t row = warp / pieces, column = warp % pieces * (kWarp * kRun) + lane * kRun;
  if (row >= rows) return;
  const bool real = column < k;
  float values[kRun] = {};
  if (real) {
    if (vectors) {
      unpack(load<kRun>(x + row * k + column), values);
    } else {
#pragma unroll
      for (int i = 0; i < kRun; ++i) values[i] = to_f32(x[row * k + column + i]);
    }
  }
  round_run(values, real, row, column, k, to);
}

}  // namespace

RoundedRows take_rounded(CudaScratch& memory, int64_t rows, int64_t k, Rounding how) {
  RoundedRows rounded{how};
  // Behind the last row there is room to the end of a span, for those who read whole ones (row_tiles.cu).
  rounded.scales = memory.take<float>(rows * k / kScaleStep + kSpan / kScaleStep);
  if (how.planes) {
    const int64_t spans = rows * ceil_div(k, kSpan);
    rounded.planes = memory.take<uint8_t>(spans * kPlanes * kSpanBytes), rounded.totals = memory.take<int>(spans);
  } else {
    rounded.codes = memory.take<int8_t>(rows * k + kSpan);
    rounded.sums = memory.take<int>(rows * k / kSumStep + kSpan / kSumStep);
  }
  return rounded;
}

RoundedRows round_rows(const char* name, const View& x, Rounding how, CudaContext& context) {
  const int64_t rows = x.rows(), k = x.columns();
  const RoundedRows rounded = take_rounded(context.scratch, rows, k, how);
  const int pieces = static_cast<int>(ceil_div(k, kWarp * kRun));
  const int64_t grid = ceil_div(rows * pieces, kThreads / kWarp);
  if (grid > INT32_MAX) fail("unsupported", name, ": x is ", shape_text(x), ", more than one launch takes");
  for_float(x, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    QENG_LAUNCH_AHEAD(context, round_activations<T>, dim3(static_cast<unsigned>(grid)), dim3(kThreads), 0, x.as<T>(),
                      rows, k, pieces, aligned(x.data, 16), rounded);
  });
  return rounded;
}

Rounding rounding_of(DType dtype) {
  const bool signs = dtype == DType::one_bit || dtype == DType::ternary;
  const bool bits = dtype == DType::one_bit || dtype == DType::q1_0;
  const bool crumbs = dtype == DType::q2_0 || dtype == DType::pq2_0;
  return {signs ? blocks::kSignGroup : blocks::group_elements(dtype_info(dtype).elements), bits ? CodeOrder::bits
                                                                                           : crumbs
                                                                                               ? CodeOrder::crumbs
                                                                                               : CodeOrder::natural};
}

Rounding rounding_of(DType dtype, int64_t rows) {
  Rounding how = rounding_of(dtype);
  how.planes = dtype == DType::one_bit && rows <= kBatchRows;
  return how;
}

dim3 row_grid(const char* name, const RowProducts& p) {
  int64_t n = 0;
  for (int i = 0; i < p.count; ++i) n += p.weight[i].n;
  const int64_t blocks = ceil_div(n, kRowWarps), tiles = ceil_div(p.rows, kBatchRows);
  if (blocks > INT32_MAX || tiles > 65535)
    fail("unsupported", name, ": ", p.rows, " rows by ", n, "; cuda takes at most ", 65535 * kBatchRows, " rows");
  return dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(tiles));
}

void row_linear(const RowLinear& op, const RoundedRows& given, const RowEnd& end, CudaContext& context) {
  if (op.x.elements() == 0 && op.x.rows() == 0) return;
  std::vector<RoundedRows> rounded;  // x, in each way that a weight wants
  if (given) rounded.push_back(given);
  std::vector<bool> done(op.w.size());
  const bool all_end = std::all_of(op.w.begin(), op.w.end(), [&](const View& w) {
    return is_block(w.dtype) ? block_ends_inside(w.dtype) : context.tensor_bf16();
  });
  const RowEnd inside = all_end && ends_inside(end) ? end : RowEnd();
  for (size_t first = 0; first < op.w.size(); ++first) {
    if (done[first]) continue;
    const DType dtype = op.w[first].dtype;
    RowProducts p{};
    p.rows = op.x.rows(), p.k = op.x.columns(), p.alpha = op.alpha, p.acc = op.acc;
    p.x = op.x.data, p.x_f32 = op.x.dtype == DType::f32;
    const int64_t row_bytes = static_cast<int64_t>(dtype_bytes(dtype, p.k));
    p.vectors = row_bytes % 16 == 0;
    for (size_t i = first; i < op.w.size() && p.count < kMostWeights; ++i) {
      if (done[i] || op.w[i].dtype != dtype) continue;
      const View bias = op.bias.empty() ? View() : op.bias[i];
      p.weight[p.count++] = {op.w[i].data,
                             bias.data,
                             op.scale.empty() ? nullptr : op.scale[i].as<float>(),
                             op.y[i].data,
                             op.w[i].shape[0],
                             static_cast<int>(i),
                             bias.dtype == DType::f32,
                             op.y[i].dtype == DType::f32,
                             op.w[i].shape[0] % 8 == 0 && aligned(op.y[i].data, 16)};
      p.vectors = p.vectors && aligned(op.w[i].data, 16);
      done[i] = true;
    }
    if (!is_block(dtype)) {
      dense_products(op.name, p, inside, dtype, context);
      continue;
    }
    const Rounding how = rounding_of(dtype, p.rows);
    auto found = std::find_if(rounded.begin(), rounded.end(), [&](const RoundedRows& x) { return x.how == how; });
    if (found == rounded.end()) found = rounded.insert(found, round_rows(op.name, op.x, how, context));
    p.codes = found->codes, p.scales = found->scales, p.sums = found->sums;
    p.planes = found->planes, p.totals = found->totals;
    block_products(op.name, p, inside, dtype, context);
  }
  if (end.kind != EndKind::none && inside.kind == EndKind::none) queue_end(end, context);
}

void run(const RowLinear& op, CudaContext& context) { row_linear(op, {}, {}, context); }

}  // namespace qeng
