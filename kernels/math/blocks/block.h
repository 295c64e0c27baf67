// What block formats share. A block holds kElements consecutive weights of a row as small integer codes; each kGroup of
// them share a scale, and a minimum where the format kHasMin:
//   w[k] = scale(b, g) * code(b, k) [- min(b, g)],   g = k / kGroup
// in f32, each operation rounded by itself (never fused): the values of the gguf package and of llama.cpp, bit for bit.
// A format is a struct of the bytes in the file with code, scale and min as functions of the host and of CUDA devices;
// they are free functions, found by their argument, because members would not have internal linkage (host_device.h). It
// also has, on the host,
//   encode(x, importance, b): the block for x[kElements]; importance[kElements] weighs the squared errors, or is null
// Bytes that no encoder writes still decode: nothing here reads outside the block. Little-endian machines only.
// Layouts: ggml-common.h of llama.cpp, as written down for this project; int4.h is our own.
#pragma once
#include "kernels/math/bf16.h"

namespace qeng::blocks {

// a * b - c in two roundings, though a compiler for CUDA would fuse them; hosts with fused products are told by a flag.
QENG_HD float times_minus(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fsub_rn(__fmul_rn(a, b), c);
#else
  return a * b - c;
#endif
}
QENG_HD float times_plus(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(__fmul_rn(a, b), c);
#else
  return a * b + c;
#endif
}

// 1 / d; 0 where d is 0, or so small that no half holds it and its inverse overflows.
QENG_HD float inverse_of(float d) { return d > 1e-30f || d < -1e-30f ? 1.0f / d : 0.0f; }

// The weight k of a block.
template <class Block>
QENG_HD float decode(const Block& b, int k) {
  const int g = k / Block::kGroup;
  const float value = static_cast<float>(code(b, k));
  if constexpr (Block::kHasMin)
    return times_minus(scale(b, g), value, min(b, g));
  else
    return scale(b, g) * value;
}

// The n weights of a block from the given one on.
template <class Block>
QENG_HD void decode(const Block& b, int first, int n, float* out) {
  for (int k = first; k < first + n;) {
    const int g = k / Block::kGroup, last = (g + 1) * Block::kGroup, end = last < first + n ? last : first + n;
    const float d = scale(b, g);
    float m = 0;
    if constexpr (Block::kHasMin) m = min(b, g);
    for (; k < end; ++k) {
      const float value = static_cast<float>(code(b, k));
      if constexpr (Block::kHasMin)
        out[k - first] = times_minus(d, value, m);
      else
        out[k - first] = d * value;
    }
  }
}

}  // namespace qeng::blocks
