// What the loops of the gated delta rule (gated_delta.cpp, gated_delta_grad.cpp of this folder) are given: some rows of
// one chunk, of one key head and the `group` value heads that read it. kernels/ops/delta.h has the equations.
#pragma once
#include <cstdint>

#include "kernels/cpu/isa/table.h"

namespace qeng::isa {

constexpr int64_t kChunkRows = 64;  // kDeltaChunk, which this folder cannot include

// The sizes and strides of a delta rule, and its operands from a row and a head on. A row is row_stride elements on in
// q, k, v, out_stride in o or dout, value_heads in g and beta.
struct DeltaRows {
  Float type;
  const void *q, *k, *v;
  const float *g, *beta;
  int64_t row_stride, out_stride, value_heads, group, key_dim, value_dim;
  float eps;
};

// What there is of a chunk, all f32:
//   states [group, key_dim, value_dim], S as it began      keys [key_dim, kChunkRows], normalised
//   deltas [group, kChunkRows, value_dim], what each row adds to S by its key   sums [group, kChunkRows], of g
struct DeltaChunk {
  float *states, *keys, *deltas, *sums;
};

// Rows begun .. begun + rows - 1 of the chunk: adds them to it and writes their o, or not where that is null.
struct DeltaForward {
  DeltaRows in;
  DeltaChunk chunk;
  int64_t begun, rows;
  void* o;
  float* scratch;  // delta_scratch floats, 64-byte aligned
};
constexpr int64_t delta_scratch(int64_t key_dim, int64_t value_dim) {
  return 2 * kChunkRows * key_dim + 3 * kChunkRows * value_dim + 4 * kChunkRows * kChunkRows + 2 * kChunkRows;
}

// The gradient of a chunk's `rows`, which the forward pass has filled. dstates [group, key_dim, value_dim]: the gradient
// of the states that the chunk leaves, which becomes that of `states`.
struct DeltaBackward {
  DeltaRows in;
  DeltaChunk chunk;
  int64_t rows;
  const void* dout;
  float* dstates;
  void *dq, *dk, *dv;  // strides as of q, k, v
  float *dg, *dbeta;   // as of g, beta
  float* scratch;      // delta_grad_scratch floats, 64-byte aligned
};
constexpr int64_t delta_grad_scratch(int64_t key_dim, int64_t value_dim) {
  return 6 * kChunkRows * key_dim + 7 * kChunkRows * value_dim + 2 * key_dim * value_dim + 9 * kChunkRows * kChunkRows +
         8 * kChunkRows;
}

}  // namespace qeng::isa
