// GatedDelta over whole documents. Columns of a state are independent, so a block goes down a document with 16 of them:
// its part of S^T [16, dim] is sums in registers, each warp having its share of the dims, and for products parts in
// shared memory. The inside of a chunk is ready (delta_prepare.cu).
#include "kernels/cuda/delta/delta_scan.h"

namespace qeng {
namespace {

// kKeep: the states as chunks began and D^T go to memory, for the gradient; else o does.
template <class T, int kPairs, bool kKeep>
__global__ void __launch_bounds__(kScanThreads)
    delta_scan(const Delta<T> op, const DeltaPrepared prepared, const DeltaStates kept, T* o) {
  constexpr int kParts = kDerived<T>;
  const ScanBlock block(op);
  const ScanShared<kParts> shared(op.dim);
  State<kPairs> state;
  state.put(shared.state, op.dim, block.warp);

  const int64_t begin = op.bound(block.document), end = op.bound(block.document + 1);
  int64_t slot = op.first_slot(block.document);
  for (int64_t row = begin; row < end; row += kChunk, ++slot) {
    const int rows = static_cast<int>(end - row < kChunk ? end - row : kChunk);
    const int64_t at = slot * op.launched_value_heads() + block.head;
    const MemoryRows<T> q{op.q(row, block.key_head), op.columns, rows}, k{op.k(row, block.key_head), op.columns, rows};
    shared.fetch(prepared, op, block, slot, row, rows);
    ptx::cp_async_wait<0>();
    __syncthreads();
    if constexpr (kKeep)
      shared.state.keep(kept.states + (at * op.wide + block.column) * kParts * op.dim, kScanThreads);

    // R^T = S^T K^T and the state's part of O^T, of the warp's 16 rows
    Sums16 read = {}, out = {};
    for (int d = 0; d < op.dim; d += 16) {
      const auto left = shared.state.left(0, d);
      multiply(read, left, k.right(block.warp * 16, d));
      if constexpr (!kKeep) multiply(out, left, q.right(block.warp * 16, d));
    }
    const T* v = op.v(row, block.value_head) + block.column;
    each_sum([&](int n, int i, int column, int down) {
      const int r = block.warp * 16 + down;
      const float x = r < rows ? to_f32(v[r * op.columns + column]) : 0.0f;
      read[n][i] = shared.beta[r] * (x - expf(shared.sums[r]) * shared.inverse_k[r] * read[n][i]);
    });
    shared.right_side.put(0, block.warp * 16, read);
    __syncthreads();

    // D^T, and its rows as they go into the state
    Sums16 delta = {}, weighed;
    for (int j = 0; j <= block.warp; ++j)
      multiply(delta, shared.right_side.left(0, 16 * j), shared.t.right(block.warp * 16, 16 * j));
    const float last = shared.sums[kChunk - 1];
    each_sum([&](int n, int i, int, int down) {
      const int r = block.warp * 16 + down;
      weighed[n][i] = delta[n][i] * expf(last - shared.sums[r]) * shared.inverse_k[r];
    });
    shared.delta.put(0, block.warp * 16, delta);
    shared.weighed.put(0, block.warp * 16, weighed);
    __syncthreads();

    if constexpr (kKeep) {
      shared.delta.keep(kept.deltas + (at * op.wide + block.column) * kParts * kChunk, kScanThreads);
    } else {
      each_sum([&](int n, int i, int, int down) {
        const int r = block.warp * 16 + down;
        out[n][i] *= expf(shared.sums[r]) * shared.inverse_q[r];
      });
      for (int j = 0; j <= block.warp; ++j)
        multiply(out, shared.delta.left(0, 16 * j), shared.p.right(block.warp * 16, 16 * j));
      T* to = o + row * op.value_heads * op.wide + block.value_head * op.wide + block.column;
      each_sum([&](int n, int i, int column, int down) {
        const int r = block.warp * 16 + down;
        if (r < rows) put(to + int64_t{r} * op.value_heads * op.wide + column, out[n][i]);
      });
    }
    state.scale(expf(last));
    for (int j = 0; j < kChunk; j += 16)
      state.add(shared.weighed.left(0, j), k, j, op.dim, block.warp);
    state.put(shared.state, op.dim, block.warp);
    __syncthreads();
  }
}

template <class T, int kPairs>
void launch_scan(const Delta<T>& op, const DeltaPrepared& prepared, const DeltaStates* kept, T* o,
                 CudaContext& context) {
  const dim3 grid = scan_grid(op);
  const size_t bytes = ScanShared<kDerived<T>>::bytes(op.dim);
  if (kept)
    QENG_LAUNCH(context, (delta_scan<T, kPairs, true>), grid, dim3(kScanThreads), bytes, op, prepared, *kept, o);
  else
    QENG_LAUNCH(context, (delta_scan<T, kPairs, false>), grid, dim3(kScanThreads), bytes, op, prepared, DeltaStates(),
                o);
}

}  // namespace

template <class T>
void scan_delta(const Delta<T>& op, const DeltaPrepared& prepared, const DeltaStates* kept, T* o,
                CudaContext& context) {
  with_pairs(op, [&](auto pairs) { launch_scan<T, pairs()>(op, prepared, kept, o, context); });
}
template void scan_delta(const Delta<float>&, const DeltaPrepared&, const DeltaStates*, float*, CudaContext&);
template void scan_delta(const Delta<bf16>&, const DeltaPrepared&, const DeltaStates*, bf16*, CudaContext&);

void run(const GatedDelta& op, CudaContext& context) {
  for_float(op.x, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const Delta<T> delta = delta_operands<T>(op, context);
    if (op.state) {
      run_paged_delta(op, delta, context);
    } else {
      const DeltaPrepared prepared = allocate_prepared(delta, context);
      prepare_delta(delta, prepared, context);
      scan_delta<T>(delta, prepared, nullptr, op.o.as<T>(), context);
    }
    clear_past<T>(op.cu, op.o, context);
  });
}

}  // namespace qeng
