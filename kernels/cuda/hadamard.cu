// Walsh-Hadamard transforms of blocks, in shared memory: a thread block takes a tile of whole transforms, and a thread
// does three levels of butterflies on eight values at a time in registers.
#include <algorithm>

#include "kernels/cuda/vector.h"
#include "kernels/error.h"

namespace qeng {

namespace {

constexpr int kThreads = 256;
constexpr int kTile = 2048;        // elements, or one transform where that is longer: one round of eight a thread
constexpr int kMostBlock = 16384;  // 64 KB of shared memory, which every supported GPU has

// Where element i lies in shared memory: each row of 32 has its columns in another order, so that what a warp touches
// at once lies in 32 banks on every level. place(a ^ b) = place(a) ^ place(b).
__device__ inline int place(int i) { return i ^ (i >> 5 & 7) ^ (i >> 2 & 24) ^ (i >> 4 & 8); }

// Levels h, 2h, .. of kRadix: on values whose indices differ by h, kRadix of them to a thread.
template <int kRadix>
__device__ void butterflies(float* values, int h, int tile) {
  const int one = place(h), two = place(2 * h), four = place(4 * h);
  for (int g = static_cast<int>(threadIdx.x); g < tile / kRadix; g += kThreads) {
    const int within = g & (h - 1), first = place((g - within) * kRadix + within);
    const auto value = [&](int r) -> float& {
      return values[first ^ (r & 1 ? one : 0) ^ (r & 2 ? two : 0) ^ (r & 4 ? four : 0)];
    };
    float v[kRadix];
#pragma unroll
    for (int r = 0; r < kRadix; ++r) v[r] = value(r);
#pragma unroll
    for (int step = 1; step < kRadix; step *= 2)
#pragma unroll
      for (int r = 0; r < kRadix; ++r)
        if (!(r & step)) {
          const float a = v[r], b = v[r + step];
          v[r] = a + b, v[r + step] = a - b;
        }
#pragma unroll
    for (int r = 0; r < kRadix; ++r) value(r) = v[r];
  }
}

// n: elements to an access. tile: a multiple of block, and of 8. signs: or null.
template <class T, int n>
__global__ void __launch_bounds__(kThreads)
    hadamard(const T* x, const float* signs, T* y, int64_t count, int dim, int block, int tile, bool inverse) {
  float* values = reinterpret_cast<float*>(shared_memory());
  const int64_t begin = int64_t{blockIdx.x} * tile;
  const int column = static_cast<int>(begin % dim);
  const int live = static_cast<int>(count - begin < tile ? count - begin : tile);
  for (int i = static_cast<int>(threadIdx.x) * n; i < tile; i += kThreads * n) {
    float in[n] = {};
    if (i < live) unpack(load<n>(x + begin + i), in);
    for (int k = 0; k < n; ++k)
      values[place(i + k)] = signs && !inverse && i < live ? in[k] * signs[(column + i + k) % dim] : in[k];
  }
  for (int h = 1; h < block;) {
    __syncthreads();
    if (block / h >= 8)
      butterflies<8>(values, h, tile), h *= 8;
    else if (block / h == 4)
      butterflies<4>(values, h, tile), h *= 4;
    else
      butterflies<2>(values, h, tile), h *= 2;
  }
  __syncthreads();
  const float factor = 1.0f / sqrtf(static_cast<float>(block));
  for (int i = static_cast<int>(threadIdx.x) * n; i < live; i += kThreads * n) {
    float out[n];
    for (int k = 0; k < n; ++k) {
      out[k] = values[place(i + k)] * factor;
      if (signs && inverse) out[k] *= signs[(column + i + k) % dim];
    }
    store(y + begin + i, pack<T>(out));
  }
}

}  // namespace

void run(const Hadamard& op, CudaContext& context) {
  if (op.block > kMostBlock)
    fail("unsupported", op.name, ": block is ", op.block, "; cuda takes at most ", kMostBlock, ", the cpu backend any");
  const int64_t count = op.x.elements();
  const int tile = std::max(kTile, op.block);
  const size_t shared = static_cast<size_t>(tile) * sizeof(float);
  for_float(op.x, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int width = kVector<T>;
    const bool vectors = count % width == 0 && aligned_for(width, op.x, op.y);
    launch(context, op.name, vectors ? hadamard<T, width> : hadamard<T, 1>,
           dim3(static_cast<unsigned>(ceil_div(count, tile))), dim3(kThreads), shared, op.x.as<T>(),
           op.signs.as<float>(), op.y.as<T>(), count, static_cast<int>(op.x.columns()), op.block, tile, op.inverse);
  });
}

}  // namespace qeng
