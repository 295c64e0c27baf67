// The gradient's pass over a document, from its last chunk to its first. In the words of delta.h, with dS the gradient
// of the state that a chunk leaves and dR that of beta R (R = V - e^{sum} K S):
//   dR = T^T (e^{last - sum} K dS + P^T dO)    dV = beta dR
//   dS <- e^{last} dS + Q^T (e^{sum} dO) - K^T (beta e^{sum} dR)
// Of the warps of 16 columns those of the first role follow dR. Those of the second have what does not wait for it.
#include "kernels/cuda/delta/delta_grad.h"

namespace qeng {
namespace {

enum Tile { kRightSide, kSolved, kOfQ, kOfK, kTiles };
constexpr int kAside = kChunk * kScanColumns;  // floats of P^T dO, a thread's 8 together

template <class Form, class T>
__global__ void __launch_bounds__(Form::kThreads, 1)
    delta_scan_grad(const Delta<T> op, const DeltaPrepared prepared, int stages, const DeltaStates kept, const T* dout,
                    T* dx) {
  using Half = ScanHalf<Form, kTiles, kAside>;
  const ScanPlace<Form> place(op);
  const Half own{reinterpret_cast<bf16*>(shared_memory() + place.half * Half::kBytes)};
  char* staged = shared_memory() + Form::kHalves * Half::kBytes;
  const auto state_tile = own.state(), right_side = own.rows(kRightSide), solved_tile = own.rows(kSolved),
             of_q = own.rows(kOfQ), of_k = own.rows(kOfK);
  const int lane = place.thread % kWarp;
  float* aside = own.floats() + (place.row / 16 * kWarp + lane) * 8;
  const int dim = Form::dims(op);
  State<Form> state;
  state.put(state_tile, dim, place.sharer);

  const int64_t begin = op.bound(place.document), end = op.bound(place.document + 1);
  const int64_t first_slot = op.first_slot(place.document), stride = int64_t{op.value_heads} * op.wide;
  const int chunks = static_cast<int>((end - begin + kChunk - 1) / kChunk);
  const auto row_of = [&](int chunk) { return begin + int64_t{chunk} * kChunk; };
  const auto rows_of = [&](int64_t row) { return static_cast<int>(end - row < kChunk ? end - row : kChunk); };
  const auto columns_of = [&](int64_t row) {
    return dout + row * stride + place.value_head * op.wide + place.block_column;
  };
  const auto stage_of = [&](int chunk) {
    const int64_t row = row_of(chunk);
    return ScanStage<Form>(staged + (chunk & (stages - 1)) * ScanStage<Form>::kBytes, prepared, op, place,
                           first_slot + chunk, row, rows_of(row), columns_of(row), stride);
  };
  const auto fetch = [&](int chunk) {
    const int64_t row = row_of(chunk);
    if (chunk >= 0)
      stage_of(chunk).fetch(prepared, op, place, first_slot + chunk, row, rows_of(row), columns_of(row), stride, true);
    else
      ptx::cp_async_commit();
  };
  for (int stage = 0; stage < stages; ++stage) fetch(chunks - 1 - stage);
  for (int chunk = chunks - 1; chunk >= 0; --chunk) {
    wait_stage(stages);
    __syncthreads();
    const int64_t row = row_of(chunk);
    const ScanStage<Form> stage = stage_of(chunk);
    const int64_t at = (first_slot + chunk) * op.launched_value_heads() + place.head;
    const int role_thread = place.thread % (kScanWarps * kWarp);
    Sums16 sums[Form::kParts] = {};
    if (place.role == 0) {
#pragma unroll
      for (int d = 0; d < dim; d += 16) multiply(sums, state_tile.left(0, d), stage.k.right(place.row, d));
    } else {
      for (int i = place.row; i < kChunk; i += 16)
        multiply(sums, stage.values.left_down(i, place.half * kScanColumns), stage.p.right_down(i, place.row));
      Sums16 faded;
      each_sum([&](int n, int i, int column, int down) {
        const int r = place.row + down;
        faded[n][i] = stage.values.value(r, place.half * kScanColumns + column) * stage.vector(kAsking)[r];
        aside[4 * n + i] = total(sums, n, i);
      });
      of_q.put(0, place.row, faded);
      state_tile.keep(kept.dstates + (at * op.wide + place.column) * Form::kParts * op.dim, op.dim, role_thread,
                      kScanWarps * kWarp);
    }
    state.scale(expf(stage.vector(kSums)[kChunk - 1]));
    __syncthreads();

    const auto add_queries = [&] {
      for (int i = 0; i < kChunk; i += 16) state.add(of_q.left(0, i), stage.q, i, dim, place.sharer);
    };
    if (place.role == 0) {
      Sums16 right;
      each_sum([&](int n, int i, int, int down) {
        right[n][i] = fmaf(total(sums, n, i), stage.vector(kWriting)[place.row + down], aside[4 * n + i]);
      });
      right_side.put(0, place.row, right);
    } else {
      add_queries();
    }
    __syncthreads();

    if (place.role == 0) {
      Sums16 ranks[Form::kParts] = {}, solved, weighed, dv;
      for (int i = place.row; i < kChunk; i += 16)
        multiply(ranks, right_side.left(0, i), stage.t.right_down(i, place.row));
      each_sum([&](int n, int i, int, int down) {
        const int r = place.row + down;
        const float each = solved[n][i] = total(ranks, n, i);
        weighed[n][i] = stage.vector(kReading)[r] * each;
        dv[n][i] = stage.vector(kBeta)[r] * each;
      });
      T* to =
          dx + (row + place.row) * op.columns + 2 * op.key_heads * op.dim + place.value_head * op.wide + place.column;
      store_columns<Form>(dv, rows_of(row) - place.row, to, op.columns,
                          own.floats() + place.row / 16 * kTurned / 4);  // which were used up
      solved_tile.put(0, place.row, solved);
      of_k.put(0, place.row, weighed);
      add_queries();
    }
    __syncthreads();

    for (int i = 0; i < kChunk; i += 16) state.add(of_k.left(0, i), stage.k, i, dim, place.sharer);
    state.put(state_tile, dim, place.sharer);
    if (place.role == 1)
      solved_tile.keep(kept.ddeltas + (at * op.wide + place.column) * Form::kParts * kChunk, kChunk, role_thread,
                       kScanWarps * kWarp);
    __syncthreads();
    fetch(chunk - stages);
  }
}

}  // namespace

template <class T>
void scan_delta_grad(const Delta<T>& op, const DeltaPrepared& prepared, const DeltaStates& kept, const T* dout, T* dx,
                     CudaContext& context) {
  with_scan_form<2 * kScanWarps, kTiles, kAside>(op, aligned(op.x, 16) && aligned(dout, 16) && aligned(dx, 16), context,
                                                 [&](auto form, dim3 grid, size_t bytes, int stages) {
                                                   using Form = decltype(form);
                                                   QENG_LAUNCH(context, (delta_scan_grad<Form, T>), grid,
                                                               dim3(Form::kThreads), bytes, op, prepared, stages, kept,
                                                               dout, dx);
                                                 });
}
template void scan_delta_grad(const Delta<float>&, const DeltaPrepared&, const DeltaStates&, const float*, float*,
                              CudaContext&);
template void scan_delta_grad(const Delta<bf16>&, const DeltaPrepared&, const DeltaStates&, const bf16*, bf16*,
                              CudaContext&);

}  // namespace qeng
