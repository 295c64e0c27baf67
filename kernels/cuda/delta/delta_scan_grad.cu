// The gradient's pass over a document, from its last chunk to its first. In the words of delta.h, with dS the gradient
// of the state that a chunk leaves and dR that of beta R (R = V - e^{sum} K S):
//   dR = T^T (e^{last - sum} K dS + P^T dO)    dV = beta dR
//   dS <- e^{last} dS + Q^T (e^{sum} dO) - K^T (beta e^{sum} dR)
// The first role follows dR. The second has the state, and P^T dO a chunk ahead.
#include "kernels/cuda/delta/delta_grad.h"

namespace qeng {
namespace {

enum Tile { kRightSide, kSolved, kOfK, kTiles };
constexpr int kAside = kChunk * kScanColumns;  // floats of P^T dO: of each thread the first four, then the others
constexpr int kFloats = kAside + kScanWarps * kTurned / 4;
template <class Form>
using Half = ScanHalf<Form, 2, kTiles, kFloats>;

// As left operands: 16 columns of dO times the rows' factors, as parts.
template <class Form, class Rows>
__device__ inline Parts<Form::kParts> faded(const Rows& values, int row, int column, const float* factors) {
  const int g = static_cast<int>(threadIdx.x) % kWarp / 4, t = static_cast<int>(threadIdx.x) % 4;
  Parts<Form::kParts> left;
  const auto set_pair = [&](int i, float low, float high) {
    const int r = row + i / 2 * 8 + 2 * t;
    set(left, i, low * factors[r], high * factors[r + 1]);
  };
  if constexpr (Form::kStaged) {
    const auto raw = values.left_down(row, column);
#pragma unroll
    for (int i = 0; i < 4; ++i) set_pair(i, float_of(raw.r[0][i] << 16), float_of(raw.r[0][i] & 0xffff0000u));
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = row + i / 2 * 8 + 2 * t, c = column + i % 2 * 8 + g;
      set_pair(i, values.value(r, c), values.value(r + 1, c));
    }
  }
  return left;
}

// Chunks go down to 0; the columns of one, dO, stay for two. stages: 1 or 2.
template <class Form, class T>
__global__ void __launch_bounds__(Form::kThreads, 1)
    delta_scan_grad(const Delta<T> op, const DeltaPrepared prepared, int stages, const DeltaStates kept, const T* dout,
                    T* dx) {
  if (Form::kStaged && !ptx::from_sm80()) return;
  using Stage = ScanStage<Form>;
  constexpr int kFetchers = Form::kHalves * Form::kRoleThreads;  // the second role of all halves
  const ScanPlace<Form> place(op);
  const Half<Form> own{reinterpret_cast<bf16*>(shared_memory() + place.half * Half<Form>::kBytes)};
  char* staged = shared_memory() + Form::kHalves * Half<Form>::kBytes;
  char* of_values = staged + stages * Stage::kBytes;
  const auto right_side = own.rows(kRightSide), solved_tile = own.rows(kSolved), of_k = own.rows(kOfK);
  const int dim = Form::dims(op);

  const int64_t begin = op.bound(place.document), end = op.bound(place.document + 1);
  const int64_t first_slot = op.first_slot(place.document), stride = int64_t{op.value_heads} * op.wide;
  const int chunks = static_cast<int>((end - begin + kChunk - 1) / kChunk);
  const auto source_of = [&](int chunk) {
    const int64_t row = begin + int64_t{chunk} * kChunk;
    return typename Stage::Source{first_slot + chunk, row, static_cast<int>(end - row < kChunk ? end - row : kChunk),
                                  dout + row * stride + place.value_head * op.wide + place.block_column, stride};
  };
  const auto stage_of = [&](int chunk) {
    return Stage(staged + (chunk & (stages - 1)) * Stage::kBytes,
                 of_values + chunk % (stages + 1) * Stage::kValuesBytes, prepared, op, place, source_of(chunk));
  };
  const auto fetch = [&](int chunk) {  // a chunk but for P and dO, and those of the next
    const int thread = ptx::opaque(place.half * Form::kRoleThreads + place.role_thread());
    if (place.role == 1 && chunk >= 0 && chunk < chunks)
      stage_of(chunk).template fetch_chunk<kFetchers>(thread, prepared, op, place, source_of(chunk), true);
    if (place.role == 1 && chunk > 0) {
      const Stage next = stage_of(chunk - 1);
      next.template fetch_matrix<kFetchers>(thread, next.p, prepared.p, op, place, first_slot + chunk - 1);
      next.template fetch_values<kFetchers>(thread, source_of(chunk - 1));
    }
    ptx::cp_async_commit();
  };
  float4* aside = reinterpret_cast<float4*>(own.floats()) + place.role_thread();
  State<Form> state;
  if (place.role == 1) state.put(own.state((chunks - 1) & 1), dim, place.warp);
  fetch(chunks);
  ptx::cp_async_wait<0>();
  __syncthreads();

  for (int chunk = chunks; chunk >= 0; --chunk) {
    if (stages == 2) fetch(chunk - 1);
    const bool real = chunk < chunks;
    const int64_t at = (first_slot + chunk) * op.launched_value_heads() + place.head;
    const Stage stage = stage_of(chunk);
    const auto state_tile = own.state(chunk & 1);
    Sums16 dv;
    if (place.role == 0 && real) {
      Sums16 read[Form::kParts] = {}, right;
      read_state<Form>(read, state_tile, stage.k, place.row, dim);
      const float4 four[2] = {aside[0], aside[Form::kRoleThreads]};
      each_sum([&](int n, int i, int, int down) {
        const float added = i == 0 ? four[n].x : i == 1 ? four[n].y : i == 2 ? four[n].z : four[n].w;
        right[n][i] = fmaf(total(read, n, i), stage.vector(kWriting)[place.row + down], added);
      });
      right_side.put(0, place.row, right);
    } else if (place.role == 1 && real) {
      state.scale(expf(stage.vector(kSums)[kChunk - 1]));
#pragma unroll
      for (int i = 0; i < kChunk; i += 16)
        state.add(faded<Form>(stage.values, i, place.half * kScanColumns, stage.vector(kAsking)), stage.q, i, dim,
                  place.warp);
    }
    __syncthreads();

    if (place.role == 0 && real) {
      Sums16 ranks[Form::kParts] = {}, solved, weighed;
      for (int i = place.row; i < kChunk; i += 16)
        multiply(ranks, right_side.left(0, i), stage.t.right_down(i, place.row));
      each_sum([&](int n, int i, int, int down) {
        const int r = place.row + down;
        const float each = solved[n][i] = total(ranks, n, i);
        weighed[n][i] = stage.vector(kReading)[r] * each;
        dv[n][i] = stage.vector(kBeta)[r] * each;
      });
      of_k.put(0, place.row, weighed);
      solved_tile.put(0, place.row, solved);
    } else if (place.role == 1 && chunk > 0) {
      const Stage next = stage_of(chunk - 1);
      Sums16 sums[Form::kParts] = {};
      for (int i = place.row; i < kChunk; i += 16)
        multiply(sums, next.values.left_down(i, place.half * kScanColumns), next.p.right_down(i, place.row));
#pragma unroll
      for (int n = 0; n < 2; ++n)
        aside[n * Form::kRoleThreads] =
            make_float4(total(sums, n, 0), total(sums, n, 1), total(sums, n, 2), total(sums, n, 3));
    }
    __syncthreads();

    if (place.role == 1 && real) {
#pragma unroll
      for (int i = 0; i < kChunk; i += 16) state.add(of_k.left(0, i), stage.k, i, dim, place.warp);
      state.put(own.state((chunk + 1) & 1), dim, place.warp);
    } else if (place.role == 0 && real) {
      const int64_t first = begin + int64_t{chunk} * kChunk + place.row;
      T* to = dx + first * op.columns + 2 * op.key_heads * op.dim + place.value_head * op.wide + place.column;
      store_columns<Form>(dv, static_cast<int>(end - first < 16 ? end - first : 16), to, op.columns,
                          own.floats() + kAside + place.warp * kTurned / 4);
      const int thread = ptx::opaque(place.role_thread());
      state_tile.template keep<Form::kRoleThreads, kScanColumns, Form::kMostDim>(
          thread, kept.dstates + (at * op.wide + place.column) * Form::kParts * op.dim, op.dim);
      solved_tile.template keep<Form::kRoleThreads, kScanColumns, kChunk>(
          thread, kept.ddeltas + (at * op.wide + place.column) * Form::kParts * kChunk, kChunk);
    }
    if (stages == 1) {
      __syncthreads();
      fetch(chunk - 1);
    }
    ptx::cp_async_wait<0>();
    __syncthreads();
  }
}

}  // namespace

template <class T>
void scan_delta_grad(const Delta<T>& op, const DeltaPrepared& prepared, const DeltaStates& kept, const T* dout, T* dx,
                     CudaContext& context) {
  const auto bytes_of = [](auto form, int stages) {
    using Form = decltype(form);
    return Form::kHalves * Half<Form>::kBytes + stages * ScanStage<Form>::kBytes +
           (stages + 1) * ScanStage<Form>::kValuesBytes;
  };
  with_scan_form<kDerived<T>, 2>(op, aligned(op.x, 16) && aligned(dout, 16) && aligned(dx, 16), context, bytes_of,
                                 [&](auto form, dim3 grid, size_t bytes, int stages) {
                                   using Form = decltype(form);
                                   QENG_LAUNCH(context, (delta_scan_grad<Form, T>), grid, dim3(Form::kThreads), bytes,
                                               op, prepared, stages, kept, dout, dx);
                                 });
}
template void scan_delta_grad(const Delta<float>&, const DeltaPrepared&, const DeltaStates&, const float*, float*,
                              CudaContext&);
template void scan_delta_grad(const Delta<bf16>&, const DeltaPrepared&, const DeltaStates&, const bf16*, bf16*,
                              CudaContext&);

}  // namespace qeng
