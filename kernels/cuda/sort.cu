// Sort: a block orders a row of words (kernels/math/sort_key.h) by a bitonic network, in shared memory or, where a row
// is long, in scratch. Where few of a long row are wanted, blocks order segments of it, and then segments of what was
// first in those, until one is left.
#include <algorithm>

#include "kernels/cuda/vector.h"
#include "kernels/math/sort_key.h"

namespace qeng {
namespace {

constexpr int kThreads = 512;
constexpr int64_t kSharedWords = 4096, kMostBlocks = 256;

template <class T>
__device__ inline uint64_t word_of(const T* x, int64_t column, bool descending) {
  if constexpr (std::is_same_v<T, int32_t>)
    return sort_word(sort_key(x[column]), column, descending);
  else
    return sort_word(sort_key(to_f32(x[column])), column, descending);
}
// Where word i lies: every second run of 16 is the other way round, so that of pairs 1 to 8 words apart no two lie in
// the same banks of shared memory. place(a ^ b) = place(a) ^ place(b).
__device__ inline int64_t place(int64_t i) { return i ^ (i & 16 ? 15 : 0); }
// By all threads of the block; padded: a power of two.
__device__ inline void sort_words(uint64_t* words, int64_t padded) {
  for (int64_t run = 2; run <= padded; run *= 2)
    for (int64_t step = run / 2; step > 0; step /= 2) {
      for (int64_t pair = threadIdx.x; pair < padded / 2; pair += kThreads) {
        const int64_t first = 2 * pair - (pair & (step - 1)), a = place(first), b = a ^ place(step);
        const bool up = (first & run) == 0;
        const uint64_t low = words[a], high = words[b];
        if ((low > high) == up) words[a] = high, words[b] = low;
      }
      __syncthreads();
    }
}

template <class T>
__global__ void __launch_bounds__(kThreads) sort_rows(const T* x, T* y, int32_t* index, int64_t rows, int64_t n,
                                                      int64_t k, int64_t padded, bool descending, uint64_t* memory) {
  uint64_t* words = memory ? memory + int64_t{blockIdx.x} * padded : reinterpret_cast<uint64_t*>(shared_memory());
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    for (int64_t i = threadIdx.x; i < padded; i += kThreads) {
      words[place(i)] = i < n ? word_of(x + r * n, i, descending) : ~uint64_t{0};
    }
    __syncthreads();
    sort_words(words, padded);
    for (int64_t i = threadIdx.x; i < k; i += kThreads) {
      const int32_t column = sort_column(words[place(i)]);
      index[r * k + i] = column;
      y[r * k + i] = x[r * n + column];
    }
    __syncthreads();
  }
}

// A block orders a segment of kSharedWords of row blockIdx.y, of its n elements or, where there are some, of `from`, n
// words a row, and writes the first k words to `to`, [rows, segments, k].
template <class T>
__global__ void __launch_bounds__(kThreads)
    sort_segments(const T* x, const uint64_t* from, int64_t n, int64_t k, bool descending, uint64_t* to) {
  ptx::begin_ahead();
  auto* words = reinterpret_cast<uint64_t*>(shared_memory());
  const int64_t row = blockIdx.y, begin = int64_t{blockIdx.x} * kSharedWords;
  for (int64_t i = threadIdx.x; i < kSharedWords; i += kThreads) {
    const int64_t at = begin + i;
    words[place(i)] = at >= n ? ~uint64_t{0} : from ? from[row * n + at] : word_of(x + row * n, at, descending);
  }
  __syncthreads();
  sort_words(words, kSharedWords);
  for (int64_t i = threadIdx.x; i < k; i += kThreads) to[(row * gridDim.x + blockIdx.x) * k + i] = words[place(i)];
}
template <class T>
__global__ void __launch_bounds__(kThreads)
    take_sorted(const T* x, const uint64_t* words, int64_t n, int64_t k, T* y, int32_t* index) {
  ptx::begin_ahead();
  for (int64_t i = threadIdx.x; i < k; i += kThreads) {
    const int64_t at = blockIdx.x * k + i;
    index[at] = sort_column(words[at]);
    y[at] = x[blockIdx.x * n + index[at]];
  }
}

constexpr int64_t kMostFirst = 1024;  // a quarter of a segment, so that each turn leaves a quarter

template <class T>
void sort_first(const Sort& op, CudaContext& context) {
  const int64_t rows = op.x.shape[0], n = op.x.shape[1], k = op.y.shape[1];
  const uint64_t* from = nullptr;
  for (int64_t left = n; !from || left > k;) {
    const int64_t segments = ceil_div(left, kSharedWords);
    auto* to = context.scratch.take<uint64_t>(rows * segments * k);
    QENG_LAUNCH_AHEAD(context, sort_segments<T>, dim3(static_cast<unsigned>(segments), static_cast<unsigned>(rows)),
                      dim3(kThreads), kSharedWords * sizeof(uint64_t), op.x.as<T>(), from, left, k, op.descending, to);
    from = to, left = segments * k;
  }
  QENG_LAUNCH_AHEAD(context, take_sorted<T>, dim3(static_cast<unsigned>(rows)), dim3(kThreads), 0, op.x.as<T>(), from,
                    n, k, op.y.as<T>(), op.index.as<int32_t>());
}

template <class T>
void sort(const Sort& op, CudaContext& context) {
  if (op.x.shape[1] > kSharedWords && op.y.shape[1] <= kMostFirst && op.x.shape[0] <= 65535)
    return sort_first<T>(op, context);
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
