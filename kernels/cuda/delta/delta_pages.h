// What the kernels of the paged form share: sequences that go on from what their pages keep (kernels/ops/delta.h).
//
// A row has the same bits however many come at a time. So each product of a row with the state, with a key, or with 16
// rows of D before its own 16 is a chain of the same instructions of tensor cores, in which it is a row or column apart
// from the others'; and those with the rows before it of its own 16 are multiply-adds in their order. Where a compiler
// might contract operations differently in two kernels, they are written as instructions.
#pragma once
#include "kernels/cuda/delta/delta_scan.h"

namespace qeng {

struct DeltaPages {
  float *state, *rows;
  const int32_t *pages, *lengths;
  int64_t most, count, page_tokens, state_floats, rows_floats;
  bool vectors;  // rows of the state and of what rows add to it are whole 16-byte vectors
};

// A sequence's rows are those from position `begun` to `length`, the first being a row of x; those that are wrong are
// reported, and count as none.
struct DeltaSequence {
  int number;
  int64_t row, begun = 0, length = 0;
  template <class T>
  __device__ DeltaSequence(const Delta<T>& op, const DeltaPages& pages, int s) : number(s), row(op.bound(s)) {
    const int64_t rows = op.bound(s + 1) - row, last = pages.lengths[s];
    if (rows <= 0) return;
    if (last < rows || last > pages.most * pages.page_tokens)
      report(op.fault, FaultKind::length, s, last, pages.most * pages.page_tokens);
    else
      begun = last - rows, length = last;
  }
  // One row that does not begin a chunk, for which there is a kernel.
  __device__ bool lone() const { return length - begun == 1 && begun % kChunk != 0; }
  // Chunks that new rows or the state as it is kept are of, of sequences that are not lone.
  __device__ int64_t first_chunk() const { return (begun > 0 ? begun - 1 : 0) / kChunk; }
  __device__ int64_t last_chunk() const { return (length - 1) / kChunk; }
  __device__ int chunks() const {
    return length == 0 || lone() ? 0 : static_cast<int>(last_chunk() - first_chunk()) + 1;
  }
  // Where a position is in a chunk.
  __device__ int within(int64_t position, int64_t chunk) const {
    const int64_t place = position - chunk * kChunk;
    return static_cast<int>(place < 0 ? 0 : place < kChunk ? place : kChunk);
  }
  // The row of x that a chunk's first would be.
  __device__ int64_t row_of(int64_t chunk) const { return row + chunk * kChunk - begun; }
  // Whether what is kept of a position is replaced by a later row here.
  __device__ bool replaced(const DeltaPages& pages, int64_t position) const {
    return position + kChunk < length && (position + kChunk) / pages.page_tokens == position / pages.page_tokens;
  }
  // The page of a position, or -1.
  template <class T>
  __device__ int64_t page(const Delta<T>& op, const DeltaPages& pages, int64_t position) const {
    const int64_t page = pages.pages[number * pages.most + position / pages.page_tokens];
    if (page >= 0 && page < pages.count) return page;
    report(op.fault, FaultKind::page, number, page, pages.count);
    return -1;
  }
};

// Sequences that are worked on at once, for which there is scratch memory: 1 MB of a chunk of 16 heads of 128, and there
// is no telling from shapes that most have one row.
constexpr int kPagedSequences = 64;
struct DeltaWave {
  const int32_t* chunks;  // of each
  int first, count;
};
// The slot of a sequence's first chunk; the chunk that was begun before takes one more than a document has.
template <class T>
__device__ inline int64_t first_paged_slot(const Delta<T>& op, const DeltaWave& wave, int s) {
  return op.bound(s) / kChunk - op.bound(wave.first) / kChunk + 2 * (s - wave.first);
}
template <class T>
inline int64_t paged_slots(const Delta<T>& op) {
  return op.rows / kChunk + 2 * std::min(op.documents, kPagedSequences);
}

// What a page keeps of a key head and one of its value heads, and of the value head's state.
struct DeltaPage {
  float *keys, *deltas, *sums, *state;
  template <class T>
  __device__ DeltaPage(const Delta<T>& op, const DeltaPages& pages, int64_t page, int value_head) {
    const int of_group = value_head % op.group;
    keys = pages.rows + page * pages.rows_floats + value_head / op.group * (pages.rows_floats / op.key_heads);
    deltas = keys + kChunk * (op.dim + of_group * op.wide);
    sums = keys + kChunk * (op.dim + op.group * op.wide + of_group);
    state = pages.state + page * pages.state_floats + int64_t{value_head} * op.dim * op.wide;
  }
};

// 1 / sqrt(|x|^2 + eps) of a row, by a warp.
template <class T>
__device__ inline float inverse_norm(const T* x, int n, float eps) {
  float squares = 0;
  for (int i = static_cast<int>(threadIdx.x) % kWarp; i < n; i += kWarp)
    squares = fmaf(to_f32(x[i]), to_f32(x[i]), squares);
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(warp_sum(squares), eps)));
}
template <class T>
__device__ inline float normalised(T x, float inverse) {
  return __fmul_rn(to_f32(x), inverse);
}

// The factors of a row: of S^T k' in D, of S^T q' in o; and of row j, of which dot is the product of its key with k' or q'.
__device__ inline float reading_of(float beta, float sum, float inverse_k) {
  return __fmul_rn(__fmul_rn(-beta, expf(sum)), inverse_k);
}
__device__ inline float asking_of(float sum, float inverse_q) { return __fmul_rn(expf(sum), inverse_q); }
__device__ inline float factor_of(float scale, float sum, float sum_j, float inverse, float dot) {
  return __fmul_rn(__fmul_rn(scale, expf(__fsub_rn(sum, sum_j))), __fmul_rn(inverse, dot));
}
// A row of D or o but for the rows before it of its own 16.
__device__ inline float begin_delta(float reading, float read, float beta, float v, float before) {
  return __fadd_rn(fmaf(reading, read, __fmul_rn(beta, v)), before);
}
__device__ inline float begin_out(float asking, float asked, float before) { return fmaf(asking, asked, before); }

// Lone rows (paged_delta_row.cu). Leaves the chunks of each other sequence, and of a lone one 0, in chunks: [documents].
template <class T>
void run_paged_row(const Delta<T>& op, const DeltaPages& pages, int32_t* chunks, T* o, CudaContext& context);

// Calls f(sequence, its chunks, sequences before it, chunks before it) for those that have chunks, by all threads.
template <class F>
__device__ inline void each_sequence(const DeltaWave& wave, F f) {
  int sequences = 0, before = 0;
  for (int first = 0; first < wave.count; first += kWarp) {
    const int s = first + static_cast<int>(threadIdx.x) % kWarp, own = s < wave.count ? wave.chunks[s] : 0;
    for (uint32_t some = __ballot_sync(kAllLanes, own > 0); some != 0; some &= some - 1) {
      const int lane = __ffs(static_cast<int>(some)) - 1, count = __shfl_sync(kAllLanes, own, lane);
      f(wave.first + first + lane, count, sequences++, before);
      before += count;
    }
  }
}

}  // namespace qeng
