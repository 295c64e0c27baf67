// Loops over flat arrays: add, scale and cast, accumulate.
#include "kernels/cpu/isa/simd.h"

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

}  // namespace

void fill_elementwise(Table& table) {
  table.add = add;
  table.scale = scale;
  table.accumulate = accumulate;
}

}  // namespace qeng::isa::QENG_ISA
