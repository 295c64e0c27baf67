// What the kernels of the gradient share. In the order in which they run: delta_prepare.cu, the forward pass again
// (gated_delta.cu), the backward one (delta_scan_grad.cu), and what then is apart for each chunk (gated_delta_grad.cu).
#pragma once
#include "kernels/cuda/delta/delta_scan.h"

namespace qeng {

// Fills the d.. of `kept`, and v's part of dx.
template <class T>
void scan_delta_grad(const Delta<T>& op, const DeltaPrepared& prepared, const DeltaStates& kept, const T* dout, T* dx,
                     CudaContext& context);

// 16 columns of a chunk's rows in memory, which are `stride` elements apart, as rows of a tile: [16, kChunk].
template <int kThreads, class T, int kParts>
__device__ inline void put_columns(const PartsTile<kParts>& tile, const T* from, int64_t stride, int rows) {
  for (int i = ptx::opaque(static_cast<int>(threadIdx.x)); i < kScanColumns * kChunk / 2; i += kThreads) {
    const int column = i % kScanColumns, row = i / kScanColumns * 2;
    const float first = row < rows ? to_f32(from[row * stride + column]) : 0.0f;
    const float second = row + 1 < rows ? to_f32(from[(row + 1) * stride + column]) : 0.0f;
    uint32_t packed[kParts];
    split(first, second, packed);
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      *reinterpret_cast<uint32_t*>(tile.at(part, column, row)) = packed[part];
  }
}

}  // namespace qeng
