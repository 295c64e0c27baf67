// DoraScale: a thread for each row of the weight. Neighbouring threads read neighbouring columns of `cross`, and each
// the rank elements of its row of b, which lie in a line or two of the L1 cache; what an adapter holds is small beside
// its weight.
#include "kernels/cuda/cuda.h"
#include "kernels/math/bf16.h"

namespace qeng {

namespace {

constexpr int kThreads = 128;

template <class T>
__global__ void __launch_bounds__(kThreads)
    scale_of_rows(const float* squares, const float* magnitude, const T* b, const float* cross, float* inverse,
                  float* scale, int64_t out, int64_t rank) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= out) return;
  float sum = 0;
  for (int64_t k = 0; k < rank; ++k) sum += to_f32(b[i * rank + k]) * cross[k * out + i];
  const float length = squares[i] + sum;
  const float reciprocal = length > 0 ? 1.0f / sqrtf(length) : 0.0f;
  inverse[i] = reciprocal;
  scale[i] = magnitude[i] * reciprocal;
}

}  // namespace

void run(const DoraScale& op, CudaContext& context) {
  const int64_t out = op.b.shape[0], rank = op.b.shape[1];
  for_float(op.b, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(context, op.name, scale_of_rows<T>, dim3(static_cast<unsigned>(ceil_div(out, kThreads))), dim3(kThreads), 0,
           op.squares.as<float>(), op.magnitude.as<float>(), op.b.as<T>(), op.cross.as<float>(), op.inverse.as<float>(),
           op.scale.as<float>(), out, rank);
  });
}

}  // namespace qeng
