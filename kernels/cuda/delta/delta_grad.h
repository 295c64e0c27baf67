// What the kernels of the gradient share. In the order in which they run: delta_prepare.cu, the forward pass again
// (gated_delta.cu), the backward one (delta_scan_grad.cu), what then is apart for each chunk (gated_delta_grad.cu), and
// the gradients of the operands themselves (delta_finish_grad.cu).
#pragma once
#include "kernels/cuda/delta/delta_scan.h"

namespace qeng {

// Fills the d.. of `kept`, and v's part of dx.
template <class T>
void scan_delta_grad(const Delta<T>& op, const DeltaPrepared& prepared, const DeltaStates& kept, const T* dout, T* dx,
                     CudaContext& context);

// By slot and value head, for each tile of dims that a block takes: the gradients of the sums of g and of beta; and by
// key head and of all dims those of the normalised q and k.
struct DeltaGradients {
  float *dsums, *dbeta;  // [tiles, slots, value heads, kChunk]
  float *dq, *dk;        // [slots, heads, kChunk, dim]
  int64_t slots;
  int tiles;
};

// dx but for v's part, dg and dbeta, of the heads of a launch.
template <class T>
void finish_delta_grad(const GatedDeltaGrad& op, const Delta<T>& delta, const DeltaPrepared& prepared,
                       const DeltaGradients& from, CudaContext& context);

}  // namespace qeng
