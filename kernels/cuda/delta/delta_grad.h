// What the kernels of the gradient share. In the order in which they run: delta_prepare.cu, the forward pass again
// (gated_delta.cu), the backward one (delta_scan_grad.cu), and what then is apart for each chunk (gated_delta_grad.cu).
#pragma once
#include "kernels/cuda/delta/delta_scan.h"

namespace qeng {

// Fills the d.. of `kept`, and v's part of dx.
template <class T>
void scan_delta_grad(const Delta<T>& op, const DeltaPrepared& prepared, const DeltaStates& kept, const T* dout, T* dx,
                     CudaContext& context);

}  // namespace qeng
