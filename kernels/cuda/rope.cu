// Rotary positions. A block takes a few tokens: its threads compute the tokens' sines and cosines once, into shared
// memory, then rotate all heads of x and x2, 16 bytes of each half of a head at a time, or 32 of neighbours.
#include <algorithm>

#include "kernels/cuda/turn.h"
#include "kernels/cuda/vector.h"

namespace qeng {
namespace {

constexpr int kThreads = 256;

template <class T>
struct Heads {
  const T* x;
  T* y;
  int count;
};

template <class T, int n, bool kInterleaved>
__global__ void __launch_bounds__(kThreads)
    rotate_heads(Heads<T> first, Heads<T> second, const int32_t* positions, const float* inv_freq, int64_t tokens,
                 int tokens_a_block, int dim, int half, float scale, bool inverse) {
  float *cosines = reinterpret_cast<float*>(shared_memory()), *sines = cosines + tokens_a_block * half;
  const int64_t start = int64_t{blockIdx.x} * tokens_a_block;
  const int count = static_cast<int>(tokens - start < tokens_a_block ? tokens - start : tokens_a_block);
  for (int k = static_cast<int>(threadIdx.x); k < count * half; k += kThreads) {
    const float angle = static_cast<float>(positions[start + k / half]) * inv_freq[k % half];
    float s, c;
    sin_cos(inverse ? -angle : angle, &s, &c);
    cosines[k] = scale * c, sines[k] = scale * s;
  }
  __syncthreads();

  // A row is one head of one token: half / n pairs of accesses, then what is not rotated.
  const int pairs = half / n, accesses = pairs + (dim - 2 * half) / n, heads = first.count + second.count;
  for (int k = static_cast<int>(threadIdx.x); k < count * heads * accesses; k += kThreads) {
    const int access = k % accesses, row = k / accesses, token = row / heads, head = row % heads;
    const bool is_first = head < first.count;
    const T* x = is_first ? first.x : second.x;
    T* y = is_first ? first.y : second.y;
    const int64_t place =
        ((start + token) * (is_first ? first.count : second.count) + (is_first ? head : head - first.count)) * dim;
    if (access >= pairs) {
      const int64_t i = place + 2 * half + (access - pairs) * n;
      store(y + i, load<n>(x + i));
      continue;
    }
    const int i = access * n, left = kInterleaved ? 2 * i : i, right = kInterleaved ? left + n : half + i;
    float pair[2][n], c[n], s[n], rotated[2][n];
    unpack(load<n>(x + place + left), pair[0]);
    unpack(load<n>(x + place + right), pair[1]);
    unpack(load<n>(cosines + token * half + i), c);
    unpack(load<n>(sines + token * half + i), s);
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const int low = kInterleaved ? 2 * j : j, high = kInterleaved ? low + 1 : n + j;
      const float a = pair[low / n][low % n], b = pair[high / n][high % n];
      rotated[low / n][low % n] = turned_low(a, b, c[j], s[j]);
      rotated[high / n][high % n] = turned_high(a, b, c[j], s[j]);
    }
    store(y + place + left, pack<T>(rotated[0]));
    store(y + place + right, pack<T>(rotated[1]));
  }
}

}  // namespace

void run(const Rope& op, CudaContext& context) {
  const int64_t tokens = op.x.shape[0], dim = op.x.shape[2], half = op.inv_freq.elements();
  // As many angles as threads; with heads of 128 and more, that is four tokens and fewer, whose data pass the registers
  // in a few turns.
  const int64_t tokens_a_block = half ? std::clamp<int64_t>(kThreads / half, 1, 16) : 16;
  for_float(op.x, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int width = kVector<T>;
    const bool vectors = dim % width == 0 && half % width == 0 && aligned_for(width, op.x, op.y, op.x2, op.y2);
    const Heads<T> first{op.x.as<T>(), op.y.as<T>(), static_cast<int>(op.x.shape[1])};
    const Heads<T> second{op.x2.as<T>(), op.y2.as<T>(), op.x2 ? static_cast<int>(op.x2.shape[1]) : 0};
    const auto kernel = op.interleaved ? (vectors ? rotate_heads<T, width, true> : rotate_heads<T, 1, true>)
                                       : (vectors ? rotate_heads<T, width, false> : rotate_heads<T, 1, false>);
    launch(context, op.name, kernel, dim3(static_cast<unsigned>(ceil_div(tokens, tokens_a_block))), dim3(kThreads),
           sizeof(float) * static_cast<size_t>(2 * tokens_a_block * half), first, second, op.positions.as<int32_t>(),
           op.inv_freq.as<float>(), tokens, static_cast<int>(tokens_a_block), static_cast<int>(dim),
           static_cast<int>(half), op.scale, op.inverse);
  });
}

}  // namespace qeng
