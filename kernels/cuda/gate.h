// The activations of a gate and their derivatives: SiLU, and GELU by its tanh form (SwiGlu in kernels/ops/layers.h).
#pragma once
#include "kernels/cuda/ptx/ptx.h"

namespace qeng {

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

}  // namespace qeng
