#include "kernels/check_shapes.h"

#include <cstdlib>

#include "kernels/check.h"
#include "kernels/lm_head.h"

namespace qeng {

void check_shapes(const Matmul& op) {
  const Check check{op.name};
  check.is_float("a", op.a);
  check.is_weight("b", op.b, op.a.dtype);
  check.dtype("c", op.c, {op.a.dtype, DType::f32});
  const auto [m, n, k] = sizes_of(op);
  const int64_t depth = op.trans_b ? op.b.columns() : op.b.rows();
  const auto sides = [&] {
    return "a is " + shape_text(op.a) + (op.trans_a ? " transposed" : "") + ", b is " + shape_text(op.b) +
           (op.trans_b ? " transposed" : "");
  };
  check.that(k == depth, [&] {
    return sides() + ": inner dimensions differ, " + std::to_string(k) + " and " + std::to_string(depth);
  });
  check.that(op.c.rows() == m && op.c.columns() == n, [&] {
    return "c is " + shape_text(op.c) + ", expected [" + std::to_string(m) + ", " + std::to_string(n) + "]; " + sides();
  });
  if (op.bias) {
    check.dtype("bias", op.bias, {op.a.dtype, DType::f32});
    check.count("bias", op.bias, op.bias.dtype, n);
  }
  check.that(m == 0 || n == 0 || k > 0, [&] { return sides() + ": the inner dimension is 0"; });
}

void check_shapes(const RowLinear& op) {
  const Check check{op.name};
  check.is_float("x", op.x);
  check.that(!op.w.empty() && op.y.size() == op.w.size() && (op.bias.empty() || op.bias.size() == op.w.size()) &&
                 (op.scale.empty() || op.scale.size() == op.w.size()),
             [&] {
               return std::to_string(op.w.size()) + " weights, " + std::to_string(op.scale.size()) + " scales, " +
                      std::to_string(op.bias.size()) + " biases and " + std::to_string(op.y.size()) +
                      " outputs; expected as many outputs as weights, and as many scales and biases or none";
             });
  for (size_t i = 0; i < op.w.size(); ++i) {
    check.is_stored("w", op.w[i]);
    check.that(op.w[i].rank == 2 && op.w[i].columns() == op.x.columns(), [&] {
      return "w is " + shape_text(op.w[i]) + ", x is " + shape_text(op.x) + "; w has to be [n, " +
             std::to_string(op.x.columns()) + "]";
    });
    check.dtype("y", op.y[i], {op.x.dtype, DType::f32});
    check.count("y", op.y[i], op.y[i].dtype, op.x.rows() * op.w[i].shape[0]);
    if (!op.scale.empty() && op.scale[i]) check.is("scale", op.scale[i], DType::f32, {op.w[i].shape[0]});
    if (!op.bias.empty() && op.bias[i]) {
      check.dtype("bias", op.bias[i], {op.x.dtype, DType::f32});
      check.count("bias", op.bias[i], op.bias[i].dtype, op.w[i].shape[0]);
    }
  }
}

namespace {

void check_places(const Check& check, const char* label, const View& view, const View& space, const Strides& places) {
  int64_t least = places.first, most = places.first;
  for (int d = 0; d < space.rank; ++d) (places.stride[d] < 0 ? least : most) += (space.shape[d] - 1) * places.stride[d];
  check.that(space.elements() == 0 || (least >= 0 && most < view.elements()), [&] {
    return std::string(label) + " is " + shape_text(view) + "; elements " + std::to_string(least) + " to " +
           std::to_string(most) + " are outside";
  });
}

// [outer, count, inner] of a gather; index: of some of them.
void check_index(const Check& check, const View& whole, const View& some, const View& index, const char* whole_label,
                 const char* some_label) {
  check.dtype("index", index, {DType::i32});
  const auto fits = [](int64_t size, int64_t its) { return size == its || size == 1; };
  check.that(whole.rank == 3 && some.rank == 3 && index.rank == 3 && whole.shape[0] == some.shape[0] &&
                 whole.shape[2] == some.shape[2] && fits(index.shape[0], some.shape[0]) &&
                 index.shape[1] == some.shape[1] && fits(index.shape[2], some.shape[2]),
             [&] {
               return std::string(whole_label) + " is " + shape_text(whole) + ", " + some_label + " is " +
                      shape_text(some) + ", index is " + shape_text(index) +
                      "; expected [outer, n, inner], [outer, m, "
                      "inner] and [outer or 1, m, inner or 1]";
             });
}

}  // namespace

void check_shapes(const Rearrange& op) {
  const Check check{op.name};
  if (op.acc)
    check.dtype("x", op.x, {DType::f32, DType::bf16, DType::f16});
  else
    check.dtype("x", op.x, {DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8});
  check.dtype("y", op.y, {op.x.dtype});
  check_places(check, "x", op.x, op.space, op.from);
  check_places(check, "y", op.y, op.space, op.to);
  // In order of their size each stride leads over all that the ones before it span.
  bool seen[kMaxRank] = {};
  int64_t span = 0;
  for (int n = 0; n < op.space.rank; ++n) {
    int least = -1;
    for (int d = 0; d < op.space.rank; ++d)
      if (!seen[d] && (least < 0 || std::abs(op.to.stride[d]) < std::abs(op.to.stride[least]))) least = d;
    seen[least] = true;
    if (op.space.shape[least] <= 1) continue;
    check.that(op.space.elements() == 0 || std::abs(op.to.stride[least]) > span,
               [&] { return "places in y are not apart from each other, in " + shape_text(op.y); });
    span += (op.space.shape[least] - 1) * std::abs(op.to.stride[least]);
  }
}

void check_shapes(const Gather& op) {
  const Check check{op.name};
  check.dtype("x", op.x, {DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8});
  check.dtype("y", op.y, {op.x.dtype});
  check_index(check, op.x, op.y, op.index, "x", "y");
}

void check_shapes(const ScatterAdd& op) {
  const Check check{op.name};
  check.dtype("x", op.x, {DType::f32, DType::bf16, DType::f16});
  check.dtype("y", op.y, {DType::f32});
  check_index(check, op.y, op.x, op.index, "y", "x");
}

void check_shapes(const Sort& op) {
  const Check check{op.name};
  check.dtype("x", op.x, {DType::f32, DType::bf16, DType::f16, DType::i32});
  check.dtype("y", op.y, {op.x.dtype});
  check.dtype("index", op.index, {DType::i32});
  check.that(op.x.rank == 2 && op.y.rank == 2 && op.y.same_shape(op.index) && op.y.shape[0] == op.x.shape[0] &&
                 op.y.shape[1] <= op.x.shape[1],
             [&] {
               return "x is " + shape_text(op.x) + ", y is " + shape_text(op.y) + ", index is " + shape_text(op.index) +
                      "; expected [rows, n] and twice [rows, k], k at most n";
             });
}

void check_shapes(const CumulativeSum& op) {
  const Check check{op.name};
  check.dtype("x", op.x, {DType::f32, DType::bf16, DType::f16});
  check.that(op.x.rank == 2, [&] { return "x is " + shape_text(op.x) + ", expected [rows, n]"; });
  check.like("y", op.y, "x", op.x);
}

void check_shapes(const Hadamard& op) {
  const Check check{op.name};
  check.is_float("x", op.x);
  check.like("y", op.y, "x", op.x);
  if (op.signs) check.is("signs", op.signs, DType::f32, {op.x.columns()});
  check.that(op.block > 0 && (op.block & (op.block - 1)) == 0 && op.x.columns() % op.block == 0, [&] {
    return "block is " + std::to_string(op.block) + ", x is " + shape_text(op.x) +
           "; expected a power of two that divides the columns";
  });
}

namespace {

void check_pool(const Check& check, const char* label, const View& pool) {
  check.dtype(label, pool, {DType::f32, DType::bf16, DType::f16, DType::q8_0});
  check.is_stored(label, pool);
  check.that(pool.rank == 3,
             [&] { return std::string(label) + " is " + shape_text(pool) + ", expected [slots, kv_heads, head_dim]"; });
}
void check_pages(const Check& check, const View& pool, int page_tokens) {
  check.that(page_tokens > 0 && pool.shape[0] % page_tokens == 0, [&] {
    return "pool is " + shape_text(pool) + ", which is not whole pages of " + std::to_string(page_tokens) + " tokens";
  });
}

}  // namespace

void check_shapes(const KvStore& op) {
  const Check check{op.name};
  check.is_float("k", op.k);
  check.like("v", op.v, "k", op.k);
  check_pool(check, "k_pool", op.k_pool);
  check_pool(check, "v_pool", op.v_pool);
  check.that(op.k.rank == 3 && op.k.shape[1] == op.k_pool.shape[1] && op.k.shape[2] == op.k_pool.shape[2] &&
                 op.v_pool.same_shape(op.k_pool),
             [&] {
               return "k is " + shape_text(op.k) + ", k_pool is " + shape_text(op.k_pool) + ", v_pool is " +
                      shape_text(op.v_pool) + "; heads and head_dim have to agree";
             });
  check.count("slots", op.slots, DType::i32, op.k.shape[0]);
}

void check_shapes(const CopyPages& op) {
  const Check check{op.name};
  check_pool(check, "pool", op.pool);
  check_pages(check, op.pool, op.page_tokens);
  check.dtype("pairs", op.pairs, {DType::i32});
  check.that(op.pairs.rank == 2 && op.pairs.shape[1] == 2,
             [&] { return "pairs is " + shape_text(op.pairs) + ", expected [n, 2]"; });
}

void check_shapes(const PagedAttention& op) {
  const Check check{op.name};
  check.is_float("q", op.q);
  check.like("o", op.o, "q", op.q);
  check_pool(check, "k_pool", op.k_pool);
  check_pool(check, "v_pool", op.v_pool);
  check_pages(check, op.k_pool, op.page_tokens);
  check.that(op.q.rank == 3 && op.q.shape[2] == op.k_pool.shape[2] && op.k_pool.shape[1] > 0 &&
                 op.q.shape[1] % op.k_pool.shape[1] == 0 && op.v_pool.same_shape(op.k_pool),
             [&] {
               return "q is " + shape_text(op.q) + ", k_pool is " + shape_text(op.k_pool) + ", v_pool is " +
                      shape_text(op.v_pool) + "; head_dim has to agree, and the heads be a multiple of the kv heads";
             });
  check.dtype("cu_q", op.cu_q, {DType::i32});
  const int64_t sequences = op.cu_q.elements() - 1;
  check.that(sequences >= 0, "cu_q is empty, expected [sequences + 1]");
  check.count("lengths", op.lengths, DType::i32, sequences);
  check.dtype("pages", op.pages, {DType::i32});
  check.that(op.pages.rank == 2 && op.pages.shape[0] == sequences, [&] {
    return "pages is " + shape_text(op.pages) + ", expected [" + std::to_string(sequences) + ", most]";
  });
}

void check_shapes(const BiasGrad& op) {
  const Check check{op.name};
  check.is_float("dy", op.dy);
  check.is("db", op.db, DType::f32, {op.dy.columns()});
}

void check_shapes(const Embedding& op) {
  const Check check{op.name};
  check.dtype("tokens", op.tokens, {DType::i32});
  check.is_stored("table", op.table);
  check.that(op.table.rank == 2, [&] { return "table is " + shape_text(op.table) + ", expected [vocab, hidden]"; });
  if (op.table.dtype == DType::f32)
    check.dtype("y", op.y, {op.table.dtype});
  else
    check.is_float("y", op.y);
  check.count("y", op.y, op.y.dtype, op.tokens.elements() * op.table.columns());
}

void check_shapes(const EmbeddingGrad& op) {
  const Check check{op.name};
  check.dtype("tokens", op.tokens, {DType::i32});
  check.dtype("dtable", op.dtable, {DType::f32});
  check.that(op.dtable.rank == 2, [&] { return "dtable is " + shape_text(op.dtable) + ", expected [vocab, hidden]"; });
  check.is_float("dy", op.dy);
  check.count("dy", op.dy, op.dy.dtype, op.tokens.elements() * op.dtable.columns());
}

void check_shapes(const RmsNorm& op) {
  const Check check{op.name};
  check.is_float("x", op.x);
  check.is("w", op.w, op.x.dtype, {op.x.columns()});
  check.like("y", op.y, "x", op.x);
  check.count("rstd", op.rstd, DType::f32, op.x.rows());
}

void check_shapes(const AddRmsNorm& op) {
  const Check check{op.name};
  check.is_float("a", op.a);
  check.like("b", op.b, "a", op.a);
  check.is("w", op.w, op.a.dtype, {op.a.columns()});
  check.like("sum", op.sum, "a", op.a);
  check.like("y", op.y, "a", op.a);
  check.count("rstd", op.rstd, DType::f32, op.a.rows());
}

void check_shapes(const RmsNormGrad& op) {
  const Check check{op.name};
  check.is_float("x", op.x);
  const int64_t dim = op.x.columns();
  check.is("w", op.w, op.x.dtype, {dim});
  check.count("rstd", op.rstd, DType::f32, op.x.rows());
  check.like("dy", op.dy, "x", op.x);
  if (op.dresidual) check.like("dresidual", op.dresidual, "x", op.x);
  check.like("dx", op.dx, "x", op.x);
  if (op.dw) check.is("dw", op.dw, DType::f32, {dim});
}

void check_shapes(const SwiGlu& op) {
  const Check check{op.name};
  check.is_float("gate", op.gate);
  check.like("up", op.up, "gate", op.gate);
  check.like("y", op.y, "gate", op.gate);
}

void check_shapes(const SwiGluGrad& op) {
  const Check check{op.name};
  check.is_float("gate", op.gate);
  check.like("up", op.up, "gate", op.gate);
  check.like("dy", op.dy, "gate", op.gate);
  check.like("dgate", op.dgate, "gate", op.gate);
  check.like("dup", op.dup, "gate", op.gate);
}

void check_shapes(const Add& op) {
  const Check check{op.name};
  check.is_float("a", op.a);
  check.like("b", op.b, "a", op.a);
  check.like("y", op.y, "a", op.a);
}

void check_shapes(const Scale& op) {
  const Check check{op.name};
  check.dtype("x", op.x, {DType::f32, DType::bf16, DType::f16});
  check.dtype("y", op.y, {DType::f32, DType::bf16, DType::f16});
  check.like("y", op.y, "x", op.x, false);
}

void check_shapes(const Cast& op) {
  const Check check{op.name};
  check.is_stored("x", op.x);
  check.dtype("y", op.y, {DType::f32, DType::bf16, DType::f16});
  check.count("y", op.y, op.y.dtype, op.x.elements());
}

void check_shapes(const Copy& op) {
  const Check check{op.name};
  check.present("x", op.x);
  check.count("y", op.y, op.x.dtype, op.x.elements());
}

void check_shapes(const Fill& op) {
  Check{op.name}.present_in_any_order("y", op.y);
  if (is_block(op.y.dtype) && op.value != 0)
    fail("value", op.name, ": y is ", shape_text(op.y), ", which can be filled with 0 only, not ", op.value);
}

void check_shapes(const Dropout& op) {
  const Check check{op.name};
  check.is_float("x", op.x);
  check.like("y", op.y, "x", op.x);
  check.is("rng", op.rng, DType::i64, {2});
  if (!(op.p >= 0 && op.p < 1)) fail("value", op.name, ": p is ", op.p, ", expected 0 <= p < 1");
}

void check_shapes(const EmbeddingNoise& op) {
  const Check check{op.name};
  check.is_float("x", op.x);
  check.that(op.x.rank == 2, [&] { return "x is " + shape_text(op.x) + ", expected [tokens, n]"; });
  check.like("y", op.y, "x", op.x);
  check.dtype("cu", op.cu, {DType::i32});
  check.that(op.cu.rank == 1, [&] { return "cu is " + shape_text(op.cu) + ", expected [documents + 1]"; });
  check.is("rng", op.rng, DType::i64, {2});
  if (!(op.strength >= 0)) fail("value", op.name, ": strength is ", op.strength, ", expected 0 or more");
}

void check_shapes(const DoraScale& op) {
  const Check check{op.name};
  check.is_float("b", op.b);
  check.that(op.b.rank == 2, [&] { return "b is " + shape_text(op.b) + ", expected [out, rank]"; });
  const int64_t out = op.b.shape[0];
  check.is("cross", op.cross, DType::f32, {op.b.shape[1], out});
  check.is("squares", op.squares, DType::f32, {out});
  check.is("magnitude", op.magnitude, DType::f32, {out});
  check.is("inverse", op.inverse, DType::f32, {out});
  check.is("scale", op.scale, DType::f32, {out});
}

void check_shapes(const Rope& op) {
  const Check check{op.name};
  check.is_float("x", op.x);
  check.that(op.x.rank == 3, [&] { return "x is " + shape_text(op.x) + ", expected [tokens, heads, head_dim]"; });
  check.like("y", op.y, "x", op.x);
  const int64_t tokens = op.x.shape[0], dim = op.x.shape[2];
  check.is("positions", op.positions, DType::i32, {tokens});
  check.dtype("inv_freq", op.inv_freq, {DType::f32});
  check.that(op.inv_freq.rank == 1 && 2 * op.inv_freq.elements() <= dim, [&] {
    return "inv_freq is " + shape_text(op.inv_freq) + ", expected [rotary/2] of a head_dim of " + std::to_string(dim);
  });
  if (!op.x2 && !op.y2) return;
  check.is("x2", op.x2, op.x.dtype, {tokens, op.x2.rank == 3 ? op.x2.shape[1] : 0, dim});
  check.like("y2", op.y2, "x2", op.x2);
}

namespace {

template <class AnyAttention>
void check_operands(const Check& check, const AnyAttention& op) {
  check.is_float("q", op.q);
  check.that(op.q.rank == 3, [&] { return "q is " + shape_text(op.q) + ", expected [tokens, heads, head_dim]"; });
  check.present("k", op.k);
  check.that(op.k.rank == 3, [&] { return "k is " + shape_text(op.k) + ", expected [tokens, kv_heads, head_dim]"; });
  const int64_t heads = op.q.shape[1], kv_heads = op.k.shape[1], dim = op.q.shape[2];
  check.is("k", op.k, op.q.dtype, {op.k.shape[0], kv_heads, dim});
  check.like("v", op.v, "k", op.k);
  check.that(dim > 0 && kv_heads > 0 && heads > 0 && heads % kv_heads == 0, [&] {
    return "q is " + shape_text(op.q) + ", k is " + shape_text(op.k) + ": heads must be a multiple of kv_heads";
  });
  check.dtype("cu_q", op.cu_q, {DType::i32});
  check.that(op.cu_q.rank == 1 && op.cu_q.elements() > 0,
             [&] { return "cu_q is " + shape_text(op.cu_q) + ", expected [documents + 1]"; });
  check.is("cu_k", op.cu_k, DType::i32, {op.cu_q.elements()});
  check.like("o", op.o, "q", op.q);
  check.is("lse", op.lse, DType::f32, {heads, op.q.shape[0]});
  check.that(op.window >= 0, [&] { return "window is " + std::to_string(op.window) + ", expected 0 (none) or more"; });
}

}  // namespace

void check_shapes(const Attention& op) { check_operands(Check{op.name}, op); }

void check_shapes(const AttentionGrad& op) {
  const Check check{op.name};
  check_operands(check, op);
  check.like("dout", op.dout, "q", op.q);
  check.is("delta", op.delta, DType::f32, {op.q.shape[1], op.q.shape[0]});
  check.like("dq", op.dq, "q", op.q);
  check.like("dk", op.dk, "k", op.k);
  check.like("dv", op.dv, "k", op.k);
}

void check_shapes(const LmHeadLoss& op) {
  const Check check{op.name};
  check.is_float("h", op.h);
  check.that(op.h.rank == 2, [&] { return "h is " + shape_text(op.h) + ", expected [tokens, hidden]"; });
  check.that(op.w.rank == 2, [&] { return "w is " + shape_text(op.w) + ", expected [vocab, hidden]"; });
  const DType dtype = op.h.dtype;
  const int64_t tokens = op.h.rows(), hidden = op.h.columns(), vocab = op.w.rows();
  const bool stored = op.w.dtype != dtype;
  check.is_weight("w", op.w, dtype);
  check.that(op.w.columns() == hidden,
             [&] { return "w is " + shape_text(op.w) + ", h is " + shape_text(op.h) + "; their columns differ"; });
  if (stored && op.dw)
    fail("dtype", op.name, ": w is ", shape_text(op.w), ", which is only read, and dw was asked for");
  check.count("targets", op.targets, DType::i32, tokens);
  check.is("loss_scale", op.loss_scale, DType::f32, {1});
  check.count("nll", op.nll, DType::f32, tokens);
  check.is("loss", op.loss, DType::f32, {1});
  if (op.dh) check.like("dh", op.dh, "h", op.h);
  if (op.dw) check.is("dw", op.dw, DType::f32, {vocab, hidden});
  if (op.dw && !op.dh) fail("value", op.name, ": dw without dh: gradients are computed where dh is given");
  if (op.chunk < 1) fail("value", op.name, ": chunk is ", op.chunk, ", expected at least 1");
  check.dtype("workspace", op.workspace, {DType::u8});
  const int64_t needed = lm_head_workspace(tokens, hidden, vocab, op.chunk, dtype);
  check.that(op.workspace.elements() >= needed, [&] {
    return "workspace is " + shape_text(op.workspace) + ", expected at least " + std::to_string(needed) + " bytes";
  });
}

int64_t lm_head_workspace(int64_t tokens, int64_t hidden, int64_t vocab, int chunk, DType dtype) {
  return LmHeadParts(tokens, hidden, vocab, chunk, dtype).bytes();
}

void check_shapes(const DecodePackets& op) {
  const Check check{op.name};
  check.dtype("frames", op.frames, {DType::u8});
  check.dtype("pieces", op.pieces, {DType::i64});
  check.that(op.pieces.rank == 2 && op.pieces.shape[1] == 6,
             [&] { return "pieces is " + shape_text(op.pieces) + ", expected [n, 6]"; });
  check.dtype("tokens", op.tokens, {DType::i32});
  check.count("targets", op.targets, DType::i32, op.tokens.elements());
  check.count("positions", op.positions, DType::i32, op.tokens.elements());
}

void check_shapes(const SumSquares& op) {
  const Check check{op.name};
  for (const View& x : op.x) check.dtype("x", x, {DType::f32});
  check.is("out", op.out, DType::f32, {static_cast<int64_t>(op.x.size())});
}

void check_shapes(const ClipScale& op) {
  const Check check{op.name};
  check.dtype("partials", op.partials, {DType::f32});
  check.is("out", op.out, DType::f32, {3});
}

void check_shapes(const AdamW& op) {
  const Check check{op.name};
  const size_t count = op.w.size();
  check.that(op.grad.size() == count && op.m.size() == count && op.v.size() == count &&
                 (op.model.empty() || op.model.size() == count),
             [&] {
               return "the lists differ in length: w " + std::to_string(count) + ", grad " +
                      std::to_string(op.grad.size()) + ", m " + std::to_string(op.m.size()) + ", v " +
                      std::to_string(op.v.size()) + ", model " + std::to_string(op.model.size());
             });
  for (size_t i = 0; i < count; ++i) {
    const int64_t n = op.w[i].elements();
    check.dtype("w", op.w[i], {DType::f32});
    check.count("grad", op.grad[i], DType::f32, n);
    check.count("m", op.m[i], DType::f32, n);
    check.count("v", op.v[i], DType::f32, n);
    if (!op.model.empty() && op.model[i]) check.count("model", op.model[i], DType::bf16, n);
  }
  check.is("hyper", op.hyper, DType::f32, {2});
  check.is("clip", op.clip, DType::f32, {3});
}

void check_shapes(const ScaleColumns& op) {
  const Check check{op.name};
  check.is_float("x", op.x);
  check.like("y", op.y, "x", op.x);
  check.is("scale", op.scale, DType::f32, {op.x.columns()});
  if (!op.bias) return;
  check.dtype("bias", op.bias, {op.x.dtype, DType::f32});
  check.count("bias", op.bias, op.bias.dtype, op.x.columns());
}

void check_shapes(const ScaleColumnsGrad& op) {
  const Check check{op.name};
  check.is_float("x", op.x);
  check.like("dy", op.dy, "x", op.x);
  check.like("dx", op.dx, "x", op.x);
  check.is("scale", op.scale, DType::f32, {op.x.columns()});
  if (op.dscale) check.is("dscale", op.dscale, DType::f32, {op.x.columns()});
}

void check_shapes(const PulseGrad& op) {
  const Check check{op.name};
  check.is_float("dy", op.dy);
  check.dtype("x", op.x, {op.dy.dtype});
  check.that(op.x.rows() == op.dy.rows(),
             [&] { return "x is " + shape_text(op.x) + ", dy is " + shape_text(op.dy) + "; their rows differ"; });
  check.dtype("pulses", op.pulses, {DType::ternary, DType::u8});
  check.that(op.pulses.rank == 2 && op.pulses.shape[1] == op.x.columns() && op.x.columns() % 32 == 0, [&] {
    return "pulses is " + shape_text(op.pulses) + ", x is " + shape_text(op.x) +
           "; pulses has to be [n, columns of x], a multiple of 32";
  });
  check.is("weights", op.weights, DType::one_bit, {op.pulses.shape[0], op.x.columns()});
  check.that(op.first >= 0 && op.first + op.pulses.shape[0] <= op.dy.columns(), [&] {
    return "pulses is " + shape_text(op.pulses) + " from row " + std::to_string(op.first) + " on, dy is " +
           shape_text(op.dy);
  });
  check.is("hyper", op.hyper, DType::f32, {4});
  check.is("rng", op.rng, DType::i64, {2});
}

void check_shapes(const Inertia& op) {
  const Check check{op.name};
  check.dtype("weights", op.weights, {DType::one_bit});
  check.that(op.weights.rank == 2 && op.weights.columns() % 32 == 0,
             [&] { return "weights is " + shape_text(op.weights) + ", expected [n, k] with k a multiple of 32"; });
  check.dtype("state", op.state, {DType::one_bit, DType::u8});
  const int64_t n = op.weights.shape[0], k = op.weights.shape[1];
  const bool planes = op.state.dtype == DType::one_bit;
  check.is("pulses", op.pulses, planes ? DType::ternary : DType::u8, {n, k});
  if (planes) {
    const int64_t count = op.state.rank == 3 ? op.state.shape[0] : 0;
    check.that(count >= 1 && count <= 4 && op.state.shape[1] == n && op.state.shape[2] == k && !op.bop, [&] {
      return "state is " + shape_text(op.state) + ", weights is " + shape_text(op.weights) +
             "; expected 1 to 4 bit planes of that shape, or u8 of it; momenta are u8";
    });
  } else {
    check.is("state", op.state, DType::u8, {n, k});
  }
  check.is("counts", op.counts, DType::i64, {2});
  check.is("hyper", op.hyper, DType::f32, {4});
  check.is("rng", op.rng, DType::i64, {2});
}

void check_shapes(const CountLevels& op) {
  const Check check{op.name};
  check.dtype("state", op.state, {DType::one_bit, DType::u8});
  const bool planes = op.state.dtype == DType::one_bit;
  check.that(
      planes ? op.state.rank == 3 && op.state.shape[0] >= 1 && op.state.shape[0] <= 4 && op.state.columns() % 32 == 0
             : op.state.rank == 2,
      [&] {
        return "state is " + shape_text(op.state) +
               ", expected one_bit [1 to 4 planes, n, k] with k a multiple of 32, or u8 [n, k]";
      });
  check.is("counts", op.counts, DType::i64, {16});
}

void check_shapes(const PackSigns& op) {
  const Check check{op.name};
  check.dtype("x", op.x, {DType::f32});
  check.dtype("y", op.y, {DType::one_bit});
  check.like("y", op.y, "x", op.x, false);
  check.that(op.x.columns() % 32 == 0,
             [&] { return "x is " + shape_text(op.x) + ", expected rows of a multiple of 32"; });
}

void check_shapes(const ClipToGrid& op) {
  const Check check{op.name};
  check.dtype("x", op.x, {DType::f32});
  check.like("y", op.y, "x", op.x);
  check.is("rng", op.rng, DType::i64, {2});
  if (op.levels < 0 || op.levels > 127)
    fail("value", op.name, ": levels is ", op.levels, ", expected 0 (clip only) to 127");
}

}  // namespace qeng
