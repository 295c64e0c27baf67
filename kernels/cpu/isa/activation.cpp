// SwiGLU and GeGLU, and their gradients.
#include "kernels/cpu/isa/simd/simd.h"

namespace qeng::isa::QENG_ISA {
namespace {

// The two activations z s, s = sigmoid(a(z)). at(z) gives s; grad(z) gives s (1 + z (1 - s) a'(z)) beside it.
struct Gate {
  Vec s, grad;
};

struct Silu {
  static Vec at(Vec z) { return sigmoid(z); }
  static Gate grad(Vec z) {
    const Vec s = sigmoid(z);
    return {s, s * fma(z, splat(1.0f) - s, splat(1.0f))};
  }
};

struct Gelu {
  static constexpr float kLinear = 1.5957691216f, kCubic = 0.071354816272f;  // 2 sqrt(2 / pi), and 0.044715 of it

  // s is 0 or 1 to 1e-38 outside of [-10, 10], and cubes of what lies far outside are infinite.
  static Vec clamp(Vec z) { return splat(0.0f) - max(splat(-10.0f), splat(0.0f) - max(splat(-10.0f), z)); }
  static Vec at(Vec any) {
    const Vec z = clamp(any);
    return sigmoid(z * fma(splat(kCubic), z * z, splat(kLinear)));
  }
  static Gate grad(Vec any) {
    const Vec z = clamp(any), square = z * z;
    const Vec e = exp(splat(0.0f) - z * fma(splat(kCubic), square, splat(kLinear)));
    const Vec s = reciprocal(splat(1.0f) + e);
    const Vec slope = fma(splat(3 * kCubic), square, splat(kLinear));
    return {s, s * fma(z * (e * s), slope,
                       splat(1.0f))};  // e s = 1 - s without its cancellation, which z slope would enlarge
  }
};

template <class Act>
void gated(Float type, const void* gate, const void* up, void* y, int64_t n) {
  for_type(type, [=](auto tag) {
    using T = decltype(tag);
    const T *gates = static_cast<const T*>(gate), *ups = static_cast<const T*>(up);
    T* out = static_cast<T*>(y);
    for_lanes(n, [=](int64_t i, int64_t lanes) {
      const Vec g = load(gates + i, lanes), u = load(ups + i, lanes);
      store(out + i, g * Act::at(g) * u, lanes);
    });
  });
}

template <class Act>
void gated_grad(Float type, const void* gate, const void* up, const void* dy, void* dgate, void* dup, int64_t n) {
  for_type(type, [=](auto tag) {
    using T = decltype(tag);
    const T *gates = static_cast<const T*>(gate), *ups = static_cast<const T*>(up), *grads = static_cast<const T*>(dy);
    T *gate_grads = static_cast<T*>(dgate), *up_grads = static_cast<T*>(dup);
    for_lanes(n, [=](int64_t i, int64_t lanes) {  // loads before stores: outputs may be inputs
      const Vec g = load(gates + i, lanes), u = load(ups + i, lanes), d = load(grads + i, lanes);
      const Gate act = Act::grad(g);
      store(gate_grads + i, d * u * act.grad, lanes);
      store(up_grads + i, d * g * act.s, lanes);
    });
  });
}

void swiglu(Float type, bool gelu, const void* gate, const void* up, void* y, int64_t n) {
  (gelu ? gated<Gelu> : gated<Silu>)(type, gate, up, y, n);
}

void swiglu_grad(Float type, bool gelu, const void* gate, const void* up, const void* dy, void* dgate, void* dup,
                 int64_t n) {
  (gelu ? gated_grad<Gelu> : gated_grad<Silu>)(type, gate, up, dy, dgate, dup, n);
}

}  // namespace

void fill_activation(Table& table) {
  table.swiglu = swiglu;
  table.swiglu_grad = swiglu_grad;
}

}  // namespace qeng::isa::QENG_ISA
