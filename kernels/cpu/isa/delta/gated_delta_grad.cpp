// The gradient of the gated delta rule over a chunk, from its last row to its first. In the words of gated_delta.cpp,
// with c_ij = e^{sum_i - sum_j}, Q, K, D the rows of q, k, d and S the state as the chunk began:
//   P = Q K^T c (j <= i)     A = -beta K K^T c (j < i)     R = V - e^{sum} K S     D = beta R + A D     O = e^{sum} Q S + P D
#include "kernels/cpu/isa/delta/delta_rows.h"

namespace qeng::isa::QENG_ISA {
namespace {

constexpr int64_t kSolved = 16;  // rows of the triangular system that are solved one by one

// x[i] += sum over j > i of a[j, i] x[j], from the last row on.
void solve_back(const float* a, int64_t rows, int64_t dim, float* x) {
  for (int64_t end = rows; end > 0; end -= kSolved) {
    const int64_t first = end > kSolved ? end - kSolved : 0;
    multiply<true>(end - first, rows - end, dim, a + end * kChunkRows + first, 1, kChunkRows, x + end * dim, dim,
                   x + first * dim, dim);
    for (int64_t i = end - 2; i >= first; --i)
      multiply<true>(1, end - 1 - i, dim, a + (i + 1) * kChunkRows + i, 1, kChunkRows, x + (i + 1) * dim, dim,
                     x + i * dim, dim);
  }
}

// A row's products e_j = x_j y_j of j < count: factor times their sum goes to dsums[i], each away from dsums[j]. Returns
// the sum.
float pass_decays(const float* x, const float* y, int64_t count, float factor, int64_t i, float* dsums) {
  float total = 0;
  for (int64_t j = 0; j < count; ++j) {
    const float e = x[j] * y[j];
    total += e;
    dsums[j] -= factor * e;
  }
  dsums[i] += factor * total;
  return total;
}

// dx of y = factor x / sqrt(|x|^2 + eps), by y and its gradient: inverse (factor dy - y <y, dy> / factor)
template <class T>
void normalise_grad(const float* y, const float* dy, float inverse, float factor, int64_t n, T* dx) {
  const float along = dot(y, dy, n) / factor;
  for (int64_t i = 0; i < n; i += kWidth)
    store(dx + i, splat(inverse) * (splat(factor) * load(dy + i) - splat(along) * load(y + i)));
}

template <class T>
struct Backward {
  const DeltaBackward& task;
  const DeltaRows& in = task.in;
  const int64_t rows = task.rows, dim = in.key_dim, wide = in.value_dim;
  float* free = task.scratch;
  float* take(int64_t count) {
    float* taken = free;
    free += count;
    return taken;
  }
  float *q = take(kChunkRows * dim), *k = take(kChunkRows * dim), *dq = take(kChunkRows * dim),
        *dk = take(kChunkRows * dim), *product = take(kChunkRows * dim);
  float *dout = take(kChunkRows * wide), *faded = take(kChunkRows * wide), *dd = take(kChunkRows * wide),
        *read = take(kChunkRows * wide), *deltas_t = take(kChunkRows * wide);
  float *state_t = take(dim * wide), *dstate_t = take(dim * wide);
  float *overlaps = take(kChunkRows * kChunkRows), *scores = take(kChunkRows * kChunkRows),
        *p = take(kChunkRows * kChunkRows), *a = take(kChunkRows * kChunkRows), *dp = take(kChunkRows * kChunkRows),
        *da = take(kChunkRows * kChunkRows), *raw = take(kChunkRows * kChunkRows);
  float *q_inverse = take(kChunkRows), *k_inverse = take(kChunkRows), *decays = take(kChunkRows),
        *to_end = take(kChunkRows), *dsums = take(kChunkRows);

  void run() {
    const float scale = query_scale(dim);
    for (int64_t i = 0; i < rows; ++i) {
      widen(static_cast<const T*>(in.q) + i * in.row_stride, dim, q + i * dim);
      widen(static_cast<const T*>(in.k) + i * in.row_stride, dim, k + i * dim);
      q_inverse[i] = normalise(q + i * dim, dim, in.eps, scale);
      k_inverse[i] = normalise(k + i * dim, dim, in.eps, 1);
    }
    clear(dq, rows * dim);
    clear(dk, rows * dim);
    multiply<false>(rows, dim, kChunkRows, k, dim, 1, task.chunk.keys, kChunkRows, overlaps, kChunkRows);
    multiply<false>(rows, dim, kChunkRows, q, dim, 1, task.chunk.keys, kChunkRows, scores, kChunkRows);
    for (int64_t head = 0; head < in.group; ++head) of_head(head);
    for (int64_t i = 0; i < rows; ++i) {
      normalise_grad(q + i * dim, dq + i * dim, q_inverse[i], scale, dim, static_cast<T*>(task.dq) + i * in.row_stride);
      normalise_grad(k + i * dim, dk + i * dim, k_inverse[i], 1, dim, static_cast<T*>(task.dk) + i * in.row_stride);
    }
  }

  void of_head(int64_t head) {
    const float *sums = task.chunk.sums + head * kChunkRows, *deltas = task.chunk.deltas + head * kChunkRows * wide;
    const float* beta = in.beta + head;
    const float last = sums[rows - 1];
    for (int64_t j = 0; j < kChunkRows; j += kWidth) {
      store(decays + j, exp_normal(load(sums + j)));
      store(to_end + j, exp_normal(min(splat(0.0f), splat(last) - load(sums + j))));
    }
    clear(dsums, kChunkRows);
    for (int64_t i = 0; i < rows; ++i) {
      widen(static_cast<const T*>(task.dout) + i * in.out_stride + head * wide, wide, dout + i * wide);
      for (int64_t c = 0; c < wide; c += kWidth)
        store(faded + i * wide + c, splat(decays[i]) * load(dout + i * wide + c));
      decayed_row(scores + i * kChunkRows, 1, sums[i], sums, i + 1, p + i * kChunkRows);
      decayed_row(overlaps + i * kChunkRows, -beta[i * in.value_heads], sums[i], sums, i, a + i * kChunkRows);
    }
    transpose(deltas, wide, kChunkRows, wide, deltas_t, kChunkRows);
    of_states(head, deltas);
    of_scores(sums);
    of_deltas(head, sums);

    multiply<true>(rows, rows, dim, dp, kChunkRows, 1, k, dim, dq, dim);
    multiply<true>(rows, rows, dim, dp, 1, kChunkRows, q, dim, dk, dim);
    multiply<true>(rows, rows, dim, da, kChunkRows, 1, k, dim, dk, dim);
    multiply<true>(rows, rows, dim, da, 1, kChunkRows, k, dim, dk, dim);
    float total = 0;
    for (int64_t i = rows - 1; i >= 0; --i) task.dg[i * in.value_heads + head] = total += dsums[i];
  }

  // Through the state that the chunk began with and the one that it leaves. dd becomes the gradient of D but for A's
  // part, and dstates that of the state as it began but for R's part.
  void of_states(int64_t head, const float* deltas) {
    const float* state = task.chunk.states + head * dim * wide;
    float* dstate = task.dstates + head * dim * wide;
    transpose(state, wide, dim, wide, state_t, dim);
    transpose(dstate, wide, dim, wide, dstate_t, dim);
    multiply<false>(rows, wide, dim, faded, wide, 1, state_t, dim, product, dim);
    for (int64_t i = 0; i < rows; ++i) {
      dsums[i] += dot(product + i * dim, q + i * dim, dim);
      add_row(dq + i * dim, 1, product + i * dim, dim);
    }
    multiply<false>(rows, dim, wide, k, dim, 1, dstate, wide, dd, wide);
    multiply<false>(rows, wide, dim, deltas, wide, 1, dstate_t, dim, product, dim);
    float leaving = decays[rows - 1] * dot(dstate, state, dim * wide);
    for (int64_t j = 0; j < rows; ++j) {
      scale_row(dd + j * wide, to_end[j], wide);
      const float e = to_end[j] * dot(product + j * dim, k + j * dim, dim);
      leaving += e;
      dsums[j] -= e;
      add_row(dk + j * dim, to_end[j], product + j * dim, dim);
    }
    dsums[rows - 1] += leaving;
    multiply<true>(rows, rows, wide, p, 1, kChunkRows, dout, wide, dd, wide);
    scale_row(dstate, decays[rows - 1], dim * wide);
    multiply<true>(dim, rows, wide, q, 1, dim, faded, wide, dstate, wide);
    multiply<false>(rows, dim, wide, k, dim, 1, state, wide, read, wide);
  }

  // Through P: dp becomes the gradient of Q K^T.
  void of_scores(const float* sums) {
    multiply<false>(rows, wide, kChunkRows, dout, wide, 1, deltas_t, kChunkRows, raw, kChunkRows);
    for (int64_t i = 0; i < rows; ++i) {
      decayed_row(raw + i * kChunkRows, 1, sums[i], sums, i + 1, dp + i * kChunkRows);
      pass_decays(dp + i * kChunkRows, scores + i * kChunkRows, i + 1, 1, i, dsums);
    }
  }

  // Through the triangular system: dd becomes the gradient of beta R, and da that of K K^T.
  void of_deltas(int64_t head, const float* sums) {
    float* dstate = task.dstates + head * dim * wide;
    solve_back(a, rows, wide, dd);
    multiply<false>(rows, wide, kChunkRows, dd, wide, 1, deltas_t, kChunkRows, raw, kChunkRows);
    for (int64_t i = 0; i < rows; ++i) {
      const T* v = static_cast<const T*>(in.v) + i * in.row_stride + head * wide;
      T* dv = static_cast<T*>(task.dv) + i * in.row_stride + head * wide;
      const float b = in.beta[i * in.value_heads + head];
      float *of_d = dd + i * wide, *of_read = read + i * wide, *row = da + i * kChunkRows;
      decayed_row(raw + i * kChunkRows, -1, sums[i], sums, i, row);
      const float dbeta = pass_decays(row, overlaps + i * kChunkRows, i, b, i, dsums);
      scale_row(row, b, kChunkRows);
      Vec of_beta = splat(0.0f), of_decay = splat(0.0f);
      for (int64_t c = 0; c < wide; c += kWidth) {
        const Vec x = load(of_d + c), s = load(of_read + c), dr = splat(b) * x, ds = splat(-decays[i]) * dr;
        of_beta = fma(x, fma(splat(-decays[i]), s, load(v + c)), of_beta);
        of_decay = fma(ds, s, of_decay);
        store(dv + c, dr);
        store(of_read + c, ds);
      }
      task.dbeta[i * in.value_heads + head] = dbeta + sum(of_beta);
      dsums[i] += sum(of_decay);
    }
    multiply<false>(rows, wide, dim, read, wide, 1, state_t, dim, product, dim);
    for (int64_t i = 0; i < rows; ++i) add_row(dk + i * dim, 1, product + i * dim, dim);
    multiply<true>(dim, rows, wide, k, 1, dim, read, wide, dstate, wide);
  }
};

void gated_delta_grad(const DeltaBackward& task) {
  const FlushSubnormal flush;
  if (task.in.type == Float::bf16)
    Backward<bf16>{task}.run();
  else
    Backward<float>{task}.run();
}

}  // namespace

void fill_gated_delta_grad(Table& table) { table.gated_delta_grad = gated_delta_grad; }

}  // namespace qeng::isa::QENG_ISA
