// GatedDelta in inference: sequences go on from what their pages keep. All sums are f32 multiply-adds in one order, so
// that a row has the same bits whether it comes alone (decoding) or with others (a prompt).
//
// A block has a sequence, a value head and some columns of its state. A thread holds 4 columns of 8 dims, a slice, in
// registers. A row's products are summed by slices, and those with the rows before it in the chunk by the rows that a
// slice has, j = slice, slice + slices, ..; then a thread for each column adds the slices, and the rows of the row's own
// four. A second kernel leaves the keys and sums of g in the pages, when no block needs those of the chunk before.
#include "kernels/cuda/delta/delta_scan.h"

namespace qeng {
namespace {

constexpr int kSlice = 8;    // dims of a thread
constexpr int kColumns = 4;  // of a thread
constexpr int kStep = 4;     // rows, counted from the chunk's first, that are not summed by slices
constexpr int kThreads = 256;
constexpr int kKeyPitch = kChunk + 8;  // floats: four neighbouring dims' rows lie in different banks
constexpr int kQuarters = 4;           // of the sum over dims of two rows' product: dims d, d + 4, ..

struct Pages {
  float *state, *rows;
  const int32_t *pages, *lengths;
  int64_t most, count, page_tokens, state_floats, rows_floats;
  bool vectors;  // rows of the state and of what rows add to it are whole 16-byte vectors
};

// A sequence's rows: the first is at position `begun`; those that are wrong are reported, and count as none.
struct Sequence {
  int number;
  int64_t row, begun, length;
  template <class T>
  __device__ Sequence(const Delta<T>& op, const Pages& pages, int s) : number(s), row(op.bound(s)) {
    const int64_t rows = op.bound(s + 1) - row;
    length = pages.lengths[s], begun = length - rows;
    if (rows > 0 && begun >= 0 && length <= pages.most * pages.page_tokens) return;
    if (rows > 0) report(op.fault, FaultKind::length, s, length, pages.most * pages.page_tokens);
    begun = length = 0;
  }
  // The page of a position, or -1.
  template <class T>
  __device__ int64_t page(const Delta<T>& op, const Pages& pages, int64_t position) const {
    const int64_t page = pages.pages[number * pages.most + position / pages.page_tokens];
    if (page >= 0 && page < pages.count) return page;
    report(op.fault, FaultKind::page, number, page, pages.count);
    return -1;
  }
};

// What a page keeps of a key head and one of its value heads.
struct PageRows {
  float *keys, *deltas, *sums;
  template <class T>
  __device__ PageRows(const Delta<T>& op, const Pages& pages, int64_t page, int value_head) {
    const int of_group = value_head % op.group;
    keys = pages.rows + page * pages.rows_floats + value_head / op.group * (pages.rows_floats / op.key_heads);
    deltas = keys + kChunk * (op.dim + of_group * op.wide);
    sums = keys + kChunk * (op.dim + op.group * op.wide + of_group);
  }
};

// factor / sqrt(|x|^2 + eps) of a row, by a warp.
template <class T>
__device__ float inverse_norm(const T* x, int n, float eps, float factor) {
  float squares = 0;
  for (int i = static_cast<int>(threadIdx.x) % kWarp; i < n; i += kWarp)
    squares = fmaf(to_f32(x[i]), to_f32(x[i]), squares);
  return factor / sqrtf(warp_sum(squares) + eps);
}

__device__ inline void read_four(float (&x)[kColumns], const float* from, bool vectors) {
  if (vectors) {
    const float4 four = *reinterpret_cast<const float4*>(from);
    x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
  } else {
    for (int c = 0; c < kColumns; ++c) x[c] = from[c];
  }
}
__device__ inline void write_four(float* to, const float (&x)[kColumns], bool vectors) {
  if (vectors)
    *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
  else
    for (int c = 0; c < kColumns; ++c) to[c] = x[c];
}

// kLanes: threads to a slice, each with kColumns columns. kRows: rows at a time, kStep, or one, which takes less memory.
template <class T, int kLanes, int kRows>
struct PagedBlock {
  static constexpr int kWide = kLanes * kColumns;
  const Delta<T>& op;
  const Pages& pages;
  int slices = op.dim / kSlice, slice = static_cast<int>(threadIdx.x) / kLanes;
  int value_head = static_cast<int>(blockIdx.x) / columns_of(op), key_head = value_head / op.group;
  int first_column = static_cast<int>(blockIdx.x) % columns_of(op) * kWide;
  int column = first_column + static_cast<int>(threadIdx.x) % kLanes * kColumns;
  bool holds = slice < slices && column < op.wide;
  // Shared memory.
  float* keys = reinterpret_cast<float*>(shared_memory());  // [dim, kKeyPitch], of the chunk so far
  float* pair = keys + op.dim * kKeyPitch;                  // [dim, 2, kRows]: keys and queries of the rows
  float* factors = pair + op.dim * 2 * kRows;               // [2, kRows, kChunk]: of A and of P
  float* partial = factors + 2 * kRows * kChunk;            // [slices, kRows, 2, kWide]
  float* sums = partial + slices * kRows * 2 * kWide;       // [kChunk] each
  float *beta = sums + kChunk, *decays = beta + kChunk;
  float state[kSlice][kColumns];

  // What is computed from it is so where it is used, for registers are the state's.
  __device__ static int own_thread() { return ptx::opaque(static_cast<int>(threadIdx.x)); }
  __device__ static int columns_of(const Delta<T>& op) { return (op.wide + kWide - 1) / kWide; }
  static size_t bytes(const Delta<T>& op) {
    return sizeof(float) * static_cast<size_t>(op.dim * (kKeyPitch + 2 * kRows) + 2 * kRows * kChunk +
                                               op.dim / kSlice * kRows * 2 * kWide + 3 * kChunk);
  }
  __device__ float* state_at(int64_t page) const {
    return pages.state + page * pages.state_floats + (int64_t{value_head} * op.dim + slice * kSlice) * op.wide + column;
  }

  __device__ void load_state(int64_t page) {
    if (!holds) return;
    const float* from = state_at(page);
#pragma unroll
    for (int d = 0; d < kSlice; ++d) read_four(state[d], from + d * op.wide, pages.vectors);
  }
  __device__ void keep_state(int64_t page) const {
    if (!holds) return;
    float* to = state_at(page);
#pragma unroll
    for (int d = 0; d < kSlice; ++d) write_four(to + d * op.wide, state[d], pages.vectors);
  }

  // Keys and sums of rows below `count` that a page keeps.
  __device__ void load_rows(const PageRows& kept, int count) const {
    const int thread = own_thread();
    for (int i = thread; i < op.dim * kChunk; i += kThreads)
      if (i % kChunk < count) keys[i / kChunk * kKeyPitch + i % kChunk] = kept.keys[i];
    for (int i = thread; i < count; i += kThreads) sums[i] = kept.sums[i];
  }
  // Keys, beta and sums of new rows begun .. end - 1 of the chunk, the first of which is a row of x.
  __device__ void new_rows(int64_t row, int begun, int end) const {
    const int thread = own_thread();
    for (int i = begun + thread / kWarp; i < end; i += kThreads / kWarp) {
      const T* k = op.k(row + i - begun, key_head);
      const float inverse = inverse_norm(k, op.dim, op.eps, 1);
      for (int d = thread % kWarp; d < op.dim; d += kWarp) keys[d * kKeyPitch + i] = to_f32(k[d]) * inverse;
    }
    for (int i = begun + thread; i < end; i += kThreads) {
      const int64_t at = (row + i - begun) * op.value_heads + value_head;
      sums[i] = op.g[at], beta[i] = op.beta[at];
    }
    __syncthreads();
    if (thread == 0)
      for (int i = begun; i < end; ++i) sums[i] += i > 0 ? sums[i - 1] : 0.0f;
    __syncthreads();
    for (int i = begun + thread; i < end; i += kThreads) decays[i] = expf(sums[i]);
    __syncthreads();
  }

  // A whole chunk's rows go into the state.
  __device__ void fold(const float* deltas) {
    const float last = sums[kChunk - 1], whole = expf(last);
    if (!holds) return;
#pragma unroll
    for (int d = 0; d < kSlice; ++d)
#pragma unroll
      for (int c = 0; c < kColumns; ++c) state[d][c] *= whole;
#pragma unroll 1
    for (int j = 0; j < kChunk; ++j) {
      float delta[kColumns];
      read_four(delta, deltas + j * op.wide + column, pages.vectors);
      const float weight = expf(last - sums[j]);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) delta[c] *= weight;
      const float* key = keys + slice * kSlice * kKeyPitch + j;
#pragma unroll
      for (int d = 0; d < kSlice; ++d)
#pragma unroll
        for (int c = 0; c < kColumns; ++c) state[d][c] = fmaf(key[d * kKeyPitch], delta[c], state[d][c]);
    }
  }

  // Rows low .. high - 1 of the kRows from `first` on: their keys and queries, and their factors of A and P. row: of x,
  // the chunk's first.
  __device__ void factors_of(int64_t row, int first, int low, int high) const {
    const int thread = own_thread();
    for (int r = thread / kWarp; r < kRows; r += kThreads / kWarp) {
      const bool real = first + r >= low && first + r < high;
      const T* q = real ? op.q(row + first + r, key_head) : nullptr;
      const float inverse = real ? inverse_norm(q, op.dim, op.eps, op.scale) : 0.0f;
      for (int d = thread % kWarp; d < op.dim; d += kWarp) {
        pair[d * 2 * kRows + r] = real ? keys[d * kKeyPitch + first + r] : 0.0f;
        pair[d * 2 * kRows + kRows + r] = real ? to_f32(q[d]) * inverse : 0.0f;
      }
    }
    __syncthreads();
    for (int task = thread; task < kChunk * kQuarters; task += kThreads) {
      const int quarter = task / 8 % kQuarters, j = task / (8 * kQuarters) * 8 + task % 8;
      float dots[2 * kRows] = {};
      if (j < high)
        for (int d = quarter; d < op.dim; d += kQuarters) {
          const float key = keys[d * kKeyPitch + j];
#pragma unroll
          for (int r = 0; r < 2 * kRows; ++r) dots[r] = fmaf(pair[d * 2 * kRows + r], key, dots[r]);
        }
#pragma unroll
      for (int r = 0; r < 2 * kRows; ++r) {
        dots[r] += __shfl_xor_sync(kAllLanes, dots[r], 8);
        dots[r] += __shfl_xor_sync(kAllLanes, dots[r], 16);
        const int i = first + r % kRows;
        if (quarter != 0 || i < low || i >= high || j > i) continue;
        const float decayed = expf(sums[i] - sums[j]) * dots[r];
        factors[r * kChunk + j] = r < kRows ? -beta[i] * decayed : decayed;
      }
    }
    __syncthreads();
  }

  // What the state and the rows before their four give rows `first` to first + kRows - 1.
  __device__ void slices_of(const float* deltas, int first) const {
    if (!holds) return;
    float d_sums[kRows][kColumns] = {}, o_sums[kRows][kColumns] = {};
#pragma unroll
    for (int d = 0; d < kSlice; ++d) {
      const float* of_dim = pair + (slice * kSlice + d) * 2 * kRows;
#pragma unroll
      for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          d_sums[r][c] = fmaf(of_dim[r], state[d][c], d_sums[r][c]);
          o_sums[r][c] = fmaf(of_dim[kRows + r], state[d][c], o_sums[r][c]);
        }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float decay = decays[first + r], factor = -beta[first + r] * decay;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) d_sums[r][c] *= factor, o_sums[r][c] *= decay;
    }
#pragma unroll 2
    for (int j = slice; j < first / kStep * kStep; j += slices) {
      float delta[kColumns];
      read_four(delta, deltas + j * op.wide + column, pages.vectors);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float a = factors[r * kChunk + j], p = factors[(kRows + r) * kChunk + j];
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          d_sums[r][c] = fmaf(a, delta[c], d_sums[r][c]);
          o_sums[r][c] = fmaf(p, delta[c], o_sums[r][c]);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float* to = partial + (slice * kRows + r) * 2 * kWide + column - first_column;
      write_four(to, d_sums[r], true);
      write_four(to + kWide, o_sums[r], true);
    }
  }

  // Adds the slices of rows low .. high - 1, which then are in the page and in o.
  __device__ void finish(int64_t row, int first, int low, int high, float* deltas, T* o) const {
    const int thread = own_thread();
    const int own = first_column + thread, four = first / kStep * kStep;
    if (thread >= kWide || own >= op.wide) return;
    float before[kStep];
#pragma unroll
    for (int r = 0; r < kStep; ++r) before[r] = four + r < low ? deltas[(four + r) * op.wide + own] : 0.0f;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int i = first + r;
      if (i < low || i >= high) continue;
      float d = beta[i] * to_f32(op.v(row + i, value_head)[own]), out = 0;
      for (int each = 0; each < slices; ++each) {
        const float* from = partial + (each * kRows + r) * 2 * kWide + thread;
        d += from[0], out += from[kWide];
      }
#pragma unroll
      for (int j = 0; j < kStep; ++j)
        if (four + j < i) {
          d = fmaf(factors[r * kChunk + four + j], before[j], d);
          out = fmaf(factors[(kRows + r) * kChunk + four + j], before[j], out);
        }
      out = fmaf(factors[(kRows + r) * kChunk + i], d, out);
      deltas[i * op.wide + own] = d;
      if constexpr (kRows > 1) before[r] = d;
      put(o + ((row + i) * op.value_heads + value_head) * op.wide + own, out);
    }
  }
};

template <class T, int kLanes, int kRows>
__global__ void __launch_bounds__(kThreads, kRows == 1 ? 3 : 2)
    paged_delta(const Delta<T> op, const Pages pages, T* o) {
  PagedBlock<T, kLanes, kRows> block{op, pages};
  const Sequence sequence(op, pages, static_cast<int>(blockIdx.y));
  for (int64_t position = sequence.begun, next; position < sequence.length; position = next) {
    next = min(sequence.length, (position / kChunk + 1) * kChunk);
    const int64_t page = sequence.page(op, pages, position);
    if (page < 0) return;
    const PageRows kept(op, pages, page, block.value_head);
    const int begun = static_cast<int>(position % kChunk), end = begun + static_cast<int>(next - position);
    if (position == 0) {
      for (auto& row : block.state)
        for (float& each : row) each = 0;
    } else if (begun > 0) {
      block.load_state(page);
      block.load_rows(kept, begun);
    } else {  // the last chunk's rows go into its state, which begins this one
      const int64_t last = sequence.page(op, pages, position - 1);
      if (last < 0) return;
      const PageRows from(op, pages, last, block.value_head);
      if (position == sequence.begun) {
        block.load_state(last);
        block.load_rows(from, kChunk);
      }
      __syncthreads();
      block.fold(from.deltas);
      __syncthreads();
    }
    if (begun == 0 && (position + kChunk >= sequence.length || (position + kChunk) % pages.page_tokens == 0))
      block.keep_state(page);
    const int64_t row = sequence.row + position - sequence.begun;
    block.new_rows(row, begun, end);
    for (int low = begun; low < end;) {
      const int first = low / kRows * kRows, high = min(end, first + kRows);
      block.factors_of(row - begun, first, low, high);
      block.slices_of(kept.deltas, first);
      __syncthreads();
      block.finish(row - begun, first, low, high, kept.deltas, o);
      __syncthreads();
      low = high;
    }
  }
}

// Leaves the keys and the sums of g of new rows in the pages, but for those of chunks that later ones replace.
template <class T>
__global__ void __launch_bounds__(128) keep_keys(const Delta<T> op, const Pages pages) {
  const int key_head = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const Sequence sequence(op, pages, static_cast<int>(blockIdx.y));
  const auto replaced = [&](int64_t position) {
    return position + kChunk < sequence.length &&
           (position + kChunk) / pages.page_tokens == position / pages.page_tokens;
  };
  for (int64_t position = sequence.begun, next; position < sequence.length; position = next) {
    next = min(sequence.length, (position / kChunk + 1) * kChunk);
    if (replaced(next - 1)) continue;
    const int64_t page = sequence.page(op, pages, position), row = sequence.row - sequence.begun;
    if (page < 0) return;
    const PageRows kept(op, pages, page, key_head * op.group);
    for (int64_t i = position + thread / kWarp; i < next; i += 128 / kWarp) {
      if (replaced(i)) continue;
      const T* k = op.k(row + i, key_head);
      const float inverse = inverse_norm(k, op.dim, op.eps, 1);
      for (int d = thread % kWarp; d < op.dim; d += kWarp) kept.keys[d * kChunk + i % kChunk] = to_f32(k[d]) * inverse;
    }
    for (int value = thread; value < op.group; value += 128) {
      float* sums = PageRows(op, pages, page, key_head * op.group + value).sums;
      float sum = position % kChunk > 0 ? sums[position % kChunk - 1] : 0.0f;
      for (int64_t i = position; i < next; ++i) {
        sum += op.g[(row + i) * op.value_heads + key_head * op.group + value];
        if (!replaced(i)) sums[i % kChunk] = sum;
      }
    }
  }
}

template <class T, int kLanes, int kRows>
void launch_paged(const Delta<T>& op, const Pages& pages, T* o, CudaContext& context) {
  using Block = PagedBlock<T, kLanes, kRows>;
  const int64_t columns = ceil_div(op.wide, Block::kWide);
  QENG_LAUNCH(context, (paged_delta<T, kLanes, kRows>),
              dim3(static_cast<unsigned>(op.value_heads * columns), static_cast<unsigned>(op.documents)),
              dim3(kThreads), Block::bytes(op), op, pages, o);
}

}  // namespace

template <class T>
void run_paged_delta(const GatedDelta& op, const Delta<T>& delta, CudaContext& context) {
  const Pages pages{.state = op.state.as<float>(),
                    .rows = op.rows.as<float>(),
                    .pages = op.pages.as<int32_t>(),
                    .lengths = op.lengths.as<int32_t>(),
                    .most = op.pages.shape[1],
                    .count = op.state.shape[0],
                    .page_tokens = op.page_tokens,
                    .state_floats = op.shape.state(),
                    .rows_floats = op.shape.rows(),
                    .vectors = aligned(op.state.data, 16) && aligned(op.rows.data, 16)};
  const bool decoding = delta.rows <= 4 * int64_t{delta.documents};
  if (decoding && delta.dim <= 128)
    launch_paged<T, 16, 1>(delta, pages, op.o.as<T>(), context);
  else
    launch_paged<T, 8, kStep>(delta, pages, op.o.as<T>(), context);
  QENG_LAUNCH(context, keep_keys<T>,
              dim3(static_cast<unsigned>(delta.key_heads), static_cast<unsigned>(delta.documents)), dim3(128), 0, delta,
              pages);
}
template void run_paged_delta(const GatedDelta&, const Delta<float>&, CudaContext&);
template void run_paged_delta(const GatedDelta&, const Delta<bf16>&, CudaContext&);

}  // namespace qeng
