// Layer norm of rows, and its gradient. A row is read three times forward and twice backward, from the first cache.
#include "kernels/cpu/isa/simd/simd.h"

namespace qeng::isa::QENG_ISA {
namespace {

template <class T, class W>
void norm_rows(const T* x, const W* w, const W* b, T* y, float* mean, float* rstd, int64_t rows, int64_t dim,
               float eps) {
  const float part = 1.0f / static_cast<float>(dim);
  for (int64_t r = 0; r < rows; ++r, x += dim, y += dim) {
    Vec total = splat(0.0f), squares = splat(0.0f);
    for_lanes(dim, [&](int64_t i, int64_t lanes) { total = total + load(x + i, lanes); });
    mean[r] = sum(total) * part;
    const Vec centre = splat(mean[r]);
    int64_t i = 0;
    for (; i + kWidth <= dim; i += kWidth) {
      const Vec value = load(x + i, kWidth) - centre;
      squares = fma(value, value, squares);
    }
    float square = sum(squares);
    for (; i < dim; ++i) {  // lanes past the row would count as -mean
      const float value = to_f32(x[i]) - mean[r];
      square += value * value;
    }
    rstd[r] = 1.0f / __builtin_sqrtf(square * part + eps);
    const Vec factor = splat(rstd[r]);
    for_lanes(dim, [&](int64_t j, int64_t lanes) {
      const Vec xhat = (load(x + j, lanes) - centre) * factor;
      store(y + j, b ? fma(xhat, load(w + j, lanes), load(b + j, lanes)) : xhat * load(w + j, lanes), lanes);
    });
  }
}

void layer_norm(Float type, const void* x, Float weight_type, const void* w, const void* b, void* y, float* mean,
                float* rstd, int64_t rows, int64_t dim, float eps) {
  for_type(type, [=](auto tag) {
    for_type(weight_type, [=](auto weight_tag) {
      using T = decltype(tag);
      using W = decltype(weight_tag);
      norm_rows(static_cast<const T*>(x), static_cast<const W*>(w), static_cast<const W*>(b), static_cast<T*>(y), mean,
                rstd, rows, dim, eps);
    });
  });
}

template <class T, class W>
void grad_rows(const T* x, const W* w, const float* mean, const float* rstd, const T* dy, const T* dresidual, T* dx,
               float* sums, int64_t rows, int64_t dim) {
  const float part = 1.0f / static_cast<float>(dim);
  for (int64_t r = 0; r < rows; ++r, x += dim, dy += dim, dx += dim) {
    const Vec centre = splat(mean[r]), factor = splat(rstd[r]);
    Vec total = splat(0.0f), dot = splat(0.0f);  // lanes past the row have g = 0
    for_lanes(dim, [&](int64_t i, int64_t lanes) {
      const Vec d = load(dy + i, lanes), xhat = (load(x + i, lanes) - centre) * factor;
      const Vec g = d * load(w + i, lanes);
      total = total + g;
      dot = fma(g, xhat, dot);
      if (!sums) return;
      store(sums + i, fma(d, xhat, load(sums + i, lanes)), lanes);
      store(sums + dim + i, d + load(sums + dim + i, lanes), lanes);
    });
    const Vec mean_g = splat(sum(total) * part), mean_dot = splat(sum(dot) * part);
    for_lanes(dim, [&](int64_t i, int64_t lanes) {
      const Vec xhat = (load(x + i, lanes) - centre) * factor;
      Vec result = factor * (load(dy + i, lanes) * load(w + i, lanes) - mean_g - xhat * mean_dot);
      if (dresidual) result = result + load(dresidual + r * dim + i, lanes);
      store(dx + i, result, lanes);
    });
  }
}

void layer_norm_grad(Float type, const void* x, Float weight_type, const void* w, const float* mean, const float* rstd,
                     const void* dy, const void* dresidual, void* dx, float* sums, int64_t rows, int64_t dim) {
  for_type(type, [=](auto tag) {
    for_type(weight_type, [=](auto weight_tag) {
      using T = decltype(tag);
      grad_rows(static_cast<const T*>(x), static_cast<const decltype(weight_tag)*>(w), mean, rstd,
                static_cast<const T*>(dy), static_cast<const T*>(dresidual), static_cast<T*>(dx), sums, rows, dim);
    });
  });
}

}  // namespace

void fill_layer_norm(Table& table) {
  table.layer_norm = layer_norm;
  table.layer_norm_grad = layer_norm_grad;
}

}  // namespace qeng::isa::QENG_ISA
