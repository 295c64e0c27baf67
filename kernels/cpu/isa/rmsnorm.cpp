// Root-mean-square norm of rows, and its gradient.
#include "kernels/cpu/isa/simd/simd.h"

namespace qeng::isa::QENG_ISA {
namespace {

void rmsnorm(Float type, const void* x, const void* w, void* y, float* rstd, int64_t rows, int64_t dim, float eps,
             bool plus_one) {
  for_type(type, [=](auto tag) {
    using T = decltype(tag);
    const T* weights = static_cast<const T*>(w);
    const Vec shift = splat(plus_one ? 1.0f : 0.0f);
    for (int64_t r = 0; r < rows; ++r) {
      const T* in = static_cast<const T*>(x) + r * dim;
      T* out = static_cast<T*>(y) + r * dim;
      Vec squares = splat(0.0f);
      for_lanes(dim, [&](int64_t i, int64_t lanes) {
        const Vec value = load(in + i, lanes);
        squares = fma(value, value, squares);
      });
      rstd[r] = 1.0f / __builtin_sqrtf(sum(squares) / static_cast<float>(dim) + eps);
      const Vec factor = splat(rstd[r]);
      for_lanes(dim, [&](int64_t i, int64_t lanes) {
        store(out + i, load(in + i, lanes) * factor * (load(weights + i, lanes) + shift), lanes);
      });
    }
  });
}

void rmsnorm_grad(Float type, const void* x, const void* w, const float* rstd, const void* dy, const void* dresidual,
                  void* dx, float* dw, int64_t rows, int64_t dim, bool plus_one) {
  for_type(type, [=](auto tag) {
    using T = decltype(tag);
    const T* weights = static_cast<const T*>(w);
    const Vec shift = splat(plus_one ? 1.0f : 0.0f);
    for (int64_t r = 0; r < rows; ++r) {
      const T *in = static_cast<const T*>(x) + r * dim, *grad = static_cast<const T*>(dy) + r * dim;
      const T* residual = dresidual ? static_cast<const T*>(dresidual) + r * dim : nullptr;
      T* out = static_cast<T*>(dx) + r * dim;
      const Vec factor = splat(rstd[r]);
      Vec dot = splat(0.0f);
      for_lanes(dim, [&](int64_t i, int64_t lanes) {
        const Vec d = load(grad + i, lanes), xhat = load(in + i, lanes) * factor;
        dot = fma(d * (load(weights + i, lanes) + shift), xhat, dot);
        if (dw) store(dw + i, fma(d, xhat, load(dw + i, lanes)), lanes);
      });
      const Vec mean = splat(sum(dot) / static_cast<float>(dim));
      for_lanes(dim, [&](int64_t i, int64_t lanes) {
        const Vec g = load(grad + i, lanes) * (load(weights + i, lanes) + shift), xhat = load(in + i, lanes) * factor;
        Vec result = factor * (g - xhat * mean);
        if (residual) result = result + load(residual + i, lanes);
        store(out + i, result, lanes);
      });
    }
  });
}

}  // namespace

void fill_rmsnorm(Table& table) {
  table.rmsnorm = rmsnorm;
  table.rmsnorm_grad = rmsnorm_grad;
}

}  // namespace qeng::isa::QENG_ISA
