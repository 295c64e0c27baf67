// CumulativeSum: a block takes a row in stretches of its threads, with what came before carried on.
#include "kernels/cuda/vector.h"

namespace qeng {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

template <class T>
__global__ void __launch_bounds__(kThreads) sum_rows(const T* x, T* y, int64_t n, bool reverse) {
  float* totals = reinterpret_cast<float*>(shared_memory());  // [kWarps]
  const int lane = static_cast<int>(threadIdx.x % kWarp), warp = static_cast<int>(threadIdx.x / kWarp);
  const int64_t row = int64_t{blockIdx.x} * n;
  float carried = 0;
  for (int64_t base = 0; base < n; base += kThreads) {
    const int64_t j = base + threadIdx.x, i = row + (reverse ? n - 1 - j : j);
    float sum = j < n ? to_f32(x[i]) : 0.0f;
    for (int step = 1; step < kWarp; step *= 2) {
      const float before = __shfl_up_sync(kAllLanes, sum, static_cast<unsigned>(step));
      if (lane >= step) sum += before;
    }
    if (lane == kWarp - 1) totals[warp] = sum;
    __syncthreads();
    float before = carried;
    for (int w = 0; w < kWarps; ++w) {
      if (w == warp && j < n) put(y + i, before + sum);
      before += totals[w];
    }
    carried = before;
    __syncthreads();
  }
}

template <class T>
void sum(const CumulativeSum& op, CudaContext& context) {
  if (op.x.elements() == 0) return;
  launch(context, op.name, sum_rows<T>, dim3(static_cast<unsigned>(op.x.shape[0])), dim3(kThreads),
         kWarps * sizeof(float), op.x.as<T>(), op.y.as<T>(), op.x.shape[1], op.reverse);
}

}  // namespace

void run(const CumulativeSum& op, CudaContext& context) {
  if (op.x.dtype == DType::f16) return sum<f16>(op, context);
  for_float(op.x, [&](auto* type) { sum<std::remove_pointer_t<decltype(type)>>(op, context); });
}

}  // namespace qeng
