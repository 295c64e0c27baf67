// SwiGLU and GeGLU, and their gradients.
#include "kernels/cuda/gate.h"
#include "kernels/cuda/vector.h"

namespace qeng {

namespace {

template <class T, class Act>
struct Gated {
  static constexpr int kWidth = kVector<T>, kInputs = 2;
  const T *gate, *up;
  T* y;
  template <int n>
  struct Packs {
    Pack<T, n> gate, up;
  };
  template <int n>
  __device__ Packs<n> read(int64_t i) const {
    return {load_once<n>(gate + i), load_once<n>(up + i)};
  }
  template <int n>
  __device__ void write(int64_t i, const Packs<n>& packs) const {
    float g[n], u[n];
    unpack(packs.gate, g), unpack(packs.up, u);
    for (int k = 0; k < n; ++k) u[k] *= g[k] * Act::at(g[k]);
    store(y + i, pack<T>(u));
  }
};

template <class T, class Act>
struct GatedGrad {
  static constexpr int kWidth = kVector<T>, kInputs = 3;
  const T *gate, *up, *dy;
  T *dgate, *dup;
  template <int n>
  struct Packs {
    Pack<T, n> gate, up, dy;
  };
  template <int n>
  __device__ Packs<n> read(int64_t i) const {
    return {load_once<n>(gate + i), load_once<n>(up + i), load_once<n>(dy + i)};
  }
  template <int n>
  __device__ void write(int64_t i, const Packs<n>& packs) const {
    float g[n], u[n], d[n];
    unpack(packs.gate, g), unpack(packs.up, u), unpack(packs.dy, d);
    for (int k = 0; k < n; ++k) {
      const Gate act = Act::grad(g[k]);
      u[k] *= d[k] * act.grad, d[k] *= g[k] * act.s;
    }
    store(dgate + i, pack<T>(u)), store(dup + i, pack<T>(d));
  }
};

// f(the activation's type)
template <class F>
void for_activation(bool gelu, F f) {
  gelu ? f(Gelu{}) : f(Silu{});
}

}  // namespace

void run(const SwiGlu& op, CudaContext& context) {
  for_float(op.gate, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    for_activation(op.gelu, [&](auto act) {
      const Gated<T, decltype(act)> gated{op.gate.as<T>(), op.up.as<T>(), op.y.as<T>()};
      launch_elementwise(context, op.name, gated, op.gate.elements(), aligned_for(gated.kWidth, op.gate, op.up, op.y));
    });
  });
}

void run(const SwiGluGrad& op, CudaContext& context) {
  for_float(op.gate, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    for_activation(op.gelu, [&](auto act) {
      const GatedGrad<T, decltype(act)> grad{op.gate.as<T>(), op.up.as<T>(), op.dy.as<T>(), op.dgate.as<T>(),
                                             op.dup.as<T>()};
      launch_elementwise(context, op.name, grad, op.gate.elements(),
                         aligned_for(grad.kWidth, op.gate, op.up, op.dy, op.dgate, op.dup));
    });
  });
}

}  // namespace qeng
