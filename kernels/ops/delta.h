// Operations: the gated delta rule. Conventions: kernels/ops.h.
#pragma once
#include "kernels/ops/access.h"

namespace qeng {

// Rows of a chunk: as many as the products within it cost less than those with the state, of 128 by 128 numbers.
constexpr int64_t kDeltaChunk = 64;

// The sizes of a delta rule. A value head h has a state [key_dim, value_dim] and reads key head
// h / (value_heads / key_heads). Both dims are multiples of 16, at most 256.
struct DeltaShape {
  int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  int64_t group() const { return value_heads / key_heads; }
  int64_t columns() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
  // Floats of a page's state, and of the rows of a chunk: for each key head its keys [key_dim, kDeltaChunk], and of the
  // value heads that read it what each row adds [group, kDeltaChunk, value_dim] and the sums of g [group, kDeltaChunk].
  int64_t state() const { return value_heads * key_dim * value_dim; }
  int64_t rows() const { return kDeltaChunk * (key_heads * key_dim + value_heads * (value_dim + 1)); }
};

// The gated delta rule over packed documents (Yang, Kautz & Hatamizadeh 2024, arXiv 2412.06464). From S = 0 before a
// document's first row, each row of a value head gives
//   S <- exp(g) S;   d = beta (v - S^T k);   S <- S + k d^T;   o = S^T q
//   k = k' / sqrt(|k'|^2 + eps),  q = q' / sqrt((|q'|^2 + eps) key_dim)    of its q', k' and v in x
// It is computed in chunks of rows from the document's first (section 3.3 there): with the state as a chunk began, each
// row's d comes from those before it in the chunk, by a triangular system. So a row's bits depend neither on the other
// documents nor, in inference, on how many rows come at a time.
// x: [tokens, q' of each key head | k' of each | v of each value head] float   g: [tokens, value_heads] f32, at most 0
// beta: [tokens, value_heads] f32   cu: [documents + 1] i32 ascending from 0; rows past cu[last] give 0
// o: [tokens, value_heads * value_dim] like x
//
// In inference `lengths` [documents] i32 says how many rows a sequence has with these, and what it keeps lies in the
// pages of its row of `pages` [documents, most] i32, each of page_tokens rows, a multiple of kDeltaChunk:
//   state: [n, shape.state()] f32, S as the chunk began in which the page's last row so far is
//   rows: [n, shape.rows()] f32, the rows of that chunk so far
// A page outside the n that is needed is Error("value").
struct GatedDelta {
  static constexpr const char* name = "gated_delta";
  View x, g, beta, cu, o, state, rows, pages, lengths;
  DeltaShape shape;
  int64_t page_tokens = 0;
  float eps = 1e-6f;
  // Of each row and value head: products with the state (v, o and the chunk's end), and with half a chunk of rows.
  int64_t flops() const {
    const int64_t heads = g.elements(), half = kDeltaChunk / 2;  // of all rows
    return heads * (6 * shape.key_dim * shape.value_dim + 4 * half * shape.value_dim) +
           x.rows() * shape.key_heads * 4 * half * shape.key_dim;
  }
  template <class F>
  void views(F f) {
    f("x", x, Access::read), f("g", g, Access::read), f("beta", beta, Access::read), f("cu", cu, Access::read);
    f("state", state, Access::update), f("rows", rows, Access::update), f("pages", pages, Access::read);
    f("lengths", lengths, Access::read), f("o", o, Access::write);
  }
};

// Its gradient: dx, dg and dbeta of dout, each like what it is of, 0 past the last document. States are computed anew.
struct GatedDeltaGrad {
  static constexpr const char* name = "gated_delta_grad";
  View x, g, beta, cu, dout, dx, dg, dbeta;
  DeltaShape shape;
  float eps = 1e-6f;
  int64_t flops() const {  // the states anew, then twice the products of the forward pass
    const int64_t heads = g.elements(), half = kDeltaChunk / 2;
    return heads * (16 * shape.key_dim * shape.value_dim + 12 * half * shape.value_dim + 8 * half * shape.key_dim);
  }
  template <class F>
  void views(F f) {
    f("x", x, Access::read), f("g", g, Access::read), f("beta", beta, Access::read), f("cu", cu, Access::read);
    f("dout", dout, Access::read), f("dx", dx, Access::write), f("dg", dg, Access::write);
    f("dbeta", dbeta, Access::write);
  }
};

// clang-format off
#define QENG_DELTA_OPERATIONS(OP) OP(GatedDelta) OP(GatedDeltaGrad)
// clang-format on

}  // namespace qeng
