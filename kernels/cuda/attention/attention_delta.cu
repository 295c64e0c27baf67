// delta and dsinks of AttentionGrad. delta reads o and dout once: `lanes` threads of a warp share a row of value_dim.
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/vector.h"

namespace qeng {
namespace {

constexpr int kThreads = 256;

template <class T, int n>
__global__ void __launch_bounds__(kThreads)
    delta_kernel(const T* o, const T* dout, float* delta, int64_t rows, int heads, int64_t tq, int dim, int lanes) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x, row = i / lanes;  // row: token * heads + head
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  float sum = 0;
  if (row < rows)
    for (int d = lane * n; d < dim; d += lanes * n) {
      float x[n], y[n];
      unpack(load_once<n>(o + row * dim + d), x);
      unpack(load<n>(dout + row * dim + d), y);
      for (int j = 0; j < n; ++j) sum = fmaf(x[j], y[j], sum);
    }
  for (int offset = lanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(kAllLanes, sum, offset);
  if (row < rows && lane == 0) delta[row % heads * tq + row / heads] = sum;
}

// dsinks[h] (+)= -sum_t exp(sinks[h] - lse[h, t]) delta[h, t]: a block a head, in an order that only tq sets.
__global__ void __launch_bounds__(kThreads) dsinks_kernel(const float* sinks, const float* lse, const float* delta,
                                                          float* dsinks, int64_t tq, bool accumulate) {
  float* partials = reinterpret_cast<float*>(shared_memory());
  const int thread = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.x);
  const float sink = sinks[head];
  float sum = 0;
  for (int64_t t = thread; t < tq; t += kThreads)
    sum = fmaf(ptx::exp2_approx((sink - lse[head * tq + t]) * kLog2e), delta[head * tq + t], sum);
  sum = warp_sum(sum);
  if (thread % kWarp == 0) partials[thread / kWarp] = sum;
  __syncthreads();
  if (thread != 0) return;
  float total = accumulate ? dsinks[head] : 0.0f;
  for (int w = 0; w < kThreads / kWarp; ++w) total -= partials[w];
  dsinks[head] = total;
}

template <class T, int n>
void launch_delta(const AttentionGrad& op, const AttentionShape& shape, CudaContext& context) {
  const int64_t rows = op.o.rows();
  int lanes = 1;
  while (lanes < kWarp && lanes * n < shape.value_dim) lanes *= 2;
  QENG_LAUNCH(context, (delta_kernel<T, n>), dim3(static_cast<unsigned>(ceil_div(rows * lanes, kThreads))),
              dim3(kThreads), 0, op.o.as<T>(), op.dout.as<T>(), op.delta.as<float>(), rows, shape.heads, shape.tq,
              shape.value_dim, lanes);
}

}  // namespace

void attention_delta(const AttentionGrad& op, const AttentionShape& shape, CudaContext& context) {
  for_float(op.o, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int n = kVector<T>;
    if (shape.value_dim % n == 0 && aligned_for(n, op.o, op.dout))
      launch_delta<T, n>(op, shape, context);
    else
      launch_delta<T, 1>(op, shape, context);
  });
  if (op.dsinks)
    QENG_LAUNCH(context, dsinks_kernel, dim3(static_cast<unsigned>(shape.heads)), dim3(kThreads),
                kThreads / kWarp * sizeof(float), op.sinks.as<float>(), op.lse.as<float>(), op.delta.as<float>(),
                op.dsinks.as<float>(), shape.tq, op.acc_sinks);
}

}  // namespace qeng
