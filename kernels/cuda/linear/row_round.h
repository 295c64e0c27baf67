// How a warp rounds a run of a row of x to int8 (kernels/math/blocks/activations.h): round_rows, and kernels that end with
// what makes x (row_end.h).
#pragma once
#include "kernels/cuda/linear/row_linear.h"
#include "kernels/math/blocks/activations.h"

namespace qeng {

constexpr int kRun = 8, kWarpRun = kWarp * kRun;  // elements to a lane, and to a warp: the largest group

// The place of code e, counted from a multiple of 32.
__device__ inline int64_t code_place(int64_t e, CodeOrder order) {
  const int within = static_cast<int>(e % 32);
  switch (order) {
    case CodeOrder::natural: return e;
    case CodeOrder::crumbs: return e - within + within / 16 * 16 + within % 4 * 4 + within % 16 / 4;
    default: return e - within + within % 8 * 4 + within / 8;
  }
}

// Elements column .. column + kRun of row `row`, which has k, by all lanes of a warp, each with the run after that of the
// lane before. real: whether the lane has some; else its values are zeros.
__device__ inline void round_run(const float (&values)[kRun], bool real, int64_t row, int64_t column, int64_t k,
                                 const RoundedRows& to) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, group = to.how.group;
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
  const int64_t first = row * k + column;
  if (to.how.planes) {
    const int64_t span = row * ((k + kSpan - 1) / kSpan) + column / kSpan;
#pragma unroll
    for (int plane = 0; plane < kPlanes; ++plane) {
      unsigned byte = 0;
#pragma unroll
      for (int i = 0; i < kRun; ++i) byte |= (static_cast<unsigned>(rounded[i]) >> plane & 1u) << i;
      to.planes[(span * kPlanes + plane) * kSpanBytes + lane] = static_cast<uint8_t>(byte);
    }
    const int total = warp_sum(sum);
    if (lane == 0) to.totals[span] = total;
    if (real && column % kScaleStep == 0)
      to.scales[first / kScaleStep] = blocks::activation_scale(rounding, step, group);
    return;
  }
  sum += __shfl_xor_sync(kAllLanes, sum, 1);
  if (!real) return;
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

}  // namespace qeng
