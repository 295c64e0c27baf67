// GatedDelta over whole documents, a chunk after the other; the inside of chunks is ready (delta_prepare.cu). Of the
// warps of 16 columns those of the first role follow the state: D^T, then S^T. Those of the second have o beside them.
#include "kernels/cuda/delta/delta_scan.h"

namespace qeng {
namespace {

enum Tile { kRightSide, kDelta, kWeighed, kTiles };

// stages: 1 or 2. kKeep: the states as chunks began and D^T go to memory, for the gradient; else o does.
template <class Form, bool kKeep, class T>
__global__ void __launch_bounds__(Form::kThreads, 1)
    delta_scan(const Delta<T> op, const DeltaPrepared prepared, int stages, const DeltaStates kept, T* o) {
  const ScanPlace<Form> place(op);
  const ScanHalf<Form, kTiles> own{
      reinterpret_cast<bf16*>(shared_memory() + place.half * ScanHalf<Form, kTiles>::kBytes)};
  char* staged = shared_memory() + Form::kHalves * ScanHalf<Form, kTiles>::kBytes;
  const auto state_tile = own.state(), right_side = own.rows(kRightSide), delta_tile = own.rows(kDelta),
             weighed_tile = own.rows(kWeighed);
  const int dim = Form::dims(op);
  State<StateForm<Form>> state;
  if (place.role == 0) state.put(state_tile, dim, place.sharer);

  const int64_t begin = op.bound(place.document), end = op.bound(place.document + 1);
  const int64_t first_slot = op.first_slot(place.document);
  const int chunks = static_cast<int>((end - begin + kChunk - 1) / kChunk);
  const auto row_of = [&](int chunk) { return begin + int64_t{chunk} * kChunk; };
  const auto rows_of = [&](int64_t row) { return static_cast<int>(end - row < kChunk ? end - row : kChunk); };
  const auto stage_of = [&](int chunk) {
    const int64_t row = row_of(chunk);
    return ScanStage<Form>(staged + (chunk & (stages - 1)) * ScanStage<Form>::kBytes, prepared, op, place,
                           first_slot + chunk, row, rows_of(row), op.v(row, place.value_head) + place.block_column,
                           op.columns);
  };
  const auto fetch = [&](int chunk) {
    const int64_t row = row_of(chunk);
    if (chunk < chunks)
      stage_of(chunk).fetch(prepared, op, place, first_slot + chunk, row, rows_of(row),
                            op.v(row, place.value_head) + place.block_column, op.columns, !kKeep);
    else
      ptx::cp_async_commit();
  };
  for (int stage = 0; stage < stages; ++stage) fetch(stage);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    wait_stage(stages);
    __syncthreads();
    const int64_t row = row_of(chunk);
    const ScanStage<Form> stage = stage_of(chunk);
    const int64_t at = (first_slot + chunk) * op.launched_value_heads() + place.head;
    const float whole = expf(stage.vector(kSums)[kChunk - 1]);
    Sums16 sums[Form::kParts] = {};
    if (place.role == 0) {
      if constexpr (kKeep)
        state_tile.keep(kept.states + (at * op.wide + place.column) * Form::kParts * op.dim, op.dim,
                        place.sharer * kWarp + place.thread % kWarp, kScanWarps * kWarp);
#pragma unroll
      for (int d = 0; d < dim; d += 16) multiply(sums, state_tile.left(0, d), stage.k.right(place.row, d));
      Sums16 right;
      each_sum([&](int n, int i, int column, int down) {
        const int r = place.row + down;
        right[n][i] = stage.vector(kReading)[r] * total(sums, n, i) +
                      stage.vector(kBeta)[r] * stage.values.value(r, place.half * kScanColumns + column);
      });
      right_side.put(0, place.row, right);
    } else {
#pragma unroll
      for (int d = 0; d < dim; d += 16) multiply(sums, state_tile.left(0, d), stage.q.right(place.row, d));
    }
    __syncthreads();

    if (place.role == 0) {
      Sums16 delta[Form::kParts] = {}, solved, weighed;
      for (int j = 0; j <= place.row; j += 16) multiply(delta, right_side.left(0, j), stage.t.right(place.row, j));
      each_sum([&](int n, int i, int, int down) {
        solved[n][i] = total(delta, n, i);
        weighed[n][i] = solved[n][i] * stage.vector(kWriting)[place.row + down];
      });
      delta_tile.put(0, place.row, solved);
      weighed_tile.put(0, place.row, weighed);
      state.scale(whole);
    } else {
      each_sum([&](int n, int i, int, int down) {
        const float factor = stage.vector(kAsking)[place.row + down];
        for (auto& rank : sums) rank[n][i] *= factor;
      });
    }
    __syncthreads();

    if (place.role == 0) {
      if constexpr (kKeep)
        delta_tile.keep(kept.deltas + (at * op.wide + place.column) * Form::kParts * kChunk, kChunk,
                        place.sharer * kWarp + place.thread % kWarp, kScanWarps * kWarp);
#pragma unroll
      for (int j = 0; j < kChunk; j += 16) state.add(weighed_tile.left(0, j), stage.k, j, dim, place.sharer);
      state.put(state_tile, dim, place.sharer);
    } else {
      for (int j = 0; j <= place.row; j += 16) multiply(sums, delta_tile.left(0, j), stage.p.right(place.row, j));
      Sums16 out;
      each_sum([&](int n, int i, int, int) { out[n][i] = total(sums, n, i); });
      const int64_t first = row + place.row, stride = int64_t{op.value_heads} * op.wide;
      store_columns<Form>(out, rows_of(row) - place.row, o + first * stride + place.value_head * op.wide + place.column,
                          stride, right_side.data + place.row / 16 * kTurned / 2);  // which was used up
    }
    __syncthreads();
    fetch(chunk + stages);
  }
}

}  // namespace

template <class T>
void scan_delta(const Delta<T>& op, const DeltaPrepared& prepared, const DeltaStates* kept, T* o,
                CudaContext& context) {
  const bool vectors = aligned(op.x, 16) && aligned(o, 16);
  if (kept)
    with_scan_form<kScanWarps, kTiles>(op, vectors, context, [&](auto form, dim3 grid, size_t bytes, int stages) {
      using Form = decltype(form);
      QENG_LAUNCH(context, (delta_scan<Form, true, T>), grid, dim3(Form::kThreads), bytes, op, prepared, stages, *kept,
                  o);
    });
  else
    with_scan_form<2 * kScanWarps, kTiles>(op, vectors, context, [&](auto form, dim3 grid, size_t bytes, int stages) {
      using Form = decltype(form);
      QENG_LAUNCH(context, (delta_scan<Form, false, T>), grid, dim3(Form::kThreads), bytes, op, prepared, stages,
                  DeltaStates(), o);
    });
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
      const DeltaPrepared prepared = allocate_prepared(delta, slots_of(delta), context);
      prepare_delta(delta, prepared, context);
      scan_delta<T>(delta, prepared, nullptr, op.o.as<T>(), context);
    }
    clear_past<T>(op.cu, op.o, context);
  });
}

}  // namespace qeng
