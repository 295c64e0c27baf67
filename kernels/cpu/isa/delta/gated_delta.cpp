// The gated delta rule over some rows of a chunk. Each sum runs over the chunk's rows, or over key_dim, in order and by
// itself, so that a row has the same bits whether it comes alone or with others.
#include "kernels/cpu/isa/delta/delta_rows.h"

namespace qeng::isa::QENG_ISA {
namespace {

constexpr int64_t kSolved = 16;  // rows of the triangular system that are solved one by one

// d[i] += sum over j < i of a[i, j] d[j] for rows begun .. end - 1 of d, those before them being final. a: [row,
// kChunkRows] from row begun on, with zeros where j >= i.
void solve_rows(const float* a, int64_t begun, int64_t end, int64_t dim, float* d) {
  for (int64_t first = begun; first < end; first += kSolved) {
    const int64_t rows = end - first < kSolved ? end - first : kSolved;
    const float* block = a + (first - begun) * kChunkRows;
    multiply<true>(rows, first, dim, block, kChunkRows, 1, d, dim, d + first * dim, dim);
    for (int64_t i = 1; i < rows; ++i)
      multiply<true>(1, i, dim, block + i * kChunkRows + first, kChunkRows, 1, d + first * dim, dim,
                     d + (first + i) * dim, dim);
  }
}

template <class T>
void forward(const DeltaForward& task) {
  const DeltaRows& in = task.in;
  const int64_t rows = task.rows, begun = task.begun, end = begun + rows, dim = in.key_dim, wide = in.value_dim;
  float* q = task.scratch;
  float* k = q + kChunkRows * dim;
  float* o = k + kChunkRows * dim;
  float* scores = o + kChunkRows * wide;  // q k^T, then by value head with its decay
  float* overlaps = scores + kChunkRows * kChunkRows;
  float* decayed = overlaps + kChunkRows * kChunkRows;
  float* decays = decayed + kChunkRows * kChunkRows;
  const float scale = query_scale(dim);
  for (int64_t i = 0; i < rows; ++i) {
    widen(static_cast<const T*>(in.k) + i * in.row_stride, dim, k + i * dim);
    normalise(k + i * dim, dim, in.eps, 1);
    for (int64_t d = 0; d < dim; ++d) task.chunk.keys[d * kChunkRows + begun + i] = k[i * dim + d];
    if (!task.o) continue;
    widen(static_cast<const T*>(in.q) + i * in.row_stride, dim, q + i * dim);
    normalise(q + i * dim, dim, in.eps, scale);
  }
  const int64_t seen = (end + 15) / 16 * 16;  // columns: the keys so far
  multiply<false>(rows, dim, seen, k, dim, 1, task.chunk.keys, kChunkRows, overlaps, kChunkRows);
  if (task.o) multiply<false>(rows, dim, seen, q, dim, 1, task.chunk.keys, kChunkRows, scores, kChunkRows);

  for (int64_t head = 0; head < in.group; ++head) {
    const float *g = in.g + head, *beta = in.beta + head, *state = task.chunk.states + head * dim * wide;
    float *deltas = task.chunk.deltas + head * kChunkRows * wide, *sums = task.chunk.sums + head * kChunkRows;
    for (int64_t i = 0; i < rows; ++i)
      sums[begun + i] = (begun + i ? sums[begun + i - 1] : 0.0f) + g[i * in.value_heads];
    exp_of(sums, kChunkRows, decays);
    // d_i = beta_i (v_i - e^{sum_i} S^T k_i - sum over j < i of e^{sum_i - sum_j} <k_i, k_j> d_j)
    float* own = deltas + begun * wide;
    multiply<false>(rows, dim, wide, k, dim, 1, state, wide, own, wide);
    for (int64_t i = 0; i < rows; ++i) {
      const T* v = static_cast<const T*>(in.v) + i * in.row_stride + head * wide;
      const float b = beta[i * in.value_heads];
      for (int64_t c = 0; c < wide; c += kWidth)
        store(own + i * wide + c, splat(b) * fma(splat(-decays[begun + i]), load(own + i * wide + c), load(v + c)));
      decayed_row(overlaps + i * kChunkRows, -b, sums[begun + i], sums, begun + i, decayed + i * kChunkRows);
    }
    solve_rows(decayed, begun, end, wide, deltas);
    if (!task.o) continue;
    // o_i = e^{sum_i} S^T q_i + sum over j <= i of e^{sum_i - sum_j} <q_i, k_j> d_j
    multiply<false>(rows, dim, wide, q, dim, 1, state, wide, o, wide);
    for (int64_t i = 0; i < rows; ++i) {
      scale_row(o + i * wide, decays[begun + i], wide);
      decayed_row(scores + i * kChunkRows, 1, sums[begun + i], sums, begun + i + 1, decayed + i * kChunkRows);
    }
    for (int64_t i = 0; i < rows; i += kSolved) {
      const int64_t count = rows - i < kSolved ? rows - i : kSolved;
      multiply<true>(count, begun + i + count, wide, decayed + i * kChunkRows, kChunkRows, 1, deltas, wide,
                     o + i * wide, wide);
    }
    for (int64_t i = 0; i < rows; ++i) {
      T* to = static_cast<T*>(task.o) + i * in.out_stride + head * wide;
      for (int64_t c = 0; c < wide; c += kWidth) store(to + c, load(o + i * wide + c));
    }
  }
}

void gated_delta(const DeltaForward& task) {
  const FlushSubnormal flush;
  if (task.in.type == Float::bf16)
    forward<bf16>(task);
  else
    forward<float>(task);
}

// S <- e^{sum_last} S + sum over rows j of e^{sum_last - sum_j} k_j d_j^T, of a whole chunk
void delta_advance(const DeltaChunk& chunk, int64_t group, int64_t dim, int64_t wide, float* scratch) {
  const FlushSubnormal flush;
  float* weighed = scratch;
  float* decays = scratch + kChunkRows * wide;
  for (int64_t head = 0; head < group; ++head) {
    const float *sums = chunk.sums + head * kChunkRows, *deltas = chunk.deltas + head * kChunkRows * wide;
    float* state = chunk.states + head * dim * wide;
    const float last = sums[kChunkRows - 1];
    for (int64_t j = 0; j < kChunkRows; j += kWidth) store(decays + j, exp_normal(splat(last) - load(sums + j)));
    for (int64_t j = 0; j < kChunkRows; ++j)
      for (int64_t c = 0; c < wide; c += kWidth)
        store(weighed + j * wide + c, splat(decays[j]) * load(deltas + j * wide + c));
    float whole[kWidth];
    store(whole, exp_normal(splat(last)));
    scale_row(state, whole[0], dim * wide);
    multiply<true>(dim, kChunkRows, wide, chunk.keys, kChunkRows, 1, weighed, wide, state, wide);
  }
}

}  // namespace

void fill_gated_delta(Table& table) {
  table.gated_delta = gated_delta;
  table.delta_advance = delta_advance;
}

}  // namespace qeng::isa::QENG_ISA
