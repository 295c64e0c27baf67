// The operations: each a plain value of non-owning views and scalars. This header is the table of contents of what a
// backend can do. `Backend::run(op)` executes one; tape, program, profiler and conformance test are lists of them.
//
// Conventions. Views are dense and row-major. "float" views are f32 or bf16; unless an op says otherwise, all float
// views of one op share a dtype, and sums accumulate in f32. `acc` on a gradient means dst += result instead of dst =
// result. Views named in brackets may be absent (a null View). Backends check shapes and throw Error("shape" |
// "dtype"). No output may overlap an input except where the op says "in place allowed".
//
// Every op has   static constexpr const char* name;
//                void views(F f)  calling f("label", View&, Access) on each view that is present or may be;
// and may have   int64_t flops() const  what it must compute, from the shapes (without: nothing worth counting).
// kernels/cost.cpp has those that do not move each view just once, or whose flops depend on values.
#pragma once
#include <variant>
#include <vector>

#include "kernels/pointwise.h"
#include "kernels/view.h"

namespace qeng {

enum class Access : uint8_t { read, write, update };  // update: read and written (an accumulated gradient, a state)

// Bytes that must move to and from memory and floating-point operations that must be done, from the shapes alone.
struct Cost {
  double bytes = 0;
  double flops = 0;
};

// ---------------------------------------------------------------- linear algebra

// c = alpha * op(a) op(b) + bias + (acc ? c : 0)     op(a): [m, k]  op(b): [k, n]  c: [m, n]  bias: [n]
// a is stored [m, k], or [k, m] with trans_a; b is stored [k, n], or [n, k] with trans_b. Views of higher rank count as
// [rows(), columns()]. a and b share a dtype, or b is of a stored one (f16, bf16 where a is f32, or a block format;
// blocks run along stored rows) whose decoded values count, which a device may round to bf16 where a is bf16; c and
// bias may be f32 there. alpha does not scale the bias.
struct Matmul {
  static constexpr const char* name = "matmul";
  View a, b, bias, c;
  bool trans_a = false, trans_b = false, acc = false;
  float alpha = 1;
  template <class F>
  void views(F f) {
    f("a", a, Access::read), f("b", b, Access::read), f("bias", bias, Access::read);
    f("c", c, acc ? Access::update : Access::write);
  }
};

// db[j] (+)= sum_i dy[i, j]     dy: [rows, n]   db: [n] f32
struct BiasGrad {
  static constexpr const char* name = "bias_grad";
  View dy, db;
  bool acc = false;
  int64_t flops() const { return dy.elements(); }
  template <class F>
  void views(F f) {
    f("dy", dy, Access::read), f("db", db, acc ? Access::update : Access::write);
  }
};

// y_i (+)= alpha * x w_i^T * [scale_i] + [bias_i], for inference: scale_i has a factor for each row of w_i, that is
// column of y_i, which one_bit and ternary weights need. Neither alpha nor scale_i scales the bias.
// The bits of a row of y depend on that row of x alone, not on how many rows there are, so that a sequence computes the
// same in every batch. Several weights may read one x (q, k, v; gate, up).
// x: [rows, k] f32 or bf16   w_i: [n_i, k] f32, bf16, f16 or a block format   scale_i: [n_i] f32
// bias_i: [n_i] f32 or x's dtype   y_i: [rows, n_i] f32 or x's dtype   [...]: empty lists or absent views where none
// Where w_i is of a block format, x is rounded to int8 in groups first (kernels/math/blocks/activations.h); where it is
// bf16, to bf16.
struct RowLinear {
  static constexpr const char* name = "row_linear";
  View x;
  std::vector<View> w, scale, bias, y;
  float alpha = 1;
  bool acc = false;
  template <class F>
  void views(F f) {
    f("x", x, Access::read);
    for (View& each : w) f("w", each, Access::read);
    for (View& each : scale) f("scale", each, Access::read);
    for (View& each : bias) f("bias", each, Access::read);
    for (View& each : y) f("y", each, acc ? Access::update : Access::write);
  }
};

// Blockwise Walsh-Hadamard transform with signs, for weights that are stored rotated: for each run of `block` columns
//   y = H (s * x) / sqrt(block),   inverse: y = s * (H x) / sqrt(block),   H[i, j] = (-1)^popcount(i & j)
// x, y: [..., dim], float; block: a power of two that divides dim
// [signs]: [dim] f32, each 1 or -1. Each is the other's inverse and transpose, so also its gradient. In place allowed.
struct Hadamard {
  static constexpr const char* name = "hadamard";
  View x, signs, y;
  int block = 0;
  bool inverse = false;
  template <class F>
  void views(F f) {
    f("x", x, Access::read), f("signs", signs, Access::read), f("y", y, Access::write);
  }
};

// ---------------------------------------------------------------- embedding

// y[t, :] = table[tokens[t], :]     tokens: [t] i32   table: [vocab, hidden] of y's dtype, bf16, f16 or a block format
// y: [t, hidden] float, f32 where the table is. A token outside [0, vocab) is Error("value").
struct Embedding {
  static constexpr const char* name = "embedding";
  View tokens, table, y;
  template <class F>
  void views(F f) {
    f("tokens", tokens, Access::read), f("table", table, Access::read), f("y", y, Access::write);
  }
};

// dtable[tokens[t], :] += dy[t, :], summed in order of t     dy: [t, hidden]   dtable: [vocab, hidden] f32
struct EmbeddingGrad {
  static constexpr const char* name = "embedding_grad";
  View tokens, dy, dtable;
  template <class F>
  void views(F f) {
    f("tokens", tokens, Access::read), f("dy", dy, Access::read), f("dtable", dtable, Access::update);
  }
};

// ---------------------------------------------------------------- norm, activation, residual

// y[r, :] = x[r, :] * rstd[r] * (w + (plus_one ? 1 : 0)),   rstd[r] = 1 / sqrt(mean(x[r, :]^2) + eps)
// x, y: [..., dim]   w: [dim]   rstd: [rows] f32 (kept for backward). Also per head: x is [tokens, heads, head_dim].
struct RmsNorm {
  static constexpr const char* name = "rmsnorm";
  View x, w, y, rstd;
  float eps = 1e-6f;
  bool plus_one = false;
  int64_t flops() const { return 4 * x.elements(); }
  template <class F>
  void views(F f) {
    f("x", x, Access::read), f("w", w, Access::read), f("y", y, Access::write), f("rstd", rstd, Access::write);
  }
};

// The residual stream and the norm that reads it: sum = a + b, rounded to the dtype, and y = RmsNorm of that sum.
// a, b, sum, y: [..., dim]   w: [dim]   rstd: [rows] f32. The gradient is RmsNormGrad with x = sum, dresidual = dsum.
struct AddRmsNorm {
  static constexpr const char* name = "add_rmsnorm";
  View a, b, w, sum, y, rstd;
  float eps = 1e-6f;
  bool plus_one = false;
  int64_t flops() const { return 5 * a.elements(); }
  template <class F>
  void views(F f) {
    f("a", a, Access::read), f("b", b, Access::read), f("w", w, Access::read);
    f("sum", sum, Access::write), f("y", y, Access::write), f("rstd", rstd, Access::write);
  }
};

// With xhat = x * rstd and g = dy * (w + plus_one):
//   dx = [dresidual] + rstd * (g - xhat * mean(g * xhat)),  [dw] (+)= sum_r dy * xhat
// dresidual: like x, what else flows into dx (in place allowed: it may be dx). dw: [dim] f32, absent where w is frozen.
struct RmsNormGrad {
  static constexpr const char* name = "rmsnorm_grad";
  View x, w, rstd, dy, dresidual, dx, dw;
  bool plus_one = false, acc_dw = false;
  int64_t flops() const { return (9 + (dw ? 2 : 0) + (dresidual ? 1 : 0)) * x.elements(); }
  template <class F>
  void views(F f) {
    f("x", x, Access::read), f("w", w, Access::read), f("rstd", rstd, Access::read), f("dy", dy, Access::read);
    f("dresidual", dresidual, Access::read), f("dx", dx, Access::write);
    f("dw", dw, acc_dw ? Access::update : Access::write);
  }
};

// y = act(gate) * up     all [rows, n]
//   act(z) = z sigmoid(a(z)):  a(z) = z, which is SiLU;  with gelu a(z) = 2 sqrt(2 / pi) (z + 0.044715 z^3), which is
//   the tanh form of GELU, z / 2 (1 + tanh(a(z) / 2))
//   (Hendrycks & Gimpel 2016, arXiv 1606.08415; Shazeer 2020, arXiv 2002.05202)
struct SwiGlu {
  static constexpr const char* name = "swiglu";
  View gate, up, y;
  bool gelu = false;
  int64_t flops() const { return (gelu ? 9 : 5) * gate.elements(); }  // an exponential counts as one
  template <class F>
  void views(F f) {
    f("gate", gate, Access::read), f("up", up, Access::read), f("y", y, Access::write);
  }
};

// With s = sigmoid(a(gate)):  dup = dy * gate * s;  dgate = dy * up * s * (1 + gate * (1 - s) * a'(gate)).
// In place allowed: dgate may be gate, dup may be up or dy.
struct SwiGluGrad {
  static constexpr const char* name = "swiglu_grad";
  View gate, up, dy, dgate, dup;
  bool gelu = false;
  int64_t flops() const { return (gelu ? 18 : 11) * gate.elements(); }
  template <class F>
  void views(F f) {
    f("gate", gate, Access::read), f("up", up, Access::read), f("dy", dy, Access::read);
    f("dgate", dgate, Access::write), f("dup", dup, Access::write);
  }
};

// out_i (+)= node_i at each element of a space, in f32 and in one pass: a small program of the functions of
// kernels/pointwise.h, whose nodes take nodes before them, elements of inputs and constants.
// space: a shape (no memory)   in_k: f32, bf16, f16, i32, i64 or u8; its dimensions are the space's, or 1 where one
// element stands for all   out_i: f32, bf16, f16, or u8, which gets 1 for what is not 0; its shape says whether it has
// each element, one a row, or sums (PointwiseOutput)
// A sum over a row is of blocks of columns in order, one over dimensions of blocks of rows. i32 and i64 count as f32.
// In place allowed: an output with each element may be an input of its shape and dtype.
struct Pointwise {
  static constexpr const char* name = "pointwise";
  View space;
  std::vector<PointwiseNode> nodes;
  std::vector<View> in;
  std::vector<PointwiseOutput> out;
  int64_t flops() const;  // a function counts as one
  template <class F>
  void views(F f) {
    for (View& each : in) f("in", each, Access::read);
    for (PointwiseOutput& each : out) f("out", each.view, each.acc ? Access::update : Access::write);
  }
};

// Where the indices of a space lie in a view: index i at element first + sum_d i_d stride_d. Strides may be 0 or less.
struct Strides {
  int64_t first = 0, stride[kMaxRank] = {};
};

// y at `to` (+)= x at `from`, for every index of the space: a slice, a transposed or repeated tensor, a part of another.
// space: a shape (no memory)   x, y: the same plain dtype, with acc a float one; memory apart. No two indices share a
// place in y; what lies between stays as it is.
struct Rearrange {
  static constexpr const char* name = "rearrange";
  View x, y, space;
  Strides from, to;
  bool acc = false;
  int64_t flops() const { return acc ? space.elements() : 0; }
  bool fills() const { return space.elements() == y.elements(); }  // all of y
  template <class F>
  void views(F f) {
    f("x", x, Access::read), f("y", y, acc || !fills() ? Access::update : Access::write);
  }
};

// y[o, j, i] = x[o, index[o, j, i], i]     x: [outer, n, inner]   y: [outer, m, inner]   index: [outer, m, inner] i32,
// where outer and inner may be 1: the same for all. x, y: one plain dtype. An index outside [0, n) is Error("value").
struct Gather {
  static constexpr const char* name = "gather";
  View x, index, y;
  template <class F>
  void views(F f) {
    f("x", x, Access::read), f("index", index, Access::read), f("y", y, Access::write);
  }
};

// y[o, index[o, j, i], i] += x[o, j, i], in order of j     shapes as of Gather, x being [outer, m, inner] and y
// [outer, n, inner]   x: float or f16   y: f32
struct ScatterAdd {
  static constexpr const char* name = "scatter_add";
  View x, index, y;
  int64_t flops() const { return x.elements(); }
  template <class F>
  void views(F f) {
    f("x", x, Access::read), f("index", index, Access::read), f("y", y, Access::update);
  }
};

// Of each row of x the first k of its elements in order, and their columns: ascending, or descending. Equal ones keep
// their order; a NaN counts as larger than all numbers, -0 as 0.
// x: [rows, n] f32, bf16, f16 or i32   y: [rows, k] of x's dtype   index: [rows, k] i32
struct Sort {
  static constexpr const char* name = "sort";
  View x, y, index;
  bool descending = false;
  template <class F>
  void views(F f) {
    f("x", x, Access::read), f("y", y, Access::write), f("index", index, Access::write);
  }
};

// y[r, j] = x[r, 0] + .. + x[r, j], or x[r, j] + .. + x[r, n - 1] with reverse, in f32     x, y: [rows, n], one float
// dtype; in place allowed
struct CumulativeSum {
  static constexpr const char* name = "cumulative_sum";
  View x, y;
  bool reverse = false;
  int64_t flops() const { return x.elements(); }
  template <class F>
  void views(F f) {
    f("x", x, Access::read), f("y", y, Access::write);
  }
};

// y = a + b     in place allowed (y may be a or b). Shapes and dtypes equal.
struct Add {
  static constexpr const char* name = "add";
  View a, b, y;
  int64_t flops() const { return y.elements(); }
  template <class F>
  void views(F f) {
    f("a", a, Access::read), f("b", b, Access::read), f("y", y, Access::write);
  }
};

// y = alpha * x     x, y: same shape, float, dtypes may differ (so this also casts); in place allowed where they agree.
struct Scale {
  static constexpr const char* name = "scale";
  View x, y;
  float alpha = 1;
  int64_t flops() const { return y.elements(); }
  template <class F>
  void views(F f) {
    f("x", x, Access::read), f("y", y, Access::write);
  }
};

// y = x rounded to y's dtype (bf16: to nearest, ties to even; f16 likewise).
// x, y: f32, bf16 or f16, same element count; x may also be of a block format, whose values are those of its decoder
struct Cast {
  static constexpr const char* name = "cast";
  View x, y;
  template <class F>
  void views(F f) {
    f("x", x, Access::read), f("y", y, Access::write);
  }
};

// y = x, byte for byte. Same dtype and element count.
struct Copy {
  static constexpr const char* name = "copy";
  View x, y;
  template <class F>
  void views(F f) {
    f("x", x, Access::read), f("y", y, Access::write);
  }
};

// y = value everywhere (any dtype; value is converted; a block format takes 0 only).
struct Fill {
  static constexpr const char* name = "fill";
  View y;
  float value = 0;
  template <class F>
  void views(F f) {
    f("y", y, Access::write);
  }
};

// y[i] = keep(i) ? x[i] / (1 - p) : 0,  keep(i) = philox(seed, step, subsequence, i) >= p     (kernels/math/philox.h)
// rng: [2] i64 = {seed, step}, read when the op runs, so that a captured program draws anew each step.
// subsequence tells apart the dropout sites of a step. The gradient is the same op applied to dy. In place allowed.
struct Dropout {
  static constexpr const char* name = "dropout";
  View x, y, rng;
  float p = 0;
  uint32_t subsequence = 0;
  int64_t flops() const { return x.elements(); }
  template <class F>
  void views(F f) {
    f("x", x, Access::read), f("rng", rng, Access::read), f("y", y, Access::write);
  }
};

// y[t, i] = x[t, i] + strength / sqrt(length(t) * n) * (2 philox(seed, step, subsequence, t * n + i) - 1)
// Noise on embedded tokens (NEFTune; Jain et al. 2023, arXiv 2310.05914). length(t): tokens of the document that row t
// is in, of all rows past the last one. Its gradient is dy itself. In place allowed.
// x, y: [tokens, n] of one float dtype   cu: [documents + 1] i32   rng: [2] i64, as in Dropout
struct EmbeddingNoise {
  static constexpr const char* name = "embedding_noise";
  View x, cu, y, rng;
  float strength = 0;
  uint32_t subsequence = 0;
  int64_t flops() const { return 2 * x.elements(); }
  template <class F>
  void views(F f) {
    f("x", x, Access::read), f("cu", cu, Access::read), f("rng", rng, Access::read), f("y", y, Access::write);
  }
};

// inverse[i] = 1 / sqrt(squares[i] + sum_k b[i, k] cross[k, i]), 0 where that is not positive
// scale[i] = magnitude[i] * inverse[i]
// What multiplies row i of W + s B A under DoRA (Liu et al. 2024, arXiv 2402.09353), whose length is that root if
// squares[i] = |W[i]|^2 and cross = 2 s A W^T + s^2 (A A^T) B^T. The gradient of the magnitude is dscale[i] *
// inverse[i]; the length counts as a constant.
// squares, magnitude, inverse, scale: [out] f32   b: [out, rank] f32 or bf16   cross: [rank, out] f32
struct DoraScale {
  static constexpr const char* name = "dora_scale";
  View squares, magnitude, b, cross, inverse, scale;
  int64_t flops() const { return 2 * b.elements() + 3 * scale.elements(); }
  template <class F>
  void views(F f) {
    f("squares", squares, Access::read), f("magnitude", magnitude, Access::read), f("b", b, Access::read);
    f("cross", cross, Access::read), f("inverse", inverse, Access::write), f("scale", scale, Access::write);
  }
};

// ---------------------------------------------------------------- attention

// Rotates pairs (i, i + rotary/2) of each head by angle positions[t] * inv_freq[i] ("neox halves"); inverse: by minus
// that.
//   y[i] = c x[i] - s x[i + r/2];  y[i + r/2] = s x[i] + c x[i + r/2];  c, s = scale * cos, sin;  the rest is copied
// x, y: [tokens, heads, head_dim]   positions: [tokens] i32   inv_freq: [rotary/2] f32, rotary <= head_dim
// [x2], [y2]: [tokens, heads2, head_dim], rotated by the same angles: the keys beside the queries.
// scale is YaRN's attention factor (1 otherwise). inverse is the exact transpose, so it is the gradient. In place
// allowed (y may be x, y2 may be x2).
struct Rope {
  static constexpr const char* name = "rope";
  View x, positions, inv_freq, y, x2, y2;
  float scale = 1;
  bool inverse = false;
  int64_t flops() const { return 3 * (x.elements() + (x2 ? x2.elements() : 0)); }  // as if all were rotated
  template <class F>
  void views(F f) {
    f("x", x, Access::read), f("positions", positions, Access::read), f("inv_freq", inv_freq, Access::read);
    f("y", y, Access::write), f("x2", x2, Access::read), f("y2", y2, Access::write);
  }
};

// Causal attention over packed documents, grouped query heads; the score matrix is never formed.
//   o[t, h, :] = sum_j softmax_j(scale * <q[t, h, :], k[j, g, :]>) v[j, g, :],   g = h / (heads / kv_heads)
// Document s holds queries cu_q[s] .. cu_q[s+1] and keys cu_k[s] .. cu_k[s+1]; its last query sees its last key, the
// one before sees one less, and so on (training: cu_q == cu_k; decoding: few queries, many keys). window > 0 limits a
// query to its last `window` keys. Documents may be empty. Queries past cu_q[last] give o = 0, lse = 0.
// q, o: [tq, heads, head_dim]   k, v: [tk, kv_heads, head_dim]   cu_q, cu_k: [docs + 1] i32 ascending from 0
// lse: [heads, tq] f32, log of the sum of exponentials, kept for backward. f32 softmax.
struct Attention {
  static constexpr const char* name = "attention";
  View q, k, v, cu_q, cu_k, o, lse;
  float scale = 1;
  int window = 0;
  template <class F>
  void views(F f) {
    f("q", q, Access::read), f("k", k, Access::read), f("v", v, Access::read), f("cu_q", cu_q, Access::read);
    f("cu_k", cu_k, Access::read), f("o", o, Access::write), f("lse", lse, Access::write);
  }
};

// Gradients of Attention: P = exp(scale * q k^T - lse), delta = rowsum(dout * o), dS = P * (dout v^T - delta),
//   dq = scale * dS k,  dk = scale * dS^T q,  dv = P^T dout, dk and dv summed over the query heads of a group.
// delta: [heads, tq] f32 workspace.
struct AttentionGrad {
  static constexpr const char* name = "attention_grad";
  View q, k, v, cu_q, cu_k, o, lse, dout, delta, dq, dk, dv;
  float scale = 1;
  int window = 0;
  template <class F>
  void views(F f) {
    f("q", q, Access::read), f("k", k, Access::read), f("v", v, Access::read), f("cu_q", cu_q, Access::read);
    f("cu_k", cu_k, Access::read), f("o", o, Access::read), f("lse", lse, Access::read), f("dout", dout, Access::read);
    f("delta", delta, Access::write), f("dq", dq, Access::write), f("dk", dk, Access::write),
        f("dv", dv, Access::write);
  }
};

// Stores new keys and values in a paged cache: pool[slots[t], :, :] = row t, rounded to the pool's dtype; slot -1:
// nowhere.
// k, v: [tokens, kv_heads, head_dim] float   slots: [tokens] i32, no slot twice
// k_pool, v_pool: [slots, kv_heads, head_dim] f32, bf16, f16 or q8_0 (head_dim then a multiple of 32)
// A slot outside the pool is Error("value").
struct KvStore {
  static constexpr const char* name = "kv_store";
  View k, v, slots, k_pool, v_pool;
  template <class F>
  void views(F f) {
    f("k", k, Access::read), f("v", v, Access::read), f("slots", slots, Access::read);
    f("k_pool", k_pool, Access::update), f("v_pool", v_pool, Access::update);
  }
};

// pool's page to = its page from, for each pair {from, to}: copy on write. A page is page_tokens rows of the pool.
// pool: as in KvStore   pairs: [n, 2] i32; no `to` is another pair's `from` or `to`. A page outside the pool is
// Error("value").
struct CopyPages {
  static constexpr const char* name = "copy_pages";
  View pool, pairs;
  int page_tokens = 0;
  template <class F>
  void views(F f) {
    f("pairs", pairs, Access::read), f("pool", pool, Access::update);
  }
};

// Attention (see there) of the new tokens of many sequences over a paged cache, for inference: sequence s has queries
// cu_q[s] .. cu_q[s+1] and lengths[s] keys, of which its last query sees the last; key j lies in slot
// pages[s, j / page_tokens] * page_tokens + j % page_tokens. A query's bits depend on it and its keys alone.
// q, o: [tokens, heads, head_dim] float   k_pool, v_pool: as in KvStore   pages: [sequences, most] i32
// cu_q: [sequences + 1] i32 ascending from 0   lengths: [sequences] i32, at least the sequence's queries
// Queries past cu_q[last] give o = 0. window as in Attention. A page outside the pool that is needed is Error("value").
struct PagedAttention {
  static constexpr const char* name = "paged_attention";
  View q, k_pool, v_pool, pages, cu_q, lengths, o;
  float scale = 1;
  int window = 0, page_tokens = 0;
  template <class F>
  void views(F f) {
    f("q", q, Access::read), f("k_pool", k_pool, Access::read), f("v_pool", v_pool, Access::read);
    f("pages", pages, Access::read), f("cu_q", cu_q, Access::read), f("lengths", lengths, Access::read);
    f("o", o, Access::write);
  }
};

// ---------------------------------------------------------------- loss

// Cross-entropy fused with the LM head; logits exist for one chunk of rows at a time, in f32.
//   z = h W^T;  nll[t] = logsumexp(z[t]) - z[t, targets[t]];  loss = loss_scale * sum of nll over trained rows
//   [dh] = loss_scale * (softmax(z) - onehot) W;   [dw] += loss_scale * (softmax(z) - onehot)^T h
// Rows whose target is -1 are not trained: their nll and dh are 0 and their logits are never computed.
// h, dh: [tokens, hidden]   w: [vocab, hidden] of h's dtype, or without dw of a stored one as in Matmul
// targets: [tokens] i32
// loss_scale: [1] f32, read when the op runs
// nll: [tokens] f32   loss: [1] f32   dw: [vocab, hidden] f32, absent where the head is frozen
// workspace: u8 of at least lm_head_workspace(...) bytes. With dh absent only nll and loss are computed (evaluation).
struct LmHeadLoss {
  static constexpr const char* name = "lm_head_loss";
  View h, w, targets, loss_scale, nll, loss, dh, dw, workspace;
  int chunk = 256;  // rows of logits held at once
  template <class F>
  void views(F f) {
    f("h", h, Access::read), f("w", w, Access::read), f("targets", targets, Access::read),
        f("loss_scale", loss_scale, Access::read);
    f("nll", nll, Access::write), f("loss", loss, Access::write), f("dh", dh, Access::write),
        f("dw", dw, Access::update);
    f("workspace", workspace, Access::write);
  }
};
// Bytes for: logits [chunk, vocab] in f32, gathered h and dh rows [tokens, hidden], trained row numbers [tokens] i32,
// slack.
int64_t lm_head_workspace(int64_t tokens, int64_t hidden, int64_t vocab, int chunk, DType dtype);

// ---------------------------------------------------------------- data

// Packed rows from records as they are stored (engine/packets/frame.h): strips headers, swaps bytes, reads mask bits.
//   slot piece.slot + i, i < piece.tokens, gets:  tokens = token piece.begin + i of the record,  positions = i,
//   targets = the piece's next token where the mask has its bit, else -1
// Slots of no piece get pad, -1 and position 0.
// frames: [bytes] u8   pieces: [n, 6] i64 = {slot, tokens, byte where the record starts in frames, begin, tokens of the
// whole record, 1 if it has a mask}, by ascending slot; rows that are not needed have slot = slots and zeros
// tokens, targets, positions: [slots] i32. A piece that leaves the slots or the frames is Error("value").
struct DecodePackets {
  static constexpr const char* name = "decode_packets";
  View frames, pieces, tokens, targets, positions;
  int32_t pad = 0;
  template <class F>
  void views(F f) {
    f("frames", frames, Access::read), f("pieces", pieces, Access::read);
    f("tokens", tokens, Access::write), f("targets", targets, Access::write), f("positions", positions, Access::write);
  }
};

// ---------------------------------------------------------------- optimizer

// out[i] = sum of x[i]^2, fixed order     x: tensors of any shape, f32   out: [number of tensors] f32
struct SumSquares {
  static constexpr const char* name = "sum_squares";
  std::vector<View> x;
  View out;
  template <class F>
  void views(F f) {
    for (View& each : x) f("x", each, Access::read);
    f("out", out, Access::write);
  }
};

// out[0] = norm = sqrt(sum(partials)),  out[1] = min(1, max_norm / (norm + 1e-6)); max_norm <= 0 means no clipping
// (out[1] = 1). If norm is not finite, out[1] = 0 and out[2] = 1 (the caller skips the step), else out[2] = 0.
// partials: [n] f32   out: [3] f32
struct ClipScale {
  static constexpr const char* name = "clip_scale";
  View partials, out;
  float max_norm = 1;
  int64_t flops() const { return partials.elements(); }
  template <class F>
  void views(F f) {
    f("partials", partials, Access::read), f("out", out, Access::write);
  }
};

// Decoupled weight decay (Loshchilov & Hutter 2019). With g = clip[1] * grad, t = step + 1:
//   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  w = w (1 - lr decay) - lr (m / (1 - b1^t)) / (sqrt(v / (1 -
//   b2^t)) + eps)
// Lists of tensors, one for each parameter: w, grad, m, v of the same element count, f32.   model: bf16 copies of w,
// written with the new value; an empty list, or absent views, where there are none.   clear: grad = 0 afterwards.
// hyper: [2] f32 = {lr, t}, read when the op runs.   clip: [3] f32 from ClipScale; if clip[2] != 0 only grad is
// changed.
struct AdamW {
  static constexpr const char* name = "adamw";
  std::vector<View> w, grad, m, v, model;
  View hyper, clip;
  float beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, decay = 0;
  bool clear = false;
  template <class F>
  void views(F f) {
    for (View& each : w) f("w", each, Access::update);
    for (View& each : grad) f("grad", each, clear ? Access::update : Access::read);
    for (View& each : m) f("m", each, Access::update);
    for (View& each : v) f("v", each, Access::update);
    for (View& each : model) f("model", each, Access::write);
    f("hyper", hyper, Access::read), f("clip", clip, Access::read);
  }
};

// ---------------------------------------------------------------- one-bit training

// y[r, i] = x[r, i] * scale[i] + [bias[i]]     x, y: [..., n] of one float dtype   scale: [n] f32
// bias: [n] f32 or x's dtype
// The factor that a row of unscaled weights (one_bit, ternary) has: x is their product.
struct ScaleColumns {
  static constexpr const char* name = "scale_columns";
  View x, scale, bias, y;
  int64_t flops() const { return (bias ? 2 : 1) * x.elements(); }
  template <class F>
  void views(F f) {
    f("x", x, Access::read), f("scale", scale, Access::read), f("bias", bias, Access::read), f("y", y, Access::write);
  }
};

// dx[r, i] = dy[r, i] * scale[i];  [dscale[i]] (+)= sum_r dy[r, i] * x[r, i]
// Shapes as there; dscale: [n] f32, absent where frozen.
struct ScaleColumnsGrad {
  static constexpr const char* name = "scale_columns_grad";
  View x, scale, dy, dx, dscale;
  bool acc = false;  // of dscale
  int64_t flops() const { return (dscale ? 3 : 1) * x.elements(); }
  template <class F>
  void views(F f) {
    f("x", x, Access::read), f("scale", scale, Access::read), f("dy", dy, Access::read), f("dx", dx, Access::write);
    f("dscale", dscale, acc ? Access::update : Access::write);
  }
};

// The gradient of rows first .. first + n of a weight, in directions and steps alone. G = dy^T x is computed in tiles
// of rows that are dropped again, so that no more of it than 4 MB (a GPU: 32 MB) ever exists. With
// r[i] = sqrt(mean_j G[i, j]^2) and H = G - hyper[1] r[i] W,
// which takes some of the evidence against a weight's sign away and adds as much for it:
//   ternary:  pulses[i, j] = -sign(H[i, j]) where |H[i, j]| > hyper[0] r[i], else 0
//   u8:       pulses[i, j] = -sign(H[i, j]) floor(hyper[0] |H[i, j]| / r[i] + u), at most 127 in size, two's
//   complement;
//             u in [0, 1) is Philox's for element i * k + j (kernels/math/philox.h)
// A row whose sum of squares is not finite gives no pulses. A pulse is the way that descent wants the weight to go.
// hyper[1] is the reference value of a cumulative sum test (Page 1954, Continuous inspection schemes), in deviations of
// G: counters of pulses tell a drift of G's mean from noise the better, the nearer it is to half the drift that
// matters.
// dy: [rows, first + n or more] float   x: [rows, k] of dy's dtype   weights: [n, k] one_bit, W = -1 or +1
// pulses: [n, k] ternary or u8   hyper: [4] f32 = {strength, friction, gamma, threshold}, read when the op runs
// rng: [2] i64 = {seed, step}, likewise. Rules and what they did: the one-bit recipes' README.
struct PulseGrad {
  static constexpr const char* name = "pulse_grad";
  View dy, x, weights, pulses, hyper, rng;
  int64_t first = 0;
  uint32_t subsequence = 0;  // tells the weights of a model apart
  template <class F>
  void views(F f) {
    f("dy", dy, Access::read), f("x", x, Access::read), f("weights", weights, Access::read),
        f("pulses", pulses, Access::write);
    f("hyper", hyper, Access::read), f("rng", rng, Access::read);
  }
};

// Pulses move the state of one-bit weights, which flip when it is against them (kernels/math/inertia.h). By its dtype:
//   one_bit [planes, n, k]: counters of 0 .. 2^planes - 1 in bit planes, +1 a set bit, planes 1 to 4; ternary pulses.
//             A pulse along the weight counts up to the top, one against it counts down; at 0 it flips the weight and
//             refills
//   u8 [n, k]: counters of 0 .. 255 likewise, of u8 pulses of several steps; or with `bop` int8 momenta, in steps of
//             0.8 / 127 of the gradient's rms, of u8 pulses in sixteenths of it: m = (1 - g) m + g p, rounded up with
//             the probability of what is cut off (Philox, as in PulseGrad), and the weight flips where m * weight < -t;
//             g = hyper[2], t = hyper[3]
// pulses: [n, k]   weights: [n, k] one_bit   counts: [2] i64 += {pulses that are not 0, flips}   hyper: PulseGrad's
struct Inertia {
  static constexpr const char* name = "inertia";
  View pulses, weights, state, counts, hyper, rng;
  bool bop = false;
  uint32_t subsequence = 0;
  int64_t flops() const { return (bop ? 5 : 1) * weights.elements(); }
  template <class F>
  void views(F f) {
    f("pulses", pulses, Access::read), f("weights", weights, Access::update), f("state", state, Access::update);
    f("counts", counts, Access::update), f("hyper", hyper, Access::read), f("rng", rng, Access::read);
  }
};

// counts[level] += how many counters stand there: popcounts of the state that Inertia has
// state: one_bit [planes, n, k] of 1 to 4 planes, levels 0 .. 2^planes - 1; or u8 [n, k], where 16 levels are one:
// counts[0] is of 0 .. 15   counts: [16] i64
struct CountLevels {
  static constexpr const char* name = "count_levels";
  View state, counts;
  int64_t flops() const { return state.elements(); }
  template <class F>
  void views(F f) {
    f("state", state, Access::read), f("counts", counts, Access::update);
  }
};

// y = the sign of x, +1 for zero     x: [..., k] f32   y: that shape, one_bit
struct PackSigns {
  static constexpr const char* name = "pack_signs";
  View x, y;
  int64_t flops() const { return x.elements(); }
  template <class F>
  void views(F f) {
    f("x", x, Access::read), f("y", y, Access::write);
  }
};

// y = x clipped to [-1, 1]; with levels > 0 rounded to a multiple of 1 / levels, up with the probability of its
// distance from the lower one (Philox, as in PulseGrad): the weights of training without a latent copy (Zhao et al.
// 2024, arXiv 2412.04787).
// x, y: f32, in place allowed   levels: at most 127
struct ClipToGrid {
  static constexpr const char* name = "clip_to_grid";
  View x, y, rng;
  int levels = 0;
  uint32_t subsequence = 0;
  int64_t flops() const { return (levels ? 4 : 2) * x.elements(); }
  template <class F>
  void views(F f) {
    f("x", x, Access::read), f("y", y, Access::write), f("rng", rng, Access::read);
  }
};

// ---------------------------------------------------------------- weights that are streamed

// What the operations around belong to: a forward pass with nothing behind it, one that a backward pass follows, or
// that.
enum class Pass : uint8_t { inference, forward, backward };

// Weights that are not all in the device's memory, in units that are used one after the other (engine/stream). Called
// where a UseWeights runs, in the order of the operations, or once for each recorded one; Error("memory" | "io").
class WeightStream {
 public:
  static constexpr int kNoUnit = -1;  // the pass is over
  virtual ~WeightStream() = default;
  virtual void use(int unit, Pass pass) = 0;
};

// From here to the next one of the same stream, operations read the weights of `unit`, which are there from now on, and
// not those of other units, whose memory may be used again. What comes next follows from the pass and is brought
// meanwhile. stream: null does nothing; whoever runs the op, or keeps it to run it again, keeps the stream. It is an op
// of a captured program like any other, so that replays stream as well.
struct UseWeights {
  static constexpr const char* name = "use_weights";
  WeightStream* stream = nullptr;
  int unit = 0;
  Pass pass = Pass::inference;
  template <class F>
  void views(F) {}
};

// Every operation, once. What has to know of each follows from this list: the variant, the declarations of check_shapes
// and of run on each backend, the conformance test's table, and the names of CTest's runs of it.
// clang-format off
#define QENG_OPERATIONS(OP) \
  OP(Matmul) OP(RowLinear) OP(Hadamard) OP(KvStore) OP(CopyPages) OP(PagedAttention) OP(BiasGrad) OP(Embedding) \
  OP(EmbeddingGrad) OP(RmsNorm) OP(AddRmsNorm) OP(RmsNormGrad) OP(SwiGlu) OP(SwiGluGrad) OP(Pointwise) OP(Rearrange) OP(Gather) \
  OP(ScatterAdd) OP(Sort) OP(CumulativeSum) OP(Add) OP(Scale) OP(Cast) \
  OP(Copy) OP(Fill) OP(Dropout) OP(EmbeddingNoise) OP(DoraScale) OP(Rope) OP(Attention) OP(AttentionGrad) \
  OP(LmHeadLoss) OP(DecodePackets) OP(SumSquares) OP(ClipScale) OP(AdamW) OP(ScaleColumns) OP(ScaleColumnsGrad) \
  OP(PulseGrad) OP(Inertia) OP(CountLevels) OP(PackSigns) OP(ClipToGrid) OP(UseWeights)
// clang-format on

#define QENG_ALTERNATIVE(Name) , Name
template <class, class... Ops>  // the list puts a comma before each
using OpOf = std::variant<Ops...>;
using Op = OpOf<void QENG_OPERATIONS(QENG_ALTERNATIVE)>;
#undef QENG_ALTERNATIVE

inline const char* op_name(const Op& op) {
  return std::visit([](const auto& o) { return o.name; }, op);
}

// Calls f(label, View&, Access) for each view of the op that is present.
template <class F>
void for_each_view(Op& op, F f) {
  std::visit(
      [&](auto& o) {
        o.views([&](const char* label, View& view, Access access) {
          if (view) f(label, view, access);
        });
      },
      op);
}
// The same of an op that stays as it is: f(label, const View&, Access).
template <class F>
void for_each_view(const Op& op, F f) {
  const auto read = [&](const char* label, const View& view, Access access) { f(label, view, access); };
  for_each_view(const_cast<Op&>(op), read);
}

Cost cost(const Op& op);  // of views in host memory; kernels/backend.h has the form for any device

}  // namespace qeng
