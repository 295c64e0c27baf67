// delta of AttentionGrad: reads o and dout once. `lanes` threads of a warp share a row of head_dim.
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

template <class T, int n>
void launch_delta(const AttentionGrad& op, const AttentionShape& shape, CudaContext& context) {
  const int64_t rows = op.o.rows();
  int lanes = 1;
  while (lanes < kWarp && lanes * n < shape.dim) lanes *= 2;
  QENG_LAUNCH(context, (delta_kernel<T, n>), dim3(static_cast<unsigned>(ceil_div(rows * lanes, kThreads))),
              dim3(kThreads), 0, op.o.as<T>(), op.dout.as<T>(), op.delta.as<float>(), rows, shape.heads, shape.tq,
              shape.dim, lanes);
}

}  // namespace

void attention_delta(const AttentionGrad& op, const AttentionShape& shape, CudaContext& context) {
  for_float(op.o, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int n = kVector<T>;
    if (shape.dim % n == 0 && aligned_for(n, op.o, op.dout))
      launch_delta<T, n>(op, shape, context);
    else
      launch_delta<T, 1>(op, shape, context);
  });
}

}  // namespace qeng
