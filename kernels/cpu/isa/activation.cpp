// SwiGLU and its gradient.
#include "kernels/cpu/isa/simd.h"

namespace qeng::isa::QENG_ISA {
namespace {

void swiglu(Float type, const void* gate, const void* up, void* y, int64_t n) {
  for_type(type, [=](auto tag) {
    using T = decltype(tag);
    const T *gates = static_cast<const T*>(gate), *ups = static_cast<const T*>(up);
    T* out = static_cast<T*>(y);
    for_lanes(n, [=](int64_t i, int64_t lanes) {
      const Vec g = load(gates + i, lanes), u = load(ups + i, lanes);
      store(out + i, g * sigmoid(g) * u, lanes);
    });
  });
}

void swiglu_grad(Float type, const void* gate, const void* up, const void* dy, void* dgate, void* dup, int64_t n) {
  for_type(type, [=](auto tag) {
    using T = decltype(tag);
    const T *gates = static_cast<const T*>(gate), *ups = static_cast<const T*>(up), *grads = static_cast<const T*>(dy);
    T *gate_grads = static_cast<T*>(dgate), *up_grads = static_cast<T*>(dup);
    for_lanes(n, [=](int64_t i, int64_t lanes) {  // loads before stores: outputs may be inputs
      const Vec g = load(gates + i, lanes), u = load(ups + i, lanes), d = load(grads + i, lanes), s = sigmoid(g);
      store(gate_grads + i, d * u * s * fma(g, splat(1.0f) - s, splat(1.0f)), lanes);
      store(up_grads + i, d * g * s, lanes);
    });
  });
}

}  // namespace

void fill_activation(Table& table) {
  table.swiglu = swiglu;
  table.swiglu_grad = swiglu_grad;
}

}  // namespace qeng::isa::QENG_ISA
