// Operations: products of matrices. Conventions: kernels/ops.h.
#pragma once
#include <vector>

#include "kernels/ops/access.h"

namespace qeng {

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

// Sums of products, each written once, several at a time:  c = sum_i op(a_i) op(b_i) + bias + (acc ? c : 0)
// A layer and its adapter are one sum, and so is what layers that read one x hand back to it. The results of such
// layers are several, and so are the gradients of their weights: a device that makes them together is filled by small
// ones too.
// op(a_i): [m, k_i]   op(b_i): [k_i, n]   c: [m, n]   bias: [n]   Dtypes as of Matmul, those of a the same in all.
// m, n and k_i differ from sum to sum, and no two share memory of c. Where c is bf16, a device may round to it after
// each product, in their order.
struct MatmulSum {
  static constexpr const char* name = "matmul_sum";
  struct Sum {
    std::vector<View> a, b;
    View bias, c;
    bool acc = false;
  };
  std::vector<Sum> sums;
  bool trans_a = false, trans_b = false;
  int64_t flops() const {
    int64_t flops = 0;
    for (const Sum& sum : sums)
      for (const View& a : sum.a) flops += 2 * sum.c.elements() * (trans_a ? a.rows() : a.columns());
    return flops;
  }
  template <class F>
  void views(F f) {
    for (Sum& sum : sums) {
      for (View& each : sum.a) f("a", each, Access::read);
      for (View& each : sum.b) f("b", each, Access::read);
      f("bias", sum.bias, Access::read), f("c", sum.c, sum.acc ? Access::update : Access::write);
    }
  }
};

// The inner products of low-rank adapters that read one x:  u_i = alpha_i x a_i^T, rounded once.
// x: [rows, k] float   a_i: [rank_i, k]   u_i: [rows, rank_i], of x's dtype
struct LoraDown {
  static constexpr const char* name = "lora_down";
  View x;
  std::vector<View> a, u;
  std::vector<float> alpha;
  int64_t flops() const {
    int64_t elements = 0;
    for (const View& each : a) elements += each.elements();
    return 2 * x.rows() * elements;
  }
  template <class F>
  void views(F f) {
    f("x", x, Access::read);
    for (View& each : a) f("a", each, Access::read);
    for (View& each : u) f("u", each, Access::write);
  }
};

// da_i (+)= du_i^T x     x: [rows, k] float   du_i: [rows, rank_i] of x's dtype   da_i: [rank_i, k] f32 or x's dtype
struct LoraDownGrad {
  static constexpr const char* name = "lora_down_grad";
  View x;
  std::vector<View> du, da;
  bool acc = false;
  int64_t flops() const {
    int64_t elements = 0;
    for (const View& each : da) elements += each.elements();
    return 2 * x.rows() * elements;
  }
  template <class F>
  void views(F f) {
    f("x", x, Access::read);
    for (View& each : du) f("du", each, Access::read);
    for (View& each : da) f("da", each, acc ? Access::update : Access::write);
  }
};

// What the outer product y = u b^T of an adapter hands back, from one reading of dy:  du = alpha dy b,  [db] (+)= dy^T u
// dy: [rows, n] float   b: [n, rank]   u, du: [rows, rank], of dy's dtype   db: [n, rank] f32 or dy's dtype
struct LoraUpGrad {
  static constexpr const char* name = "lora_up_grad";
  View dy, b, u, du, db;
  bool acc = false;
  float alpha = 1;
  int64_t flops() const { return (db ? 4 : 2) * dy.rows() * b.elements(); }
  template <class F>
  void views(F f) {
    f("dy", dy, Access::read), f("b", b, Access::read), f("u", u, Access::read), f("du", du, Access::write);
    f("db", db, acc ? Access::update : Access::write);
  }
};

// x rounded to E4M3 (kernels/math/e4m3.h) by one scale for all of it, the least power of two by which its largest magnitude
// fits, for Fp8Matmul:  y = e4m3(x / scale), yt = y^T. Where something in x is not finite, scale and all codes are NaN.
// x: [rows, columns] float   [y]: [rows, columns] u8   [yt]: [columns, rows] u8   scale: [1] f32
struct Fp8Round {
  static constexpr const char* name = "fp8_round";
  View x, y, yt, scale;
  template <class F>
  void views(F f) {
    f("x", x, Access::read), f("y", y, Access::write), f("yt", yt, Access::write), f("scale", scale, Access::write);
  }
};

// c = scale_a scale_b a b^T + bias + (acc ? c : 0), of numbers in E4M3, summed in f32. Where c is bf16, a device may round to
// it before it adds the product to the rest.
// a: [m, k] u8   b: [n, k] u8   scale_a, scale_b: [1] f32   bias: [n] f32 or c's dtype   c: [m, n] float
struct Fp8Matmul {
  static constexpr const char* name = "fp8_matmul";
  View a, b, scale_a, scale_b, bias, c;
  bool acc = false;
  int64_t flops() const { return 2 * c.elements() * a.columns(); }
  template <class F>
  void views(F f) {
    f("a", a, Access::read), f("b", b, Access::read), f("scale_a", scale_a, Access::read);
    f("scale_b", scale_b, Access::read), f("bias", bias, Access::read);
    f("c", c, acc ? Access::update : Access::write);
  }
};

// c (+)= op(a) op(b), as Matmul has it, of matrices of a, b and c for every index of `batch`: many products as one.
// a, b, c: [..., rows, columns] of one float dtype   batch: a shape (no memory)   of_a, of_b, of_c: which matrices, counted
// in them, so that a stride of 0 takes one for all. No two indices share a matrix of c; others stay as they are.
struct BatchedMatmul {
  static constexpr const char* name = "batched_matmul";
  View a, b, c, batch;
  Strides of_a, of_b, of_c;
  bool trans_a = false, trans_b = false, acc = false;
  int64_t flops() const {
    const int64_t k = a.rank < 2 ? 0 : a.shape[a.rank - (trans_a ? 2 : 1)];
    return c.rank < 2 ? 0 : 2 * batch.elements() * c.shape[c.rank - 2] * c.columns() * k;
  }
  bool fills() const { return c.rank < 2 || batch.elements() * c.shape[c.rank - 2] * c.columns() == c.elements(); }
  template <class F>
  void views(F f) {
    f("a", a, Access::read), f("b", b, Access::read), f("c", c, acc || !fills() ? Access::update : Access::write);
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

// The products of experts: rows first[e] .. first[e + 1] of x meet matrix e of w.
//   y[r, :] (+)= x[r, :] op(w[e]) + [bias[e, :]]      rows past first[experts] give 0, with acc nothing
// x: [rows, k] float   w: [experts, n, k], with `tall` [experts, k, n], of x's dtype or a stored one as in Matmul
// bias: [experts, n] f32 or x's dtype   first: [experts + 1] i32 ascending from 0   y: [rows, n] f32 or x's dtype
// apart, not tall: for inference, the bits of a row of y depend on that row of x alone, rounded as by RowLinear.
struct GroupedMatmul {
  static constexpr const char* name = "grouped_matmul";
  View x, w, bias, first, y;
  bool tall = false, apart = false, acc = false;
  int64_t flops() const { return 2 * y.elements() * x.columns(); }
  template <class F>
  void views(F f) {
    f("x", x, Access::read), f("w", w, Access::read), f("bias", bias, Access::read), f("first", first, Access::read);
    f("y", y, acc ? Access::update : Access::write);
  }
};

// [dw[e]] (+)= dy_e^T x_e of each expert's rows;  [dbias[e]] (+)= sum of dy_e     An expert without rows has 0.
// dy: [rows, n]   x: [rows, k]   first: [experts + 1] i32   dw: [experts, n, k] f32   dbias: [experts, n] f32
struct GroupedMatmulGrad {
  static constexpr const char* name = "grouped_matmul_grad";
  View dy, x, first, dw, dbias;
  bool acc = false;
  int64_t flops() const { return 2 * dy.elements() * x.columns(); }
  template <class F>
  void views(F f) {
    f("dy", dy, Access::read), f("x", x, Access::read), f("first", first, Access::read);
    f("dw", dw, acc ? Access::update : Access::write), f("dbias", dbias, acc ? Access::update : Access::write);
  }
};

// Which experts a token goes to: of each row of scores + [bias] the k largest, equal ones by number, the largest first.
//   choice[t, j]: the expert   order: the places t * k + j of choice, sorted by expert, then by place
//   first[e] .. first[e + 1]: the part of `order` that is expert e's   place[t, j]: where t * k + j is in `order`
// scores: [tokens, experts] f32   bias: [experts] f32   choice, place: [tokens, k] i32   order: [tokens * k] i32
// first: [experts + 1] i32. What is not a number counts as the least.
struct Route {
  static constexpr const char* name = "route";
  View scores, bias, choice, order, first, place;
  template <class F>
  void views(F f) {
    f("scores", scores, Access::read), f("bias", bias, Access::read), f("choice", choice, Access::write);
    f("order", order, Access::write), f("first", first, Access::write), f("place", place, Access::write);
  }
};

// The rows of tokens to their experts' rows:  y[place[t, j], :] = [weight[t, j]] * x[t, :]
// and, for the gradient of Combine's weights,  [dot[t, j]] = <x[t, :], rows[place[t, j], :]>
// x: [tokens, n] float   place: [tokens, k] i32, each of 0 .. tokens * k - 1 once, else Error("value") or rows that are
// not written   weight, dot: [tokens, k] f32   y, rows: [tokens * k, n] of x's dtype   rows and dot: both or neither
struct Dispatch {
  static constexpr const char* name = "dispatch";
  View x, place, weight, y, rows, dot;
  int64_t flops() const { return ((weight ? 1 : 0) + (dot ? 2 : 0)) * y.elements(); }
  template <class F>
  void views(F f) {
    f("x", x, Access::read), f("place", place, Access::read), f("weight", weight, Access::read);
    f("y", y, Access::write), f("rows", rows, Access::read), f("dot", dot, Access::write);
  }
};

// The experts' rows back to their tokens:  y[t, :] = sum_j [weight[t, j]] * x[place[t, j], :], in f32, in order of j
// x: [tokens * k, n] float   y: [tokens, n] of x's dtype   place, weight: as of Dispatch, whose adjoint it is
struct Combine {
  static constexpr const char* name = "combine";
  View x, place, weight, y;
  int64_t flops() const { return (weight ? 2 : 1) * x.elements(); }
  template <class F>
  void views(F f) {
    f("x", x, Access::read), f("place", place, Access::read), f("weight", weight, Access::read);
    f("y", y, Access::write);
  }
};

// clang-format off
#define QENG_LINEAR_OPERATIONS(OP) \
  OP(Matmul) OP(MatmulSum) OP(LoraDown) OP(LoraDownGrad) OP(LoraUpGrad) OP(Fp8Round) OP(Fp8Matmul) \
  OP(BatchedMatmul) OP(BiasGrad) OP(RowLinear) OP(Hadamard) OP(GroupedMatmul) OP(GroupedMatmulGrad) OP(Route) OP(Dispatch) OP(Combine)
// clang-format on

}  // namespace qeng
