// Operations: attention and its cache. Conventions: kernels/ops.h.
#pragma once
#include <bit>

#include "kernels/ops/access.h"

namespace qeng {

// Rotates pairs (i, i + rotary/2) of each head by angle positions[t] * inv_freq[i] ("neox halves"), interleaved: pairs
// (2 i, 2 i + 1); inverse: by minus that.
//   y[i] = c x[i] - s x[i + r/2];  y[i + r/2] = s x[i] + c x[i + r/2];  c, s = scale * cos, sin;  the rest is copied
// x, y: [tokens, heads, head_dim]   positions: [tokens] i32   inv_freq: [rotary/2] f32, rotary <= head_dim
// [x2], [y2]: [tokens, heads2, head_dim], rotated by the same angles: the keys beside the queries.
// scale is YaRN's attention factor (1 otherwise). inverse is the exact transpose, so it is the gradient. In place
// allowed (y may be x, y2 may be x2).
struct Rope {
  static constexpr const char* name = "rope";
  View x, positions, inv_freq, y, x2, y2;
  float scale = 1;
  bool inverse = false, interleaved = false;
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
// query to its last `window` keys. Documents may be empty. A query that sees no key gives o = 0, lse = 0.
// softcap > 0: a score s becomes softcap * tanh(s / softcap) (Gemma 2). [sinks]: a score of each head that takes part in
// the softmax and has no value (gpt-oss).
// q: [tq, heads, head_dim]   k: [tk, kv_heads, head_dim]   v: [tk, kv_heads, value_dim]   o: [tq, heads, value_dim]
// head_dim, value_dim: to 256   cu_q, cu_k: [docs + 1] i32 ascending from 0   sinks: [heads] f32
// lse: [heads, tq] f32, log of the sum of exponentials, kept for backward. f32 softmax.
struct Attention {
  static constexpr const char* name = "attention";
  View q, k, v, cu_q, cu_k, o, lse;
  float scale = 1;
  int window = 0;
  View sinks;
  float softcap = 0;
  template <class F>
  void views(F f) {
    f("q", q, Access::read), f("k", k, Access::read), f("v", v, Access::read), f("cu_q", cu_q, Access::read);
    f("cu_k", cu_k, Access::read), f("sinks", sinks, Access::read);
    f("o", o, Access::write), f("lse", lse, Access::write);
  }
};

// Gradients of Attention: P = exp(scale * q k^T - lse), delta = rowsum(dout * o), dS = P * (dout v^T - delta),
//   dq = scale * dS k,  dk = scale * dS^T q,  dv = P^T dout, dk and dv summed over the query heads of a group.
// With softcap, dS is multiplied by 1 - (s / softcap)^2 of the capped score s.
// [dsinks[h]] (+)= -sum_t exp(sinks[h] - lse[h, t]) delta[h, t]: [heads] f32
// delta: [heads, tq] f32 workspace.
struct AttentionGrad {
  static constexpr const char* name = "attention_grad";
  View q, k, v, cu_q, cu_k, o, lse, dout, delta, dq, dk, dv;
  float scale = 1;
  int window = 0;
  View sinks, dsinks;
  float softcap = 0;
  bool acc_sinks = false;
  template <class F>
  void views(F f) {
    f("q", q, Access::read), f("k", k, Access::read), f("v", v, Access::read), f("cu_q", cu_q, Access::read);
    f("cu_k", cu_k, Access::read), f("sinks", sinks, Access::read), f("o", o, Access::read);
    f("lse", lse, Access::read), f("dout", dout, Access::read);
    f("delta", delta, Access::write), f("dq", dq, Access::write), f("dk", dk, Access::write),
        f("dv", dv, Access::write);
    f("dsinks", dsinks, acc_sinks ? Access::update : Access::write);
  }
};

// A matrix for each head, as a cache of codes turns keys, queries and values by:
//   y[t, h, :] = x[t, h, :] w[b] + bias[b],   b = h / (heads / bases)
// x: [tokens, heads, dim] float   w: [bases, dim, out_dim] f32   [bias]: [bases, out_dim] f32   y: [tokens, heads,
// out_dim] of x's dtype, not x. dim, out_dim: multiples of 16. A row's bits do not depend on the others.
// [signs]: [3, dim] f32, each 1 or -1: all bases are these signs and two of Hadamard's matrices (see there), which a
// backend may use instead of w:   x w = s_2 * H (s_1 * H (s_0 * x)) / dim     dim: a power of two, out_dim the same
struct HeadLinear {
  static constexpr const char* name = "head_linear";
  View x, w, bias, y, signs;
  int64_t flops() const {
    const int64_t out = w.rank ? w.shape[w.rank - 1] : 0;
    return 2 * x.elements() * (signs ? std::bit_width(static_cast<uint64_t>(out)) - 1 : out);
  }
  template <class F>
  void views(F f) {
    f("x", x, Access::read), f("w", w, Access::read), f("bias", bias, Access::read);
    f("signs", signs, Access::read), f("y", y, Access::write);
  }
};

// Stores new keys and values in a paged cache: pool[slots[t], :, :] = row t, rounded to the pool's dtype; slot -1:
// nowhere.
// k: [tokens, kv_heads, head_dim] float   [v]: [tokens, kv_heads, value_dim]   slots: [tokens] i32, no slot twice
// k_pool: [slots, kv_heads, head_dim] f32, bf16, f16 or q8_0 (head_dim then a multiple of 32)   [v_pool]: likewise,
// of any of these
// With [k_levels] the keys' pool is one of codes, [slots / 16, kv_heads, bytes of a tile] u8 (kernels/math/kv_codes.h):
// k_levels: [2^bits] f32, ascending, bits 1 to 4; or [3 2^bits], where so many dimensions as the tile's bytes say have
// a bit more. head_dim: a multiple of 32. The scale of a row x is |x| / |levels of its codes|.   [v_levels]: likewise
// A slot outside the pool is Error("value").
struct KvStore {
  static constexpr const char* name = "kv_store";
  View k, v, slots, k_pool, v_pool, k_levels, v_levels;
  template <class F>
  void views(F f) {
    f("k", k, Access::read), f("v", v, Access::read), f("slots", slots, Access::read);
    f("k_levels", k_levels, Access::read), f("v_levels", v_levels, Access::read);
    f("k_pool", k_pool, Access::update), f("v_pool", v_pool, Access::update);
  }
};

// pool's page to = its page from, for each pair {from, to}: copy on write. A page is page_tokens rows of the pool.
// pool: as in KvStore, one of codes with a page_tokens of tiles   pairs: [n, 2] i32; no `to` is another pair's `from` or `to`. A page outside the pool is
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
// q: [tokens, heads, head_dim] float   o: [tokens, heads, value_dim]   k_pool, v_pool: as in KvStore
// pages: [sequences, most] i32   [sinks] and softcap as in Attention
// cu_q: [sequences + 1] i32 ascending from 0   lengths: [sequences] i32, at least the sequence's queries
// Queries past cu_q[last] give o = 0. window as in Attention. A page outside the pool that is needed is Error("value").
//
// Pools of codes, with [k_levels] and [v_levels] as in KvStore, are for page_tokens that are multiples of 16. Where
// [exact] is given, the first exact_first keys of a sequence, and the last exact_last that a query sees, are not taken
// from such a pool but from [k_exact], with their values from [v_exact], for each side that has codes:
// k_exact: [exact slots, kv_heads, head_dim] f32, bf16 or f16   v_exact: likewise
// exact: [sequences, most] i32, the page there of a page of the sequence; -1 where no query needs one
// Where there are codes and q is bf16, a device may round levels of keys to f16 and values to bf16, as it does probabilities.
struct PagedAttention {
  static constexpr const char* name = "paged_attention";
  View q, k_pool, v_pool, pages, cu_q, lengths, o;
  float scale = 1;
  int window = 0, page_tokens = 0;
  View sinks;
  float softcap = 0;
  View k_levels, v_levels, k_exact, v_exact, exact;
  int exact_first = 0, exact_last = 0;
  template <class F>
  void views(F f) {
    f("q", q, Access::read), f("k_pool", k_pool, Access::read), f("v_pool", v_pool, Access::read);
    f("pages", pages, Access::read), f("cu_q", cu_q, Access::read), f("lengths", lengths, Access::read);
    f("sinks", sinks, Access::read), f("k_levels", k_levels, Access::read), f("v_levels", v_levels, Access::read);
    f("k_exact", k_exact, Access::read), f("v_exact", v_exact, Access::read), f("exact", exact, Access::read);
    f("o", o, Access::write);
  }
};

// clang-format off
#define QENG_ATTENTION_OPERATIONS(OP) OP(Rope) OP(Attention) OP(AttentionGrad) OP(HeadLinear) OP(KvStore) OP(CopyPages) \
  OP(PagedAttention)
// clang-format on

}  // namespace qeng
