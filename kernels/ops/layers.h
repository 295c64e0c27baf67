// Operations: norms, activations and other parts of a block. Conventions: kernels/ops.h.
#pragma once
#include "kernels/ops/access.h"

namespace qeng {

// y[r, :] = x[r, :] * rstd[r] * (w + (plus_one ? 1 : 0)),   rstd[r] = 1 / sqrt(mean(x[r, :]^2) + eps)
// x, y: [..., dim]   w: [dim]   rstd: [rows] f32 (kept for backward). Also per head: x is [tokens, heads, head_dim].
// Grouped: w is [groups, dim] and x [..., groups, dim]; each group of a token's columns has its own weights.
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

// y = (x - mean) * rstd * w + [b] of each row, rstd = 1 / sqrt(mean of (x - mean)^2 + eps)     (Ba, Kiros & Hinton 2016,
// arXiv 1607.06450)
// x, y: [..., dim]   w, b: [dim] f32 or x's dtype   mean, rstd: [rows] f32 (kept for backward)
struct LayerNorm {
  static constexpr const char* name = "layer_norm";
  View x, w, b, y, mean, rstd;
  float eps = 1e-5f;
  int64_t flops() const { return 7 * x.elements(); }
  template <class F>
  void views(F f) {
    f("x", x, Access::read), f("w", w, Access::read), f("b", b, Access::read);
    f("y", y, Access::write), f("mean", mean, Access::write), f("rstd", rstd, Access::write);
  }
};

// With xhat = (x - mean) * rstd and g = dy * w:  dx = [dresidual] + rstd * (g - mean(g) - xhat * mean(g * xhat)),
//   [dw] (+)= sum_r dy * xhat,  [db] (+)= sum_r dy
// dresidual: like x, as in RmsNormGrad. dw, db: [dim] f32.
struct LayerNormGrad {
  static constexpr const char* name = "layer_norm_grad";
  View x, w, mean, rstd, dy, dresidual, dx, dw, db;
  bool acc = false;  // of dw and db
  int64_t flops() const { return (11 + (dw ? 2 : 0) + (db ? 1 : 0) + (dresidual ? 1 : 0)) * x.elements(); }
  template <class F>
  void views(F f) {
    f("x", x, Access::read), f("w", w, Access::read), f("mean", mean, Access::read), f("rstd", rstd, Access::read);
    f("dy", dy, Access::read), f("dresidual", dresidual, Access::read), f("dx", dx, Access::write);
    f("dw", dw, acc ? Access::update : Access::write), f("db", db, acc ? Access::update : Access::write);
  }
};

// A causal convolution of each channel over packed documents:
//   y[t, c] = [bias[c]] + sum_{j < width} w[c, j] x[t - (width - 1) + j, c]
// What lies before a document's first row is 0; or, for inference, the sequence's rows of earlier steps.
// x, y: [rows, channels] float   w: [channels, width] f32 or x's dtype, width 2 to 8   bias: [channels] likewise
// cu: [documents + 1] i32 ascending from 0; rows past cu[last] give 0
// [lengths]: [documents] i32, how many rows a sequence has with these. Its row t is kept in row t % depth of page
// pages[s, t / page_tokens] of [state]: [n, depth, channels] f32, depth at least width - 1; so a page keeps the last of
// its rows.   [pages]: [documents, most] i32; one outside the n that is needed is Error("value").
struct CausalConv {
  static constexpr const char* name = "causal_conv";
  View x, w, bias, cu, state, pages, lengths, y;
  int64_t page_tokens = 0;
  int64_t flops() const { return 2 * x.elements() * w.columns(); }
  template <class F>
  void views(F f) {
    f("x", x, Access::read), f("w", w, Access::read), f("bias", bias, Access::read), f("cu", cu, Access::read);
    f("state", state, Access::update), f("pages", pages, Access::read), f("lengths", lengths, Access::read);
    f("y", y, Access::write);
  }
};

// dx[t, c] = sum_j w[c, j] dy[t + (width - 1) - j, c] within the document;  [dw[c, j]] (+)= sum_t dy[t, c]
// x[t - (width - 1) + j, c];  [dbias[c]] (+)= sum_t dy[t, c]
// Shapes as there; [dx] like x; dw: [channels, width] f32, dbias: [channels] f32.
struct CausalConvGrad {
  static constexpr const char* name = "causal_conv_grad";
  View x, w, cu, dy, dx, dw, dbias;
  bool acc = false;  // of dw and dbias
  int64_t flops() const { return ((dx ? 2 : 0) + (dw ? 2 : 0)) * x.elements() * w.columns(); }
  template <class F>
  void views(F f) {
    f("x", x, Access::read), f("w", w, Access::read), f("cu", cu, Access::read), f("dy", dy, Access::read);
    f("dx", dx, Access::write), f("dw", dw, acc ? Access::update : Access::write);
    f("dbias", dbias, acc ? Access::update : Access::write);
  }
};

// clang-format off
#define QENG_LAYERS_OPERATIONS(OP) \
  OP(RmsNorm) OP(AddRmsNorm) OP(RmsNormGrad) OP(SwiGlu) OP(SwiGluGrad) OP(Dropout) OP(EmbeddingNoise) \
  OP(DoraScale) OP(ScaleColumns) OP(ScaleColumnsGrad) OP(LayerNorm) OP(LayerNormGrad) OP(CausalConv) OP(CausalConvGrad)
// clang-format on

}  // namespace qeng
