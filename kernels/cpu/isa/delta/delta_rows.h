// Parts that the forward and the backward loops of the gated delta rule share.
#pragma once
#include "kernels/cpu/isa/delta/delta.h"
#include "kernels/cpu/isa/simd/tile.h"

#ifdef __SSE__
#include <xmmintrin.h>
#endif

namespace qeng::isa::QENG_ISA {

// While it lives, subnormal numbers count as 0 on this thread. A head that forgets fast has decays down to nothing, and
// x86 processors take a hundred times as long for sums of subnormal numbers.
class FlushSubnormal {
 public:
#ifdef __SSE__
  FlushSubnormal() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }  // results and operands
  ~FlushSubnormal() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#elif defined(__aarch64__)  // faster there, but x86's numbers
  FlushSubnormal() : before_(__builtin_aarch64_get_fpcr()) { __builtin_aarch64_set_fpcr(before_ | 1u << 24); }
  ~FlushSubnormal() { __builtin_aarch64_set_fpcr(before_); }

 private:
  unsigned before_;
#else
  FlushSubnormal() {}
#endif
  FlushSubnormal(const FlushSubnormal&) = delete;
};

// to[0 .. n) = from[0 .. n) in f32
template <class T>
inline void widen(const T* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; i += kWidth) store(to + i, load(from + i));
}

// x becomes factor * x / sqrt(|x|^2 + eps); returns 1 / sqrt(|x|^2 + eps).
inline float normalise(float* x, int64_t n, float eps, float factor) {
  Vec squares = splat(0.0f);
  for (int64_t i = 0; i < n; i += kWidth) squares = fma(load(x + i), load(x + i), squares);
  const float inverse = 1.0f / __builtin_sqrtf(sum(squares) + eps);
  for (int64_t i = 0; i < n; i += kWidth) store(x + i, load(x + i) * splat(inverse * factor));
  return inverse;
}

inline float query_scale(int64_t key_dim) { return 1.0f / __builtin_sqrtf(static_cast<float>(key_dim)); }

// e^x of each of n numbers, n a multiple of 16.
inline void exp_of(const float* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; i += kWidth) store(y + i, exp_normal(load(x + i)));
}

inline void scale_row(float* x, float factor, int64_t n) {
  for (int64_t i = 0; i < n; i += kWidth) store(x + i, load(x + i) * splat(factor));
}

// y += factor * x
inline void add_row(float* y, float factor, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += kWidth) store(y + i, fma(splat(factor), load(x + i), load(y + i)));
}

inline float dot(const float* x, const float* y, int64_t n) {
  Vec total = splat(0.0f);
  for (int64_t i = 0; i < n; i += kWidth) total = fma(load(x + i), load(y + i), total);
  return sum(total);
}

// y[j] = factor * x[j] * e^(sum - sums[j]) for j < count, then zeros up to kChunkRows
inline void decayed_row(const float* x, float factor, float sum, const float* sums, int64_t count, float* y) {
  for (int64_t j = 0; j < kChunkRows; j += kWidth) {
    const Vec decay = exp_normal(min(splat(0.0f), splat(sum) - load(sums + j)));  // later rows' would be above 1
    store(y + j, splat(factor) * load(x + j) * decay);
  }
  for (int64_t j = count; j < kChunkRows; ++j) y[j] = 0;
}

}  // namespace qeng::isa::QENG_ISA
