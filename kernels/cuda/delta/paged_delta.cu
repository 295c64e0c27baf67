// GatedDelta in inference. Sequences that have one row more, as most have, are a kernel's of their own
// (paged_delta_row.cu). The others go as in gated_delta.cu, but the triangular system is solved forward, 16 rows at a
// time and one by one within them, so that rows may come at different times. How many sequences that is the device
// knows, so their kernels have grids that fill it once, and each block takes its share.
#include <algorithm>

#include "kernels/cuda/delta/delta_pages.h"

namespace qeng {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kPitch = kChunk + 4;  // floats

// A chunk's normalised keys: those that a page keeps, and those of new rows.
template <class T>
struct Keys {
  const float* kept;  // [dim, kChunk]
  MemoryRows<T> fresh;
  const float* inverse;  // [kChunk], of the fresh ones
  __device__ float value(int j, int d) const {
    return j < fresh.first ? kept[d * kChunk + j] : j < fresh.rows ? __fmul_rn(fresh.value(j, d), inverse[j]) : 0.0f;
  }
};

// As right operands of 16 rows by 16 dims: [slots, heads, kChunk / 16, dim / 16, parts, lanes], made once for all columns.
template <class T>
struct KeyOperands {
  uint4* data;
  __device__ uint4* at(const Delta<T>& op, int64_t of_key, int j, int d) const {
    return data + ((of_key * (kChunk / 16) + j / 16) * (op.dim / 16) + d / 16) * kDerived<T> * kWarp +
           static_cast<int>(threadIdx.x) % kWarp;
  }
};

// What the chunks of a slot need of no state: DeltaPrepared with A in T's place, kWriting without the norm, and keys.
template <class T>
__device__ void prepare_chunk(const Delta<T>& op, const DeltaPages& pages, const DeltaPrepared& out,
                              const KeyOperands<T>& operands, const DeltaSequence& sequence, int64_t chunk,
                              int64_t slot) {
  constexpr int kParts = kDerived<T>;
  const int key_head = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  const int64_t page = sequence.page(op, pages, chunk * kChunk), row = sequence.row_of(chunk);
  if (page < 0) return;
  const int begun = sequence.within(sequence.begun, chunk), end = sequence.within(sequence.length, chunk);

  float* dots = reinterpret_cast<float*>(shared_memory());  // [2, row i, kPitch]: k'_i and q'_i with keys j
  float* inverse_k = dots + 2 * kChunk * kPitch;            // [kChunk] each
  float *inverse_q = inverse_k + kChunk, *sums = inverse_q + kChunk, *beta = sums + kChunk;
  for (int i = thread / kWarp; i < kChunk; i += kWarps) {
    const bool real = i >= begun && i < end;
    const float of_k = real ? inverse_norm(op.k(row + i, key_head), op.dim, op.eps) : 0.0f;
    const float of_q = real ? inverse_norm(op.q(row + i, key_head), op.dim, op.eps) : 0.0f;
    if (lane == 0) inverse_k[i] = of_k, inverse_q[i] = __fmul_rn(of_q, op.scale);
  }
  __syncthreads();
  const MemoryRows<T> k{op.k(row, key_head), op.columns, end, begun}, q{op.q(row, key_head), op.columns, end, begun};
  const Keys<T> keys{DeltaPage(op, pages, page, key_head * op.group).keys, k, inverse_k};
  const int own = thread / kWarp * 16, g = lane / 4, t = lane % 4;
  const int64_t of_key = slot * op.key_heads + key_head;
  for (int d = thread / kWarp * 16; d < op.dim; d += kWarps * 16)  // warps share the dims
    for (int j = 0; j < kChunk; j += 16) {
      Parts<kParts> right;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int from = j + 8 * (i % 2) + 2 * t, to = d + 8 * (i / 2) + g;
        set(right, i, keys.value(from, to), keys.value(from + 1, to));
      }
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        operands.at(op, of_key, j, d)[part * kWarp] =
            make_uint4(right.r[part][0], right.r[part][1], right.r[part][2], right.r[part][3]);
    }
  for (int i = own; i < end; i += 16) {  // the warp's 16 keys with 16 rows
    if (i + 16 <= begun) continue;
    Sums16 of_k[kParts] = {}, of_q[kParts] = {};
    for (int d = 0; d < op.dim; d += 16) {
      Parts<kParts> left;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int from = own + 8 * (e % 2) + g, to = d + 8 * (e / 2) + 2 * t;
        set(left, e, keys.value(from, to), keys.value(from, to + 1));
      }
      multiply(of_k, left, k.right(i, d));
      multiply(of_q, left, q.right(i, d));
    }
    each_sum([&](int n, int e, int j, int down) {
      dots[(i + down) * kPitch + own + j] = total(of_k, n, e);
      dots[(kChunk + i + down) * kPitch + own + j] = total(of_q, n, e);
    });
  }

  for (int value = 0; value < op.group; ++value) {
    const int value_head = key_head * op.group + value;
    const int64_t at = slot * op.value_heads + value_head;
    const float* kept = DeltaPage(op, pages, page, value_head).sums;
    __syncthreads();
    for (int i = thread; i < kChunk; i += kThreads) {
      const bool real = i >= begun && i < end;
      sums[i] = i < begun ? kept[i] : real ? op.g[(row + i) * op.value_heads + value_head] : 0.0f;
      beta[i] = real ? op.beta[(row + i) * op.value_heads + value_head] : 0.0f;
    }
    __syncthreads();
    if (thread == 0)
      for (int i = begun; i < kChunk; ++i) sums[i] += i > 0 ? sums[i - 1] : 0.0f;
    __syncthreads();
    float* vectors = out.vectors + at * kPreparedVectors * kChunk;
    for (int i = thread; i < kChunk; i += kThreads) {
      vectors[kSums * kChunk + i] = sums[i];
      vectors[kBeta * kChunk + i] = beta[i];
      vectors[kReading * kChunk + i] = reading_of(beta[i], sums[i], inverse_k[i]);
      vectors[kWriting * kChunk + i] = expf(sums[kChunk - 1] - sums[i]);
      vectors[kAsking * kChunk + i] = asking_of(sums[i], inverse_q[i]);
    }
    for (int pair = thread; pair < kChunk * kChunk / 2; pair += kThreads) {
      const int i = pair / (kChunk / 2), j = pair % (kChunk / 2) * 2;
      if (j / 16 > i / 16) continue;  // nobody reads these
      const auto two = [&](const float* from) { return *reinterpret_cast<const float2*>(from + j); };
      const float2 of_q = two(dots + (kChunk + i) * kPitch), of_k = two(dots + i * kPitch), sum_j = two(sums);
      float a[2] = {}, p[2] = {};
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (i < begun || i >= end || j + e > i) continue;
        const float sum = e ? sum_j.y : sum_j.x;
        p[e] = factor_of(1, sums[i], sum, inverse_q[i], e ? of_q.y : of_q.x);
        if (j + e < i) a[e] = factor_of(-beta[i], sums[i], sum, inverse_k[i], e ? of_k.y : of_k.x);
      }
      ChunkTriangle<kParts>{out.t + at * ChunkTriangle<kParts>::kElements}.put(i / 16, i % 16, j, a[0], a[1]);
      ChunkTriangle<kParts>{out.p + at * ChunkTriangle<kParts>::kElements}.put(i / 16, i % 16, j, p[0], p[1]);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    paged_delta_prepare(const Delta<T> op, const DeltaPages pages, const DeltaWave wave, const DeltaPrepared out,
                        const KeyOperands<T> operands) {
  const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  each_sequence(wave, [&](int s, int count, int, int before) {
    const DeltaSequence sequence(op, pages, s);
    for (int c = (block + blocks - before % blocks) % blocks; c < count; c += blocks) {
      prepare_chunk(op, pages, out, operands, sequence, sequence.first_chunk() + c, first_paged_slot(op, wave, s) + c);
      __syncthreads();
    }
  });
}

enum Tile { kDelta, kWeighed, kTiles };
constexpr int kDeltaPitch = kChunk + 4, kFloats = kScanColumns * kDeltaPitch;  // of D^T in f32

// Rows of D one by one: x[n][i] becomes row first + down of it, where that is new; older ones lie in `deltas`. a: A's rows.
template <class Tile>
__device__ void solve(const Tile& a, const float* deltas, int first, int begun, Sums16& x) {
  const int g = static_cast<int>(threadIdx.x) % kWarp / 4;
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    const int owner = static_cast<int>(threadIdx.x) % kWarp / 4 * 4 + j % 8 / 2;
    float low = __shfl_sync(kAllLanes, x[j / 8][j % 2], owner),
          high = __shfl_sync(kAllLanes, x[j / 8][2 + j % 2], owner);
    if (first + j < begun) low = deltas[g * kDeltaPitch + first + j], high = deltas[(g + 8) * kDeltaPitch + first + j];
    each_sum([&](int n, int i, int, int down) {
      if (down > j) x[n][i] = fmaf(a.value(first + down, first + j), i < 2 ? low : high, x[n][i]);
    });
  }
}

// Leaves keys and sums of a chunk's new rows in its page, but for those that later rows replace. Only the kernel before
// reads them there.
template <class T, class Place>
__device__ void keep_keys(const Delta<T>& op, const DeltaPages& pages, const DeltaSequence& sequence,
                          const DeltaPage& kept, int64_t chunk, const float* sums, const Place& place) {
  const int begun = sequence.within(sequence.begun, chunk), end = sequence.within(sequence.length, chunk);
  const int lane = place.thread % kWarp, warps = static_cast<int>(blockDim.x) / kWarp;
  for (int i = begun + place.thread / kWarp; i < end; i += warps) {
    if (sequence.replaced(pages, chunk * kChunk + i)) continue;
    if (lane == 0) kept.sums[i] = sums[i];
    if (place.head % op.group != 0) continue;
    const T* k = op.k(sequence.row_of(chunk) + i, place.key_head);
    const float inverse = inverse_norm(k, op.dim, op.eps);
    for (int d = lane; d < op.dim; d += kWarp) kept.keys[d * kChunk + i] = normalised(k[d], inverse);
  }
}

template <class Form, class T>
__device__ void run_sequence(const Delta<T>& op, const DeltaPages& pages, const DeltaPrepared& prepared,
                             const KeyOperands<T>& operands, const DeltaWave& wave, int stages, int number, T* o) {
  using Half = ScanHalf<Form, 1, kTiles, kFloats>;
  using Stage = ScanStage<Form>;
  constexpr int kParts = Form::kParts;
  const ScanPlace<Form> place(op);
  const DeltaSequence sequence(op, pages, number);
  const Half own{reinterpret_cast<bf16*>(shared_memory() + place.half * Half::kBytes)};
  char* staged = shared_memory() + Form::kHalves * Half::kBytes;
  const auto state_tile = own.state(), delta_tile = own.rows(kDelta), weighed_tile = own.rows(kWeighed);
  float* deltas = own.floats();
  State<Form> state;
  const auto each_state = [&](auto f) {  // f(sum, its place in a page's state)
#pragma unroll
    for (int p = 0; p < Form::kPairs; ++p) {
      const int first = (p * kScanWarps + place.warp) * 16;
      if (first < op.dim)
        each_sum([&](int n, int i, int column, int d) {
          f(state.sums[p][n][i], int64_t{first + d} * op.wide + place.column + column);
        });
    }
  };
  const int64_t first_chunk = sequence.first_chunk(), last_chunk = sequence.last_chunk();
  const auto source_of = [&](int64_t c) {
    const int64_t row = sequence.row_of(c);
    return typename Stage::Source{
        first_paged_slot(op, wave, number) + c - first_chunk, row,        sequence.within(sequence.length, c),
        op.v(row, place.value_head) + place.block_column,     op.columns, sequence.within(sequence.begun, c)};
  };
  const auto stage_of = [&](int64_t c) {
    char* memory = staged + (c - first_chunk) % stages * (Stage::kBytes + Stage::kValuesBytes);
    return Stage(memory, memory + Stage::kBytes, prepared, op, place, source_of(c));
  };
  const auto fetch = [&](int64_t c) {
    if (c <= last_chunk) {
      const Stage stage = stage_of(c);
      const auto source = source_of(c);
      const int thread = ptx::opaque(place.thread);  // else addresses are kept in registers from chunk to chunk
      stage.template fetch_chunk<Form::kThreads>(thread, prepared, op, place, source, true);
      stage.template fetch_matrix<Form::kThreads>(thread, stage.p, prepared.p, op, place, source.slot);
      stage.template fetch_values<Form::kThreads>(thread, source);
    }
    ptx::cp_async_commit();
  };
  for (int stage = 0; stage < stages; ++stage) fetch(first_chunk + stage);
  for (int64_t c = first_chunk; c <= last_chunk; ++c) {
    const int64_t page = sequence.page(op, pages, c * kChunk), row = sequence.row_of(c);
    if (page < 0) break;
    const DeltaPage kept(op, pages, page, place.value_head);
    const int begun = sequence.within(sequence.begun, c), end = sequence.within(sequence.length, c);
    const int64_t slot = first_paged_slot(op, wave, number) + c - first_chunk;
    const Stage stage = stage_of(c);
    if (place.role == 0) {
      if (c == first_chunk && sequence.begun > 0) each_state([&](float& sum, int64_t at) { sum = kept.state[at]; });
      if (c * kChunk >= sequence.begun && !sequence.replaced(pages, c * kChunk))
        each_state([&](float& sum, int64_t at) { kept.state[at] = sum; });
      state.put(state_tile, op.dim, place.warp);
      Sums16 old;  // rows of D that the page keeps
      each_sum([&](int n, int i, int column, int down) {
        const int r = place.row + down;
        old[n][i] = r < begun ? kept.deltas[r * op.wide + place.column + column] : 0.0f;
        deltas[column * kDeltaPitch + r] = old[n][i];
      });
      delta_tile.put(0, place.row, old);
    }
    wait_stage(stages);
    __syncthreads();
    if (place.block_column == 0) keep_keys(op, pages, sequence, kept, c, stage.vector(kSums), place);

    const bool fresh = place.row < end && place.row + 16 > begun;  // of the warp's 16 rows some are new
    Sums16 sums[kParts] = {};
    auto vectors = stage.k;
    if (place.role == 1) vectors.data = stage.q.data;
    if (fresh)
      for (int d = 0; d < op.dim; d += 16) multiply(sums, state_tile.left(0, d), vectors.right(place.row, d));
    for (int first = 0; first < kChunk; first += 16) {
      if (place.role == 0 && first == place.row && fresh) {
        Sums16 before[kParts] = {}, x;
        for (int j = 0; j < first; j += 16) multiply(before, delta_tile.left(0, j), stage.t.right(first, j));
        each_sum([&](int n, int i, int column, int down) {
          const int r = first + down;
          x[n][i] = begin_delta(stage.vector(kReading)[r], total(sums, n, i), stage.vector(kBeta)[r],
                                stage.values.value(r, place.half * kScanColumns + column), total(before, n, i));
        });
        solve(stage.t, deltas, first, begun, x);
        each_sum([&](int n, int i, int column, int down) {
          const int r = first + down;
          if (r < begun || r >= end) x[n][i] = deltas[column * kDeltaPitch + r];
          deltas[column * kDeltaPitch + r] = x[n][i];
          if (r >= begun && r < end) kept.deltas[r * op.wide + place.column + column] = x[n][i];
        });
        delta_tile.put(0, first, x);
      }
      __syncthreads();
    }
    if (place.role == 0) {
      Sums16 weighed;
      each_sum([&](int n, int i, int column, int down) {
        const int r = place.row + down;
        weighed[n][i] = __fmul_rn(stage.vector(kWriting)[r], deltas[column * kDeltaPitch + r]);
      });
      weighed_tile.put(0, place.row, weighed);
    }
    __syncthreads();

    if (place.role == 0) {
      state.scale(expf(stage.vector(kSums)[kChunk - 1]));
      const int64_t of_key = slot * op.key_heads + place.key_head;
      if (c < last_chunk)
        for (int j = 0; j < kChunk; j += 16) {
          const auto left = weighed_tile.left(0, j);
#pragma unroll
          for (int p = 0; p < Form::kPairs; ++p) {
            const int d = (p * kScanWarps + place.warp) * 16;
            if (d >= op.dim) continue;
            Parts<kParts> right;
#pragma unroll
            for (int part = 0; part < kParts; ++part) {
              const uint4 four = operands.at(op, of_key, j, d)[part * kWarp];
              right.r[part][0] = four.x, right.r[part][1] = four.y, right.r[part][2] = four.z,
              right.r[part][3] = four.w;
            }
            multiply(state.sums[p], left, right);
          }
        }
    } else if (fresh) {
      Sums16 before[kParts] = {}, out;
      for (int j = 0; j < place.row; j += 16) multiply(before, delta_tile.left(0, j), stage.p.right(place.row, j));
      each_sum([&](int n, int i, int, int down) {
        out[n][i] = begin_out(stage.vector(kAsking)[place.row + down], total(sums, n, i), total(before, n, i));
      });
      for (int j = 0; j < 16; ++j)
        each_sum([&](int n, int i, int column, int down) {
          if (j <= down)
            out[n][i] = fmaf(stage.p.value(place.row + down, place.row + j),
                             deltas[column * kDeltaPitch + place.row + j], out[n][i]);
        });
      each_sum([&](int n, int i, int column, int down) {
        const int r = place.row + down;
        if (r >= begun && r < end)
          put(o + ((row + r) * op.value_heads + place.value_head) * op.wide + place.column + column, out[n][i]);
      });
    }
    __syncthreads();
    fetch(c + stages);
  }
  ptx::cp_async_wait<0>();
  __syncthreads();
}

template <class Form, class T>
__global__ void __launch_bounds__(Form::kThreads, 1)
    paged_delta_chunks(const Delta<T> op, const DeltaPages pages, const DeltaWave wave, const DeltaPrepared prepared,
                       const KeyOperands<T> operands, int stages, T* o) {
  if (Form::kStaged && !ptx::from_sm80()) return;
  each_sequence(wave, [&](int s, int, int sequences, int) {
    if (sequences % static_cast<int>(gridDim.y) == static_cast<int>(blockIdx.y))
      run_sequence<Form>(op, pages, prepared, operands, wave, stages, s, o);
  });
}

}  // namespace

template <class T>
void run_paged_delta(const GatedDelta& op, const Delta<T>& delta, CudaContext& context) {
  const DeltaPages pages{.state = op.state.as<float>(),
                         .rows = op.rows.as<float>(),
                         .pages = op.pages.as<int32_t>(),
                         .lengths = op.lengths.as<int32_t>(),
                         .most = op.pages.shape[1],
                         .count = op.state.shape[0],
                         .page_tokens = op.page_tokens,
                         .state_floats = op.shape.state(),
                         .rows_floats = op.shape.rows(),
                         .vectors = aligned(op.state.data, 16) && aligned(op.rows.data, 16)};
  if (delta.documents == 0) return;
  T* o = op.o.as<T>();
  int32_t* chunks = context.scratch.take<int32_t>(delta.documents);
  run_paged_row(delta, pages, chunks, o, context);
  const int64_t slots = paged_slots(delta), heads = slots * delta.key_heads;
  const DeltaPrepared prepared = allocate_prepared<kDerived<T>>(delta, slots, context);
  const KeyOperands<T> operands{
      context.scratch.take<uint4>(heads * (kChunk / 16) * (delta.dim / 16) * kDerived<T> * kWarp)};
  const auto share = [&](int64_t all, int64_t others, int64_t wanted) {  // of a grid's other dimension
    return static_cast<unsigned>(std::min(all, ceil_div(wanted, others)));
  };
  for (int first = 0; first < delta.documents; first += kPagedSequences) {
    const DeltaWave wave{chunks + first, first, std::min(kPagedSequences, delta.documents - first)};
    QENG_LAUNCH(
        context, paged_delta_prepare<T>,
        dim3(share(slots, delta.key_heads, 4 * context.multiprocessors), static_cast<unsigned>(delta.key_heads)),
        dim3(kThreads), sizeof(float) * (2 * kChunk * kPitch + 4 * kChunk), delta, pages, wave, prepared, operands);
    const auto bytes_of = [](auto form, int stages) {
      using Form = decltype(form);
      return ScanHalf<Form, 1, kTiles, kFloats>::kBytes +
             stages * (ScanStage<Form>::kBytes + ScanStage<Form>::kValuesBytes);
    };
    with_scan_form<kDerived<T>, 1>(delta, aligned(op.x.data, 16), context, bytes_of,
                                   [&](auto form, dim3 grid, size_t bytes, int stages) {
                                     using Form = decltype(form);
                                     grid.y = share(wave.count, grid.x, 2 * context.multiprocessors);
                                     QENG_LAUNCH(context, (paged_delta_chunks<Form, T>), grid, dim3(Form::kThreads),
                                                 bytes, delta, pages, wave, prepared, operands, stages, o);
                                   });
  }
}
template void run_paged_delta(const GatedDelta&, const Delta<float>&, CudaContext&);
template void run_paged_delta(const GatedDelta&, const Delta<bf16>&, CudaContext&);

}  // namespace qeng
