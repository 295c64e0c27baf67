// What the kernels of the gated delta rule share (kernels/ops/delta.h has its equations).
//
// Chunks of kDeltaChunk rows begin at a document's first row. Where documents lie only the device knows, so each chunk
// has a slot that follows from its document's boundary: chunk c of document s is slot cu[s] / kDeltaChunk + s + c.
// With c_ij = e^{sum_i - sum_j}, sum_i the sum of g up to row i, and Q, K, V the normalised rows of a chunk:
//   A = -beta K K^T c (j < i)    P = Q K^T c (j <= i)    T = (1 - A)^-1
//   D = T beta (V - e^{sum} K S)    O = e^{sum} Q S + P D    S' = e^{last} S + sum over j of e^{last - sum_j} k_j D_j^T
// T is an inverse of which no entry is above 1: its rows are products of steps that make nothing longer.
#pragma once
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/delta/delta_mma.h"
#include "kernels/error.h"
#include "kernels/view_text.h"

namespace qeng {

constexpr int kChunk = static_cast<int>(kDeltaChunk);

// The operands, and which key heads a launch is for: scratch memory is theirs alone.
template <class T>
struct Delta {
  const T* x;
  const float *g, *beta;
  const int32_t* cu;
  int64_t rows, columns;
  int documents, key_heads, value_heads, group, dim, wide;
  float eps, scale;  // of normalised queries: 1 / sqrt(dim)
  int first_head, heads;
  Fault* fault;

  __device__ const T* q(int64_t row, int key_head) const { return x + row * columns + int64_t{key_head} * dim; }
  __device__ const T* k(int64_t row, int key_head) const { return q(row, key_heads + key_head); }
  __device__ const T* v(int64_t row, int value_head) const {
    return x + row * columns + 2 * int64_t{key_heads} * dim + int64_t{value_head} * wide;
  }
  __device__ int first_value_head() const { return first_head * group; }
  __device__ int launched_value_heads() const { return heads * group; }

  // Boundary s, brought within the rows whatever it is.
  __device__ int64_t bound(int s) const {
    const int64_t value = cu[s];
    return value < 0 ? 0 : value < rows ? value : rows;
  }
  __device__ int64_t first_slot(int s) const { return bound(s) / kChunk + s; }
};

template <class T>
inline int64_t slots_of(const Delta<T>& op) {
  return op.rows / kChunk + op.documents;
}

// The chunk of a slot: its first row and how many it has, 0 where the slot is nobody's.
struct DeltaChunk {
  int64_t row = 0;
  int rows = 0;
};
template <class T>
__device__ DeltaChunk chunk_at(const Delta<T>& op, int64_t slot) {
  int low = 0, high = op.documents;  // the last document whose first slot is not above
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (op.first_slot(middle) <= slot)
      low = middle;
    else
      high = middle;
  }
  if (op.documents == 0) return {};
  const int64_t row = op.bound(low) + (slot - op.first_slot(low)) * kChunk, end = op.bound(low + 1);
  if (slot < op.first_slot(low) || row >= end) return {};
  return {row, static_cast<int>(end - row < kChunk ? end - row : kChunk)};
}

// e^x for x up to 0, with an error below 2^-22.
__device__ inline float decay_of(float x) { return ptx::exp2_approx(x * 1.4426950408889634f); }

// Vectors of a chunk of a value head, which are 0 from its last row on but for the sums.
enum DeltaVector {
  kSums,     // of g
  kBeta,     // as it is
  kReading,  // -beta e^{sum} / |k|, by which S^T k' goes into beta R
  kWriting,  // e^{last - sum} / |k|, by which k' times d goes into the state
  kAsking,   // e^{sum} / (|q| sqrt(dim)), by which S^T q' goes into o
  kPreparedVectors
};

// What a chunk's kernels read, for each slot, in scratch memory; heads and value heads are of those launched.
struct DeltaPrepared {
  float *inverse_q, *inverse_k;  // [slots, heads, kChunk]: row i of Q is inverse_q[i] q'_i
  float* vectors;                // [slots, value heads, kPreparedVectors, kChunk]
  bf16 *t, *p;                   // [slots, value heads, a triangle]
};
template <int kParts>
using ChunkTriangle = Triangle<kParts, kChunk, false>;

template <int kParts, class T>
DeltaPrepared allocate_prepared(const Delta<T>& op, int64_t slots, CudaContext& context);
template <int kParts, class T>
void prepare_delta(const Delta<T>& op, const DeltaPrepared& prepared, CudaContext& context);

// Rows past the last document become 0. Reports boundaries that are wrong.
template <class T>
void clear_past(const View& cu, const View& out, CudaContext& context);

template <class T, class AnyOp>
Delta<T> delta_operands(const AnyOp& op, CudaContext& context) {
  const DeltaShape& shape = op.shape;
  const int64_t documents = op.cu.elements() - 1;
  if (documents > 65535) fail("unsupported", op.name, ": cu is ", shape_text(op.cu), ", more than one launch takes");
  return {.x = op.x.template as<T>(),
          .g = op.g.template as<float>(),
          .beta = op.beta.template as<float>(),
          .cu = op.cu.template as<int32_t>(),
          .rows = op.x.rows(),
          .columns = shape.columns(),
          .documents = static_cast<int>(documents),
          .key_heads = static_cast<int>(shape.key_heads),
          .value_heads = static_cast<int>(shape.value_heads),
          .group = static_cast<int>(shape.group()),
          .dim = static_cast<int>(shape.key_dim),
          .wide = static_cast<int>(shape.value_dim),
          .eps = op.eps,
          .scale = 1.0f / std::sqrt(static_cast<float>(shape.key_dim)),
          .first_head = 0,
          .heads = static_cast<int>(shape.key_heads),
          .fault = context.fault};
}

}  // namespace qeng
