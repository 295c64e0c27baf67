// The gradient's pass over a document, from its last chunk to its first. In the words of delta.h, with dS the gradient
// of the state that a chunk leaves and dR that of beta R (R = V - e^{sum} K S):
//   dR = T^T (e^{last - sum} K dS + P^T dO)    dV = beta dR
//   dS <- e^{last} dS + Q^T (e^{sum} dO) - K^T (beta e^{sum} dR)
// Blocks and warps share this as they do in gated_delta.cu.
#include "kernels/cuda/delta/delta_grad.h"

namespace qeng {
namespace {

template <class T, int kPairs>
__global__ void __launch_bounds__(kScanThreads)
    delta_scan_grad(const Delta<T> op, const DeltaPrepared prepared, const DeltaStates kept, const T* dout, T* dx) {
  constexpr int kParts = kDerived<T>;
  const ScanBlock block(op);
  const ScanShared<kParts> shared(op.dim);
  const PartsTile<kDirect<T>> dout_tile{reinterpret_cast<bf16*>(shared.inverse_k + kChunk), kScanColumns, kChunk};
  // As the forward pass names them: the right side is what T^T is applied to.
  const PartsTile<kParts>&of_k = shared.weighed, &of_q = shared.delta;
  const PartsTile<kParts> ddelta{dout_tile.end(), kScanColumns, kChunk};
  State<kPairs> dstate;
  dstate.put(shared.state, op.dim, block.warp);

  const int64_t begin = op.bound(block.document), end = op.bound(block.document + 1);
  const int64_t chunks = end > begin ? (end - begin + kChunk - 1) / kChunk : 0, stride = int64_t{op.value_heads} * op.wide;
  for (int64_t c = chunks - 1; c >= 0; --c) {
    const int64_t slot = op.first_slot(block.document) + c, row = begin + c * kChunk;
    const int rows = static_cast<int>(end - row < kChunk ? end - row : kChunk);
    const int64_t at = slot * op.launched_value_heads() + block.head;
    const MemoryRows<T> q{op.q(row, block.key_head), op.columns, rows}, k{op.k(row, block.key_head), op.columns, rows};
    shared.fetch(prepared, op, block, slot, row, rows);
    put_columns<kScanThreads>(dout_tile, dout + row * stride + block.value_head * op.wide + block.column, stride, rows);
    ptx::cp_async_wait<0>();
    __syncthreads();
    shared.state.keep(kept.dstates + (at * op.wide + block.column) * kParts * op.dim, kScanThreads);

    const float last = shared.sums[kChunk - 1];
    Sums16 right_side = {};
    for (int d = 0; d < op.dim; d += 16)
      multiply(right_side, shared.state.left(0, d), k.right(block.warp * 16, d));
    each_sum([&](int n, int i, int, int down) {
      const int r = block.warp * 16 + down;
      right_side[n][i] *= expf(last - shared.sums[r]) * shared.inverse_k[r];
    });
    for (int i = block.warp; i < kScanWarps; ++i)
      multiply(right_side, dout_tile.left(0, 16 * i), shared.p.right_down(16 * i, block.warp * 16));
    Sums16 faded;
    each_sum([&](int n, int i, int column, int down) {
      const int r = block.warp * 16 + down;
      faded[n][i] = dout_tile.value(column, r) * expf(shared.sums[r]) * shared.inverse_q[r];
    });
    of_q.put(0, block.warp * 16, faded);
    shared.right_side.put(0, block.warp * 16, right_side);
    __syncthreads();

    Sums16 solved = {}, weighed;
    for (int i = block.warp; i < kScanWarps; ++i)
      multiply(solved, shared.right_side.left(0, 16 * i), shared.t.right_down(16 * i, block.warp * 16));
    T* dv = dx + row * op.columns + 2 * op.key_heads * op.dim + block.value_head * op.wide + block.column;
    each_sum([&](int n, int i, int column, int down) {
      const int r = block.warp * 16 + down;
      const float gradient = shared.beta[r] * solved[n][i];
      if (r < rows) put(dv + r * op.columns + column, gradient);
      weighed[n][i] = -gradient * expf(shared.sums[r]) * shared.inverse_k[r];
    });
    ddelta.put(0, block.warp * 16, solved);
    of_k.put(0, block.warp * 16, weighed);
    __syncthreads();

    ddelta.keep(kept.ddeltas + (at * op.wide + block.column) * kParts * kChunk, kScanThreads);
    dstate.scale(expf(last));
    for (int j = 0; j < kChunk; j += 16) {
      dstate.add(of_q.left(0, j), q, j, op.dim, block.warp);
      dstate.add(of_k.left(0, j), k, j, op.dim, block.warp);
    }
    dstate.put(shared.state, op.dim, block.warp);
    __syncthreads();
  }
}

}  // namespace

template <class T>
void scan_delta_grad(const Delta<T>& op, const DeltaPrepared& prepared, const DeltaStates& kept, const T* dout, T* dx,
                     CudaContext& context) {
  const size_t bytes = ScanShared<kDerived<T>>::bytes(op.dim) + PartsTile<kDirect<T>>::bytes(kScanColumns, kChunk) +
                       PartsTile<kDerived<T>>::bytes(kScanColumns, kChunk);
  with_pairs(op, [&](auto pairs) {
    QENG_LAUNCH(context, (delta_scan_grad<T, pairs()>), scan_grid(op), dim3(kScanThreads), bytes, op, prepared, kept,
                dout, dx);
  });
}
template void scan_delta_grad(const Delta<float>&, const DeltaPrepared&, const DeltaStates&, const float*, float*,
                              CudaContext&);
template void scan_delta_grad(const Delta<bf16>&, const DeltaPrepared&, const DeltaStates&, const bf16*, bf16*,
                              CudaContext&);

}  // namespace qeng
