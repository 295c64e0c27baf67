// SwiGLU and its gradient.
#include "kernels/cuda/vector.h"

namespace qeng {

namespace {

// Within 4 ulp of 1 / (1 + e^-x): 2 of e^-x, half of the sum, 1 of the reciprocal. Where e^-x is infinite it is 0.
__device__ inline float sigmoid(float x) { return ptx::reciprocal_approx(1.0f + expf(-x)); }

template <class T>
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
    for (int k = 0; k < n; ++k) u[k] *= g[k] * sigmoid(g[k]);
    store(y + i, pack<T>(u));
  }
};

template <class T>
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
      const float s = sigmoid(g[k]), ds = d[k] * s;
      d[k] = ds * g[k];
      g[k] = ds * u[k] * (1.0f + g[k] * (1.0f - s));
    }
    store(dgate + i, pack<T>(g)), store(dup + i, pack<T>(d));
  }
};

}  // namespace

void run(const SwiGlu& op, CudaContext& context) {
  for_float(op.gate, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const Gated<T> gated{op.gate.as<T>(), op.up.as<T>(), op.y.as<T>()};
    launch_elementwise(context, op.name, gated, op.gate.elements(), aligned_for(gated.kWidth, op.gate, op.up, op.y));
  });
}

void run(const SwiGluGrad& op, CudaContext& context) {
  for_float(op.gate, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const GatedGrad<T> grad{op.gate.as<T>(), op.up.as<T>(), op.dy.as<T>(), op.dgate.as<T>(), op.dup.as<T>()};
    launch_elementwise(context, op.name, grad, op.gate.elements(),
                       aligned_for(grad.kWidth, op.gate, op.up, op.dy, op.dgate, op.dup));
  });
}

}  // namespace qeng
