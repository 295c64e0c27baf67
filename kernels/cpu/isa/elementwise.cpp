// Loops over flat arrays: add, scale and cast, accumulate.
#include "kernels/cpu/isa/simd/simd.h"

namespace qeng::isa::QENG_ISA {
namespace {

void add(Float type, const void* a, const void* b, void* y, int64_t n) {
  for_type(type, [=](auto tag) {
    using T = decltype(tag);
    const T *left = static_cast<const T*>(a), *right = static_cast<const T*>(b);
    T* out = static_cast<T*>(y);
    for_lanes(n,
              [=](int64_t i, int64_t lanes) { store(out + i, load(left + i, lanes) + load(right + i, lanes), lanes); });
  });
}

void scale(Float from, const void* x, Float to, void* y, float alpha, int64_t n) {
  for_type(from, [=](auto from_tag) {
    for_type(to, [=](auto to_tag) {
      const auto* in = static_cast<const decltype(from_tag)*>(x);
      auto* out = static_cast<decltype(to_tag)*>(y);
      const Vec factor = splat(alpha);
      for_lanes(n, [=](int64_t i, int64_t lanes) { store(out + i, load(in + i, lanes) * factor, lanes); });
    });
  });
}

void accumulate(Float type, const void* x, float* y, int64_t n) {
  for_type(type, [=](auto tag) {
    const auto* in = static_cast<const decltype(tag)*>(x);
    for_lanes(n, [=](int64_t i, int64_t lanes) { store(y + i, load(y + i, lanes) + load(in + i, lanes), lanes); });
  });
}

void scale_columns(Float type, const void* x, const float* scale, Float bias_type, const void* bias, void* y,
                   int64_t n) {
  for_type(type, [=](auto tag) {
    const auto* in = static_cast<const decltype(tag)*>(x);
    auto* out = static_cast<decltype(tag)*>(y);
    if (!bias)
      return for_lanes(
          n, [=](int64_t i, int64_t lanes) { store(out + i, load(in + i, lanes) * load(scale + i, lanes), lanes); });
    for_type(bias_type, [=](auto bias_tag) {
      const auto* added = static_cast<const decltype(bias_tag)*>(bias);
      for_lanes(n, [=](int64_t i, int64_t lanes) {
        store(out + i, fma(load(in + i, lanes), load(scale + i, lanes), load(added + i, lanes)), lanes);
      });
    });
  });
}

void scale_columns_grad(Float type, const void* x, const float* scale, const void* dy, void* dx, float* dscale,
                        int64_t n) {
  for_type(type, [=](auto tag) {
    const auto *in = static_cast<const decltype(tag)*>(x), *dout = static_cast<const decltype(tag)*>(dy);
    auto* din = static_cast<decltype(tag)*>(dx);
    for_lanes(n, [=](int64_t i, int64_t lanes) {
      const Vec g = load(dout + i, lanes);
      if (dscale) store(dscale + i, fma(g, load(in + i, lanes), load(dscale + i, lanes)), lanes);
      store(din + i, g * load(scale + i, lanes), lanes);
    });
  });
}

}  // namespace

void fill_elementwise(Table& table) {
  table.add = add;
  table.scale = scale;
  table.accumulate = accumulate;
  table.scale_columns = scale_columns;
  table.scale_columns_grad = scale_columns_grad;
}

}  // namespace qeng::isa::QENG_ISA
