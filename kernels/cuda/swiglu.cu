// SwiGLU and GeGLU, and their gradients.
#include "kernels/cuda/vector.h"

namespace qeng {

namespace {

// Within 4 ulp of 1 / (1 + e^-x): 2 of e^-x, half of the sum, 1 of the reciprocal. Where e^-x is infinite it is 0.
__device__ inline float sigmoid(float x) { return ptx::reciprocal_approx(1.0f + expf(-x)); }

// The two activations z s, s = sigmoid(a(z)); grad(z) gives s (1 + z (1 - s) a'(z)) beside s.
struct Gate {
  float s, grad;
};

struct Silu {
  __device__ static float at(float z) { return sigmoid(z); }
  __device__ static Gate grad(float z) {
    const float s = sigmoid(z);
    return {s, s * (1.0f + z * (1.0f - s))};
  }
};

struct Gelu {
  static constexpr float kLinear = 1.5957691216f, kCubic = 0.071354816272f;  // 2 sqrt(2 / pi), and 0.044715 of it

  // s is 0 or 1 to 1e-38 outside of [-10, 10], and cubes of what lies far outside are infinite. A NaN passes by way of
  // z s.
  __device__ static float clamp(float z) { return fminf(fmaxf(z, -10.0f), 10.0f); }
  __device__ static float at(float any) {
    const float z = clamp(any);
    return sigmoid(z * (kLinear + kCubic * (z * z)));
  }
  __device__ static Gate grad(float any) {
    const float z = clamp(any), square = z * z;
    const float e = expf(-z * (kLinear + kCubic * square)), s = ptx::reciprocal_approx(1.0f + e);
    const float rest = z * (e * s);  // e s = 1 - s without its cancellation, which z a'(z) would enlarge
    const float grad = s * (1.0f + rest * (kLinear + 3 * kCubic * square));
    return {s, any == any ? grad : any};
  }
};

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
