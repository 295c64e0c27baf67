#include "kernels/check.h"
#include "kernels/check_shapes.h"
#include "kernels/kv_pools.h"
#include "kernels/view_text.h"

namespace qeng {

namespace {

void check_pool(const Check& check, const char* label, const View& pool) {
  check.dtype(label, pool, {DType::f32, DType::bf16, DType::f16, DType::q8_0});
  check.is_stored(label, pool);
  check.that(pool.rank == 3,
             [&] { return std::string(label) + " is " + shape_text(pool) + ", expected [slots, kv_heads, head_dim]"; });
}
// A pool of heads of `dim`, of codes where there are levels.
void check_pool(const Check& check, const char* label, const View& pool, const View& levels, int64_t dim) {
  if (!levels) {
    check_pool(check, label, pool);
    return check.is(label, pool, pool.dtype, {pool.shape[0], pool.shape[1], dim});
  }
  check.dtype("levels", levels, {DType::f32});
  check.dtype(label, pool, {DType::u8});
  check.that(pool.rank == 3, [&] {
    return std::string(label) + " is " + shape_text(pool) + ", expected [slots / 16, kv_heads, bytes of a tile]";
  });
  const kv_codes::Shape codes = code_shape(pool, levels, dim);
  check.that(dim > 0 && dim % kv_codes::kRun == 0 && codes.bits >= 1 && codes.wide >= 0 && codes.wide <= dim &&
                 codes.bits + (codes.wide > 0) <= kv_codes::kMostBits &&
                 levels.elements() == (levels.elements() % 3 == 0 ? 3 : 1) << codes.bits &&
                 pool.shape[2] == kv_codes::tile_bytes(codes),
             [&] {
               return std::string(label) + " is " + shape_text(pool) + ", with levels " + shape_text(levels) +
                      " for heads of " + std::to_string(dim) +
                      ": expected heads of a multiple of 32 with codes of 1 to 4 bits, and tiles of their bytes";
             });
}
// Keys and values of one cache, whose rows may differ in length and in how they are stored.
void check_pools(const Check& check, const View& k_pool, const View& k_levels, int64_t head_dim, const View& v_pool,
                 const View& v_levels, int64_t value_dim) {
  check_pool(check, "k_pool", k_pool, k_levels, head_dim);
  check_pool(check, "v_pool", v_pool, v_levels, value_dim);
  check.that(pool_slots(k_pool, k_levels) == pool_slots(v_pool, v_levels) && k_pool.shape[1] == v_pool.shape[1], [&] {
    return "k_pool is " + shape_text(k_pool) + ", v_pool is " + shape_text(v_pool) +
           ": not of the same slots and heads";
  });
}
void check_pages(const Check& check, const View& pool, int64_t slots, int page_tokens) {
  check.that(page_tokens > 0 && slots % page_tokens == 0, [&] {
    return "pool is " + shape_text(pool) + ", which is not whole pages of " + std::to_string(page_tokens) + " tokens";
  });
}

// The pools of keys and values that are not coded, and their pages.
void check_exact(const Check& check, const PagedAttention& op) {
  check.that(op.exact_first >= 0 && op.exact_last >= 0, [&] {
    return "exact_first is " + std::to_string(op.exact_first) + ", exact_last " + std::to_string(op.exact_last) +
           ", expected 0 or more";
  });
  check.that(!op.exact || op.exact.same_shape(op.pages), [&] {
    return "exact is " + shape_text(op.exact) + ", expected the shape of pages, " + shape_text(op.pages);
  });
  if (op.exact) check.dtype("exact", op.exact, {DType::i32});
  int64_t slots = -1;
  const auto side = [&](const char* label, const View& pool, const View& levels, int64_t dim) {
    check.that(!pool == !(op.exact && levels),
               std::string(label) + " is given where there are both exact and levels, and nowhere else");
    if (!pool) return;
    check.dtype(label, pool, {DType::f32, DType::bf16, DType::f16});
    check.is(label, pool, pool.dtype, {slots < 0 ? pool.shape[0] : slots, op.k_pool.shape[1], dim});
    check_pages(check, pool, slots = pool.shape[0], op.page_tokens);
  };
  side("k_exact", op.k_exact, op.k_levels, op.q.shape[2]);
  side("v_exact", op.v_exact, op.v_levels, op.o.shape[2]);
}

// softcap and [sinks] of `heads` heads.
template <class AnyAttention>
void check_scores(const Check& check, const AnyAttention& op, int64_t heads) {
  if (!(op.softcap >= 0)) fail("value", op.name, ": softcap is ", op.softcap, ", expected 0 (none) or more");
  if (op.sinks) check.is("sinks", op.sinks, DType::f32, {heads});
}

template <class AnyAttention>
void check_operands(const Check& check, const AnyAttention& op) {
  check.is_float("q", op.q);
  check.that(op.q.rank == 3, [&] { return "q is " + shape_text(op.q) + ", expected [tokens, heads, head_dim]"; });
  check.present("k", op.k);
  check.that(op.k.rank == 3, [&] { return "k is " + shape_text(op.k) + ", expected [tokens, kv_heads, head_dim]"; });
  const int64_t heads = op.q.shape[1], kv_heads = op.k.shape[1], dim = op.q.shape[2];
  check.is("k", op.k, op.q.dtype, {op.k.shape[0], kv_heads, dim});
  check.that(dim > 0 && kv_heads > 0 && heads > 0 && heads % kv_heads == 0, [&] {
    return "q is " + shape_text(op.q) + ", k is " + shape_text(op.k) + ": heads must be a multiple of kv_heads";
  });
  const int64_t value_dim = op.v.rank == 3 ? op.v.shape[2] : dim;
  check.is("v", op.v, op.q.dtype, {op.k.shape[0], kv_heads, value_dim});
  check.that(value_dim > 0, [&] { return "v is " + shape_text(op.v) + ", expected a value_dim of 1 or more"; });
  check.dtype("cu_q", op.cu_q, {DType::i32});
  check.that(op.cu_q.rank == 1 && op.cu_q.elements() > 0,
             [&] { return "cu_q is " + shape_text(op.cu_q) + ", expected [documents + 1]"; });
  check.is("cu_k", op.cu_k, DType::i32, {op.cu_q.elements()});
  check.is("o", op.o, op.q.dtype, {op.q.shape[0], heads, value_dim});
  check_scores(check, op, heads);
  check.is("lse", op.lse, DType::f32, {heads, op.q.shape[0]});
  check.that(op.window >= 0, [&] { return "window is " + std::to_string(op.window) + ", expected 0 (none) or more"; });
}

}  // namespace

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

void check_shapes(const Attention& op) { check_operands(Check{op.name}, op); }

void check_shapes(const AttentionGrad& op) {
  const Check check{op.name};
  check_operands(check, op);
  check.like("dout", op.dout, "o", op.o);
  check.is("delta", op.delta, DType::f32, {op.q.shape[1], op.q.shape[0]});
  check.like("dq", op.dq, "q", op.q);
  check.like("dk", op.dk, "k", op.k);
  check.like("dv", op.dv, "v", op.v);
  check.that(!op.dsinks || op.sinks, "dsinks is given, sinks are missing");
  if (op.dsinks) check.like("dsinks", op.dsinks, "sinks", op.sinks);
}

void check_shapes(const HeadLinear& op) {
  const Check check{op.name};
  check.is_float("x", op.x);
  check.dtype("w", op.w, {DType::f32});
  check.that(op.x.rank == 3 && op.w.rank == 3 && op.w.shape[0] > 0 && op.x.shape[1] % op.w.shape[0] == 0 &&
                 op.x.shape[2] == op.w.shape[1] && op.w.shape[1] % 16 == 0 && op.w.shape[2] % 16 == 0,
             [&] {
               return "x is " + shape_text(op.x) + ", w is " + shape_text(op.w) +
                      ", expected [tokens, heads, dim] and [bases, dim, out_dim], the heads a multiple of the bases, " +
                      "dim and out_dim of 16";
             });
  if (op.bias) check.is("bias", op.bias, DType::f32, {op.w.shape[0], op.w.shape[2]});
  if (op.signs) {
    check.that(op.w.shape[1] == op.w.shape[2] && std::has_single_bit(static_cast<uint64_t>(op.w.shape[1])),
               [&] { return "w is " + shape_text(op.w) + ", expected with signs square matrices of a power of two"; });
    check.is("signs", op.signs, DType::f32, {3, op.w.shape[1]});
  }
  check.is("y", op.y, op.x.dtype, {op.x.shape[0], op.x.shape[1], op.w.shape[2]});
}

void check_shapes(const KvStore& op) {
  const Check check{op.name};
  check.is_float("k", op.k);
  check.that(!op.v == !op.v_pool, "v and v_pool are given together or not at all");
  check.that(op.k.rank == 3, [&] { return "k is " + shape_text(op.k) + ", expected [tokens, kv_heads, head_dim]"; });
  const int64_t tokens = op.k.shape[0];
  if (op.v) {
    check.that(op.v.rank == 3, [&] { return "v is " + shape_text(op.v) + ", expected [tokens, kv_heads, value_dim]"; });
    check_pools(check, op.k_pool, op.k_levels, op.k.shape[2], op.v_pool, op.v_levels, op.v.shape[2]);
    check.is("v", op.v, op.k.dtype, {tokens, op.v_pool.shape[1], op.v.shape[2]});
  } else {
    check_pool(check, "k_pool", op.k_pool, op.k_levels, op.k.shape[2]);
  }
  check.is("k", op.k, op.k.dtype, {tokens, op.k_pool.shape[1], op.k.shape[2]});
  check.count("slots", op.slots, DType::i32, tokens);
}

void check_shapes(const CopyPages& op) {
  const Check check{op.name};
  if (op.pool.dtype != DType::u8) check_pool(check, "pool", op.pool);
  check.that(op.pool.rank == 3, [&] { return "pool is " + shape_text(op.pool) + ", expected three dimensions"; });
  check_pages(check, op.pool, op.pool.shape[0], op.page_tokens);
  check.dtype("pairs", op.pairs, {DType::i32});
  check.that(op.pairs.rank == 2 && op.pairs.shape[1] == 2,
             [&] { return "pairs is " + shape_text(op.pairs) + ", expected [n, 2]"; });
}

void check_shapes(const PagedAttention& op) {
  const Check check{op.name};
  check.is_float("q", op.q);
  check.that(op.q.rank == 3 && op.o.rank == 3, [&] {
    return "q is " + shape_text(op.q) + ", o is " + shape_text(op.o) + ", expected [tokens, heads, head_dim]";
  });
  check_pools(check, op.k_pool, op.k_levels, op.q.shape[2], op.v_pool, op.v_levels, op.o.shape[2]);
  check_pages(check, op.k_pool, pool_slots(op.k_pool, op.k_levels), op.page_tokens);
  check.that((!op.k_levels && !op.v_levels) || op.page_tokens % kv_codes::kLanes == 0, [&] {
    return "page_tokens is " + std::to_string(op.page_tokens) + "; pages of codes hold a multiple of 16";
  });
  check.that(op.k_pool.shape[1] > 0 && op.q.shape[1] % op.k_pool.shape[1] == 0, [&] {
    return "q is " + shape_text(op.q) + ", k_pool is " + shape_text(op.k_pool) +
           "; head_dim has to agree, and the heads be a multiple of the kv heads";
  });
  check.is("o", op.o, op.q.dtype, {op.q.shape[0], op.q.shape[1], op.o.shape[2]});
  check_scores(check, op, op.q.shape[1]);
  check.dtype("cu_q", op.cu_q, {DType::i32});
  const int64_t sequences = op.cu_q.elements() - 1;
  check.that(sequences >= 0, "cu_q is empty, expected [sequences + 1]");
  check.count("lengths", op.lengths, DType::i32, sequences);
  check.dtype("pages", op.pages, {DType::i32});
  check.that(op.pages.rank == 2 && op.pages.shape[0] == sequences, [&] {
    return "pages is " + shape_text(op.pages) + ", expected [" + std::to_string(sequences) + ", most]";
  });
  check_exact(check, op);
}

}  // namespace qeng
