// EmbeddingNoise. A block takes one row, so that its document is looked up once; the draws are those of dropout.cu.
#include "kernels/cuda/vector.h"
#include "kernels/error.h"
#include "kernels/math/bf16.h"
#include "kernels/math/embedding_noise.h"
#include "kernels/math/philox.h"
#include "kernels/view_text.h"

namespace qeng {

namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads)
    add_noise(const T* x, const int32_t* cu, T* y, const uint64_t* rng, float strength, uint32_t subsequence,
              int documents, int64_t rows, int64_t n) {
  const int64_t row = blockIdx.x;
  const float factor = noise_of_row(strength, cu, documents, row, rows, n);
  const uint64_t seed = rng[0], step = rng[1];
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    const int64_t at = row * n + i;
    const float u = philox_uniform(seed, step, subsequence, static_cast<uint64_t>(at));
    const float noisy[1] = {to_f32(x[at]) + factor * (2 * u - 1)};
    store(y + at, pack<T>(noisy));
  }
}

}  // namespace

void run(const EmbeddingNoise& op, CudaContext& context) {
  const int64_t rows = op.x.rows();
  if (rows > INT32_MAX) fail("unsupported", op.name, ": x is ", shape_text(op.x), ", more than one launch takes");
  for_float(op.x, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(context, op.name, add_noise<T>, dim3(static_cast<unsigned>(rows)), dim3(kThreads), 0, op.x.as<T>(),
           op.cu.as<int32_t>(), op.y.as<T>(), op.rng.as<uint64_t>(), op.strength, op.subsequence,
           static_cast<int>(op.cu.elements()) - 1, rows, op.x.columns());
  });
}

}  // namespace qeng
