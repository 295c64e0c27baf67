// The Walsh-Hadamard transform of a run of floats, in place, by log2(n) rounds of sums and differences.
#include "kernels/cpu/isa/simd/simd.h"

namespace qeng::isa::QENG_ISA {
namespace {

template <int number>
struct Number {
  static constexpr int value = number;
};

void multiply(float* x, const float* y, int64_t n) {
  for_lanes(n, [=](int64_t i, int64_t lanes) { store(x + i, load(x + i, lanes) * load(y + i, lanes), lanes); });
}

// A round of sums and differences of lanes that are `half` apart.
template <int half>
inline Vec add_lanes(Vec a) {
  alignas(64) static constexpr struct Factors {
    float of[16] = {};
    constexpr Factors() {
      for (int i = 0; i < 16; ++i) of[i] = i & half ? -1.0f : 1.0f;
    }
  } factors;
  return fma(a, load(factors.of), exchange<half>(a));
}
// H x of kVecs vectors, without the factor.
template <int kVecs>
inline void transform(Vec* v) {
  for (int i = 0; i < kVecs; ++i) {
    if constexpr (kWidth > 1) v[i] = add_lanes<4>(add_lanes<2>(add_lanes<1>(v[i])));
    if constexpr (kWidth > 8) v[i] = add_lanes<8>(v[i]);
  }
#pragma GCC unroll 8
  for (int half = 1; half < kVecs; half *= 2)
    for (int i = 0; i < kVecs; ++i)
      if (!(i & half)) {
        const Vec a = v[i], b = v[i + half];
        v[i] = a + b, v[i + half] = a - b;
      }
}

template <class T, int kVecs>
void turn(const T* x, int64_t x_stride, int64_t rows, const float* signs, const float* bias, T* y, int64_t y_stride) {
  constexpr int kDim = kVecs * kWidth;
  const Vec factor = splat(1.0f / kDim);
  for (int64_t r = 0; r < rows; ++r, x += x_stride, y += y_stride) {
    Vec v[kVecs];
    for (int i = 0; i < kVecs; ++i) v[i] = load(x + i * kWidth) * load(signs + i * kWidth);
    transform<kVecs>(v);
    for (int i = 0; i < kVecs; ++i) v[i] = v[i] * load(signs + kDim + i * kWidth);
    transform<kVecs>(v);
    for (int i = 0; i < kVecs; ++i) {
      v[i] = v[i] * (load(signs + 2 * kDim + i * kWidth) * factor);
      store(y + i * kWidth, bias ? v[i] + load(bias + i * kWidth) : v[i]);
    }
  }
}
void turn_rows(Float type, const void* x, int64_t x_stride, int64_t rows, int64_t dim, const float* signs,
               const float* bias, void* y, int64_t y_stride) {
  for_type(type, [&](auto tag) {
    using T = decltype(tag);
    const auto of = [&](auto dims) {
      turn<T, dims.value / kWidth>(static_cast<const T*>(x), x_stride, rows, signs, bias, static_cast<T*>(y), y_stride);
    };
    switch (dim) {
      case 16: return of(Number<16>());
      case 32: return of(Number<32>());
      case 64: return of(Number<64>());
      case 128: return of(Number<128>());
      default: return of(Number<256>());
    }
  });
}

// Rounds are exact but for the rounding of sums; the factor 1 / sqrt(n) comes last.
void hadamard(float* x, int64_t n) {
  for (int64_t half = 1; half < n; half *= 2)
    for (int64_t first = 0; first < n; first += 2 * half) {
      float *a = x + first, *b = a + half;
      if (half < kWidth) {
        for (int64_t i = 0; i < half; ++i) {
          const float sum = a[i] + b[i], difference = a[i] - b[i];
          a[i] = sum, b[i] = difference;
        }
        continue;
      }
      for (int64_t i = 0; i < half; i += kWidth) {
        const Vec left = load(a + i), right = load(b + i);
        store(a + i, left + right), store(b + i, left - right);
      }
    }
  const Vec factor = splat(1.0f / __builtin_sqrtf(static_cast<float>(n)));
  for_lanes(n, [=](int64_t i, int64_t lanes) { store(x + i, load(x + i, lanes) * factor, lanes); });
}

}  // namespace

void fill_hadamard(Table& table) {
  table.multiply = multiply;
  table.hadamard = hadamard;
  table.turn_rows = turn_rows;
}

}  // namespace qeng::isa::QENG_ISA
