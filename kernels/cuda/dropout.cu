// Dropout. The ten rounds of Philox are 40 instructions for four elements, the counters of a thread sharing the keys;
// with the rest of the kernel 4.4 for each byte of bf16 moved, where an H200 can issue 6.9 while it moves one.
#include <cmath>

#include "kernels/cuda/vector.h"
#include "kernels/math/philox.h"

namespace qeng {

namespace {

template <class T>
struct Thinned {
  static constexpr int kWidth = kVector<T>, kInputs = 1;
  const T* x;
  T* y;
  const uint64_t* rng;
  uint64_t seed, step;  // of rng
  uint32_t subsequence, threshold;
  float scale;
  __device__ void begin() { seed = rng[0], step = rng[1]; }
  __device__ Philox draw(int64_t i) const {
    return philox4x32(philox_counter(step, subsequence, static_cast<uint64_t>(i)), static_cast<uint32_t>(seed),
                      static_cast<uint32_t>(seed >> 32));
  }
  template <int n>
  __device__ Pack<T, n> read(int64_t i) const {
    return load_once<n>(x + i);
  }
  template <int n>
  __device__ void write(int64_t i, const Pack<T, n>& packed) const {
    float value[n];
    unpack(packed, value);
    if constexpr (n == 1) {
      const Philox drawn = draw(i);
      const uint32_t low = i % 2 ? drawn.word[1] : drawn.word[0], high = i % 2 ? drawn.word[3] : drawn.word[2];
      value[0] = (i % 4 < 2 ? low : high) >= threshold ? value[0] * scale : 0.0f;
    } else {
      static_assert(n % 4 == 0);  // an access starts at a Philox counter
      for (int k = 0; k < n; k += 4) {
        const Philox drawn = draw(i + k);
        for (int j = 0; j < 4; ++j) value[k + j] = drawn.word[j] >= threshold ? value[k + j] * scale : 0.0f;
      }
    }
    store(y + i, pack<T>(value));
  }
};

}  // namespace

void run(const Dropout& op, CudaContext& context) {
  // uniform_of(word) >= p, as integers: its 24 bits are at least p 2^24
  const uint32_t threshold = static_cast<uint32_t>(std::ceil(static_cast<double>(op.p) * 16777216)) << 8;
  for_float(op.x, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const Thinned<T> thinned{op.x.as<T>(),   op.y.as<T>(), op.rng.as<uint64_t>(), 0, 0,
                             op.subsequence, threshold,    1.0f / (1.0f - op.p)};
    launch_elementwise(context, op.name, thinned, op.x.elements(), aligned_for(thinned.kWidth, op.x, op.y));
  });
}

}  // namespace qeng
