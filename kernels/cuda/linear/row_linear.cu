// RowLinear: which weights share a launch, and the rounding of x for block formats.
#include "kernels/cuda/linear/row_linear.h"
#include "kernels/cuda/vector.h"
#include "kernels/math/blocks/activations.h"

namespace qeng {

namespace {

constexpr int kThreads = 128, kRun = 8;  // elements to a lane, 256 to a warp: the largest group

// The place of code e, counted from a multiple of 32.
__device__ inline int64_t code_place(int64_t e, CodeOrder order) {
  const int within = static_cast<int>(e % 32);
  switch (order) {
    case CodeOrder::natural: return e;
    case CodeOrder::crumbs: return e - within + within / 16 * 16 + within % 4 * 4 + within % 16 / 4;
    default: return e - within + within % 8 * 4 + within / 8;
  }
}

// pieces: warps to a row; vectors: rows of x lie at multiples of 16 bytes
template <class T>
__global__ void __launch_bounds__(kThreads)
    round_activations(const T* x, int64_t rows, int64_t k, int pieces, bool vectors, RoundedRows to) {
  const int group = to.how.group;
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
  uint32_t largest = 0;  // as bits, of which those of a NaN are the largest
#pragma unroll
  for (int i = 0; i < kRun; ++i) largest = max(largest, bits_of(values[i]) & 0x7fffffffu);
  for (int step = group / kRun / 2; step > 0; step /= 2)
    largest = max(largest, __shfl_xor_sync(kAllLanes, largest, step));
  const blocks::ActivationGroup rounding = blocks::activation_group(float_of(largest));
  int counts[kRun];
  blocks::ActivationFit fit;
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    counts[i] = blocks::activation_count(values[i], rounding.inverse);
    blocks::add_to_fit(fit, counts[i]);
  }
#pragma unroll
  for (int i = 0; i < blocks::kSteps; ++i)
    for (int step = group / kRun / 2; step > 0; step /= 2) {
      fit.squares[i] += __shfl_xor_sync(kAllLanes, fit.squares[i], step);
      fit.products[i] += __shfl_xor_sync(kAllLanes, fit.products[i], step);
    }
  const blocks::ActivationStep step = blocks::best_step(fit);
  int rounded[kRun], sum = 0;
#pragma unroll
  for (int i = 0; i < kRun; ++i) sum += rounded[i] = blocks::activation_code(counts[i], step.index);
  sum += __shfl_xor_sync(kAllLanes, sum, 1);
  if (!real) return;
  const int64_t first = row * k + column;
  if (to.how.order == CodeOrder::natural) {
    uint32_t packed[2] = {};
#pragma unroll
    for (int i = 0; i < kRun; ++i) packed[i / 4] |= (static_cast<uint32_t>(rounded[i]) & 255u) << (i % 4 * 8);
    *reinterpret_cast<uint2*>(to.codes + first) = make_uint2(packed[0], packed[1]);
  } else {
#pragma unroll
    for (int i = 0; i < kRun; ++i)
      to.codes[row * k + code_place(column + i, to.how.order)] = static_cast<int8_t>(rounded[i]);
  }
  if (lane % 2 == 0) to.sums[first / kSumStep] = sum;
  if (column % kScaleStep == 0) to.scales[first / kScaleStep] = blocks::activation_scale(rounding, step, group);
}

}  // namespace

RoundedRows round_rows(const char* name, const View& x, Rounding how, CudaContext& context) {
  const int64_t rows = x.rows(), k = x.columns();
  const RoundedRows rounded{how, context.scratch.take<int8_t>(rows * k),
                            context.scratch.take<float>(rows * k / kScaleStep),
                            context.scratch.take<int>(rows * k / kSumStep)};
  const int pieces = static_cast<int>(ceil_div(k, kWarp * kRun));
  const int64_t grid = ceil_div(rows * pieces, kThreads / kWarp);
  if (grid > INT32_MAX) fail("unsupported", name, ": x is ", shape_text(x), ", more than one launch takes");
  for_float(x, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    QENG_LAUNCH(context, round_activations<T>, dim3(static_cast<unsigned>(grid)), dim3(kThreads), 0, x.as<T>(), rows, k,
                pieces, aligned(x.data, 16), rounded);
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

dim3 row_grid(const char* name, const RowProducts& p) {
  int64_t n = 0;
  for (int i = 0; i < p.count; ++i) n += p.weight[i].n;
  const int64_t blocks = ceil_div(n, kRowWarps), tiles = ceil_div(p.rows, kBatchRows);
  if (blocks > INT32_MAX || tiles > 65535)
    fail("unsupported", name, ": ", p.rows, " rows by ", n, "; cuda takes at most ", 65535 * kBatchRows, " rows");
  return dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(tiles));
}

void run(const RowLinear& op, CudaContext& context) {
  if (op.x.elements() == 0 && op.x.rows() == 0) return;
  std::vector<RoundedRows> rounded;  // x, in each way that a weight wants
  std::vector<bool> done(op.w.size());
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
                             bias.dtype == DType::f32,
                             op.y[i].dtype == DType::f32,
                             op.w[i].shape[0] % 8 == 0 && aligned(op.y[i].data, 16)};
      p.vectors = p.vectors && aligned(op.w[i].data, 16);
      done[i] = true;
    }
    if (!is_block(dtype)) {
      dense_products(op.name, p, dtype, context);
      continue;
    }
    const Rounding how = rounding_of(dtype);
    auto found = std::find_if(rounded.begin(), rounded.end(), [&](const RoundedRows& x) { return x.how == how; });
    if (found == rounded.end()) found = rounded.insert(found, round_rows(op.name, op.x, how, context));
    p.codes = found->codes, p.scales = found->scales, p.sums = found->sums;
    block_products(op.name, p, dtype, context);
  }
}

}  // namespace qeng
