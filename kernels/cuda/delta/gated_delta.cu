// GatedDelta over whole documents, a chunk after the other; the inside of chunks is ready (delta_prepare.cu). The first
// role follows the state: D^T, then S^T. The second has o: what it asks of the state beside it, and a chunk later P D.
#include "kernels/cuda/delta/delta_scan.h"

namespace qeng {
namespace {

enum Tile { kRightSide, kWeighed, kDelta, kTiles = kDelta + 2 };  // D^T of a chunk and of the one before it
constexpr int kFloats = kScanWarps * kTurned / 4;
template <class Form>
using Half = ScanHalf<Form, 2, kTiles, kFloats>;

// stages: 1 or 2. kKeep: the states as chunks began and D^T go to memory, for the gradient; else o does.
template <class Form, bool kKeep, class T>
__global__ void __launch_bounds__(Form::kThreads, 1)
    delta_scan(const Delta<T> op, const DeltaPrepared prepared, int stages, const DeltaStates kept, T* o) {
  if (Form::kStaged && !ptx::from_sm80()) return;
  using Stage = ScanStage<Form>;
  constexpr int kFetchers = Form::kHalves * Form::kRoleThreads;  // the second role of all halves
  const ScanPlace<Form> place(op);
  const Half<Form> own{reinterpret_cast<bf16*>(shared_memory() + place.half * Half<Form>::kBytes)};
  char* staged = shared_memory() + Form::kHalves * Half<Form>::kBytes;
  const auto right_side = own.rows(kRightSide), weighed_tile = own.rows(kWeighed);
  const int dim = Form::dims(op);

  const int64_t begin = op.bound(place.document), end = op.bound(place.document + 1);
  const int64_t first_slot = op.first_slot(place.document);
  const int chunks = static_cast<int>((end - begin + kChunk - 1) / kChunk);
  const auto source_of = [&](int chunk) {
    const int64_t row = begin + int64_t{chunk} * kChunk;
    return typename Stage::Source{first_slot + chunk, row, static_cast<int>(end - row < kChunk ? end - row : kChunk),
                                  op.v(row, place.value_head) + place.block_column, op.columns};
  };
  const auto stage_of = [&](int chunk) {
    char* memory = staged + (chunk & (stages - 1)) * (Stage::kBytes + Stage::kValuesBytes);
    return Stage(memory, memory + Stage::kBytes, prepared, op, place, source_of(chunk));
  };
  const auto fetch = [&](int chunk) {  // a chunk but for P, and P of the one before it
    const int thread = ptx::opaque(place.half * Form::kRoleThreads + place.role_thread());
    if (place.role == 1 && chunk < chunks) {
      const Stage stage = stage_of(chunk);
      stage.template fetch_chunk<kFetchers>(thread, prepared, op, place, source_of(chunk), !kKeep);
      stage.template fetch_values<kFetchers>(thread, source_of(chunk));
    }
    if (!kKeep && place.role == 1 && chunk > 0 && chunk <= chunks) {
      const Stage before = stage_of(chunk - 1);
      before.template fetch_matrix<kFetchers>(thread, before.p, prepared.p, op, place, first_slot + chunk - 1);
    }
    ptx::cp_async_commit();
  };
  State<Form> state;
  if (place.role == 0) state.put(own.state(), dim, place.warp);
  fetch(0);
  ptx::cp_async_wait<0>();
  __syncthreads();

  Sums16 sums[Form::kParts] = {};
  for (int chunk = 0; chunk <= chunks; ++chunk) {
    if (stages == 2) fetch(chunk + 1);
    const auto state_tile = own.state(chunk & 1), delta_tile = own.rows(kDelta + (chunk & 1)),
               delta_before = own.rows(kDelta + ((chunk + 1) & 1));
    const int64_t at = (first_slot + chunk) * op.launched_value_heads() + place.head;
    const bool real = chunk < chunks;
    const Stage stage = stage_of(chunk);
    if (place.role == 0 && real) {
      Sums16 read[Form::kParts] = {}, right;
      read_state<Form>(read, state_tile, stage.k, place.row, dim);
      each_sum([&](int n, int i, int column, int down) {
        const int r = place.row + down;
        right[n][i] = stage.vector(kReading)[r] * total(read, n, i) +
                      stage.vector(kBeta)[r] * stage.values.value(r, place.half * kScanColumns + column);
      });
      right_side.put(0, place.row, right);
    } else if (place.role == 1 && kKeep) {
      const int thread = ptx::opaque(place.role_thread());
      const int64_t before = at - op.launched_value_heads();
      if (chunk > 0)
        delta_before.template keep<Form::kRoleThreads, kScanColumns, kChunk>(
            thread, kept.deltas + (before * op.wide + place.column) * Form::kParts * kChunk, kChunk);
      if (real)
        state_tile.template keep<Form::kRoleThreads, kScanColumns, Form::kMostDim>(
            thread, kept.states + (at * op.wide + place.column) * Form::kParts * op.dim, op.dim);
    } else if (place.role == 1 && chunk > 0) {
      const Stage earlier = stage_of(chunk - 1);
      for (int j = 0; j <= place.row; j += 16) multiply(sums, delta_before.left(0, j), earlier.p.right(place.row, j));
      Sums16 out;
      each_sum([&](int n, int i, int, int) { out[n][i] = total(sums, n, i); });
      const int64_t first = begin + int64_t{chunk - 1} * kChunk + place.row, stride = int64_t{op.value_heads} * op.wide;
      store_columns<Form>(out, static_cast<int>(end - first < 16 ? end - first : 16),
                          o + first * stride + place.value_head * op.wide + place.column, stride,
                          own.floats() + place.warp * kTurned / 4);
    }
    __syncthreads();

    if (place.role == 0 && real) {
      Sums16 delta[Form::kParts] = {}, solved, weighed;
      for (int j = 0; j <= place.row; j += 16) multiply(delta, right_side.left(0, j), stage.t.right(place.row, j));
      each_sum([&](int n, int i, int, int down) {
        solved[n][i] = total(delta, n, i);
        weighed[n][i] = solved[n][i] * stage.vector(kWriting)[place.row + down];
      });
      weighed_tile.put(0, place.row, weighed);
      delta_tile.put(0, place.row, solved);
      state.scale(expf(stage.vector(kSums)[kChunk - 1]));
    } else if (place.role == 1 && real && !kKeep) {
      for (auto& rank : sums) each_sum([&](int n, int i, int, int) { rank[n][i] = 0; });
      read_state<Form>(sums, state_tile, stage.q, place.row, dim);
    }
    __syncthreads();

    if (place.role == 0 && real) {
#pragma unroll
      for (int j = 0; j < kChunk; j += 16) state.add(weighed_tile.left(0, j), stage.k, j, dim, place.warp);
      state.put(own.state((chunk + 1) & 1), dim, place.warp);
    } else if (place.role == 1 && real && !kKeep) {
      each_sum([&](int n, int i, int, int down) {
        const float factor = stage.vector(kAsking)[place.row + down];
        for (auto& rank : sums) rank[n][i] *= factor;
      });
    }
    if (stages == 1) {
      __syncthreads();
      fetch(chunk + 1);
    }
    ptx::cp_async_wait<0>();
    __syncthreads();
  }
}

template <bool kKeep, int kParts, class T>
void launch_scan(const Delta<T>& op, const DeltaPrepared& prepared, const DeltaStates& kept, T* o,
                 CudaContext& context) {
  const auto bytes = [](auto form, int stages) {
    using Form = decltype(form);
    return Form::kHalves * Half<Form>::kBytes + stages * (ScanStage<Form>::kBytes + ScanStage<Form>::kValuesBytes);
  };
  with_scan_form<kParts, 2>(op, aligned(op.x, 16) && aligned(o, 16), context, bytes,
                            [&](auto form, dim3 grid, size_t shared, int stages) {
                              using Form = decltype(form);
                              QENG_LAUNCH(context, (delta_scan<Form, kKeep, T>), grid, dim3(Form::kThreads), shared, op,
                                          prepared, stages, kept, o);
                            });
}

}  // namespace

template <class T>
void keep_delta_states(const Delta<T>& op, const DeltaPrepared& prepared, const DeltaStates& kept,
                       CudaContext& context) {
  launch_scan<true, kDerived<T>>(op, prepared, kept, static_cast<T*>(nullptr), context);
}
template void keep_delta_states(const Delta<float>&, const DeltaPrepared&, const DeltaStates&, CudaContext&);
template void keep_delta_states(const Delta<bf16>&, const DeltaPrepared&, const DeltaStates&, CudaContext&);

void run(const GatedDelta& op, CudaContext& context) {
  for_float(op.x, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const Delta<T> delta = delta_operands<T>(op, context);
    if (op.state) {
      run_paged_delta(op, delta, context);
    } else {
      constexpr int kParts = kDerived<T>;
      const DeltaPrepared prepared = allocate_prepared<kParts>(delta, slots_of(delta), context);
      prepare_delta<kParts>(delta, prepared, context);
      launch_scan<false, kParts>(delta, prepared, DeltaStates(), op.o.as<T>(), context);
    }
    clear_past<T>(op.cu, op.o, context);
  });
}

}  // namespace qeng
