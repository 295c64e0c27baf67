// Sort: a block orders a row of words (kernels/math/sort_key.h) by a bitonic network, in shared memory or, where a row
// is long, in scratch.
#include "kernels/cuda/vector.h"
#include "kernels/math/sort_key.h"

namespace qeng {
namespace {

constexpr int kThreads = 512;
constexpr int64_t kSharedWords = 4096, kMostBlocks = 256;

template <class T>
__global__ void __launch_bounds__(kThreads) sort_rows(const T* x, T* y, int32_t* index, int64_t rows, int64_t n,
                                                      int64_t k, int64_t padded, bool descending, uint64_t* memory) {
  uint64_t* words = memory ? memory + int64_t{blockIdx.x} * padded : reinterpret_cast<uint64_t*>(shared_memory());
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    for (int64_t i = threadIdx.x; i < padded; i += kThreads) {
      uint64_t word = ~uint64_t{0};
      if (i < n) {
        if constexpr (std::is_same_v<T, int32_t>)
          word = sort_word(sort_key(x[r * n + i]), i, descending);
        else
          word = sort_word(sort_key(to_f32(x[r * n + i])), i, descending);
      }
      words[i] = word;
    }
    __syncthreads();
    for (int64_t run = 2; run <= padded; run *= 2)
      for (int64_t step = run / 2; step > 0; step /= 2) {
        for (int64_t pair = threadIdx.x; pair < padded / 2; pair += kThreads) {
          const int64_t a = pair / step * 2 * step + pair % step, b = a + step;
          const bool up = (a & run) == 0;
          const uint64_t low = words[a], high = words[b];
          if ((low > high) == up) words[a] = high, words[b] = low;
        }
        __syncthreads();
      }
    for (int64_t i = threadIdx.x; i < k; i += kThreads) {
      const int32_t column = sort_column(words[i]);
      index[r * k + i] = column;
      y[r * k + i] = x[r * n + column];
    }
    __syncthreads();
  }
}

template <class T>
void sort(const Sort& op, CudaContext& context) {
  const int64_t rows = op.x.shape[0], n = op.x.shape[1];
  int64_t padded = 1;
  while (padded < n) padded *= 2;
  const bool shared = padded <= kSharedWords;
  const int64_t blocks = shared ? rows : std::min(rows, kMostBlocks);
  uint64_t* memory = shared ? nullptr : context.scratch.take<uint64_t>(blocks * padded);
  launch(context, op.name, sort_rows<T>, dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
         shared ? static_cast<size_t>(padded) * sizeof(uint64_t) : 0, op.x.as<T>(), op.y.as<T>(),
         op.index.as<int32_t>(), rows, n, op.y.shape[1], padded, op.descending, memory);
}

}  // namespace

void run(const Sort& op, CudaContext& context) {
  if (op.y.elements() == 0) return;
  switch (op.x.dtype) {
    case DType::f32: return sort<float>(op, context);
    case DType::bf16: return sort<bf16>(op, context);
    case DType::f16: return sort<f16>(op, context);
    default: return sort<int32_t>(op, context);
  }
}

}  // namespace qeng
