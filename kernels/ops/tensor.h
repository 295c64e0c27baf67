// Operations: elements and their places. Conventions: kernels/ops.h.
#pragma once
#include <vector>

#include "kernels/ops/access.h"
#include "kernels/pointwise.h"

namespace qeng {

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

;

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

// clang-format off
#define QENG_TENSOR_OPERATIONS(OP) OP(Pointwise) OP(Rearrange) OP(Gather) OP(ScatterAdd) OP(Sort) OP(CumulativeSum) \
  OP(Add) OP(Scale) OP(Cast) OP(Copy) OP(Fill) OP(Embedding) OP(EmbeddingGrad) OP(DecodePackets)
// clang-format on

}  // namespace qeng
