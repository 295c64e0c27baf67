// One token's heads, rotated by the token's angles: halves of the rotated part, or neighbours.
#include "kernels/cpu/isa/simd/simd.h"

namespace qeng::isa::QENG_ISA {
namespace {

template <class T>
void rotate_halves(const T* x, T* y, const float* cosines, const float* sines, int64_t half) {
  for (int64_t i = 0; i < half; i += kWidth) {
    const int64_t lanes = half - i;
    const Vec a = load(x + i, lanes), b = load(x + half + i, lanes), c = load(cosines + i, lanes),
              s = load(sines + i, lanes);
    store(y + i, a * c - b * s, lanes);
    store(y + half + i, fma(b, c, a * s), lanes);
  }
}
template <class T>
void rotate_neighbours(const T* x, T* y, const float* cosines, const float* sines, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = to_f32(x[2 * i]), b = to_f32(x[2 * i + 1]), c = cosines[i], s = sines[i];
    put(y + 2 * i, a * c - b * s);
    put(y + 2 * i + 1, b * c + a * s);
  }
}

template <class T>
void rotate(const T* x, T* y, const float* cosines, const float* sines, int64_t heads, int64_t dim, int64_t half,
            bool interleaved) {
  for (int64_t h = 0; h < heads; ++h, x += dim, y += dim) {
    interleaved ? rotate_neighbours(x, y, cosines, sines, half) : rotate_halves(x, y, cosines, sines, half);
    if (x != y)
      for (int64_t i = 2 * half; i < dim; i += kWidth) store(y + i, load(x + i, dim - i), dim - i);
  }
}

void rope(Float type, const void* x, void* y, const float* cosines, const float* sines, int64_t heads, int64_t dim,
          int64_t half, bool interleaved) {
  for_type(type, [=](auto tag) {
    using T = decltype(tag);
    rotate(static_cast<const T*>(x), static_cast<T*>(y), cosines, sines, heads, dim, half, interleaved);
  });
}

}  // namespace

void fill_rope(Table& table) { table.rope = rope; }

}  // namespace qeng::isa::QENG_ISA
