// Of each element by itself. X, BIAS: element types; FROM, TO: those of scale_by
#include "kernels/math/embedding_noise.h"
#include "kernels/math/philox.h"
#ifndef X
#define X f32
#endif
#ifndef FROM
#define FROM f32
#define TO f32
#endif
#ifndef BIAS
#define BIAS absent
#endif

__kernel void add(__global const void* a, __global const void* b, __global void* y, long count) {
  FOR_ITEM(i, count);
  store(X, y, i, load(X, a, i) + load(X, b, i));
}

__kernel void scale_by(__global const void* x, __global void* y, float alpha, long count) {
  FOR_ITEM(i, count);
  store(TO, y, i, alpha * load(FROM, x, i));
}

// act(z) = z sigmoid(a(z)). The sigmoid of GELU is 0 or 1 to 1e-38 outside of [-10, 10], and cubes of what lies far
// outside are infinite.
#define GELU_LINEAR 1.5957691216f    // 2 sqrt(2 / pi)
#define GELU_CUBIC 0.071354816272f  // 0.044715 of it
static inline float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }
static inline float gate_of(float z, int gelu) {
  const float held = clamp(z, -10.0f, 10.0f);
  return sigmoid(gelu ? held * (GELU_LINEAR + GELU_CUBIC * (held * held)) : z);
}

__kernel void swiglu(__global const void* gate, __global const void* up, __global void* y, int gelu, long count) {
  FOR_ITEM(i, count);
  const float z = load(X, gate, i);
  store(X, y, i, load(X, up, i) * (z * gate_of(z, gelu)));
}

__kernel void swiglu_grad(__global const void* gate, __global const void* up, __global const void* dy,
                          __global void* dgate, __global void* dup, int gelu, long count) {
  FOR_ITEM(i, count);
  const float z = load(X, gate, i), u = load(X, up, i), d = load(X, dy, i), s = gate_of(z, gelu);
  const float held = gelu ? clamp(z, -10.0f, 10.0f) : z;
  const float slope = gelu ? GELU_LINEAR + 3.0f * GELU_CUBIC * (held * held) : 1.0f;
  store(X, dgate, i, d * u * (s * (1.0f + held * (1.0f - s) * slope)));
  store(X, dup, i, d * (z * s));
}

__kernel void dropout(__global const void* x, __global void* y, __global const long* rng, float p, float factor,
                      uint subsequence, long count) {
  FOR_ITEM(i, count);
  const bool kept = philox_uniform((ulong)rng[0], (ulong)rng[1], subsequence, (ulong)i) >= p;
  store(X, y, i, kept ? load(X, x, i) * factor : 0.0f);
}

__kernel void embedding_noise(__global const void* x, __global const int* cu, __global void* y,
                              __global const long* rng, float strength, uint subsequence, int documents, long rows,
                              long n) {
  FOR_ITEM(i, rows * n);
  const float noise = noise_of_row(strength, cu, documents, i / n, rows, n);
  const float drawn = philox_uniform((ulong)rng[0], (ulong)rng[1], subsequence, (ulong)i);
  store(X, y, i, load(X, x, i) + noise * (2.0f * drawn - 1.0f));
}

__kernel void scale_columns(__global const void* x, __global const float* factors, __global const void* bias,
                            __global void* y, long n, long count) {
  FOR_ITEM(i, count);
  store(X, y, i, load(X, x, i) * factors[i % n] + load(BIAS, bias, i % n));
}
