// Attention and its gradient, one query and one key at a time.
#include "tests/conformance/table.h"

namespace qeng::conformance {
namespace {

// Half of the draws suit tensor cores: bf16, their head_dims, documents whose ends lie about those of tiles.
Attention forward_attention(Draw& draw) {
  const bool tiles = draw.flip();
  if (!tiles) draw.sometimes_misalign();
  const Documents documents = tiles ? draw.documents(2, {1, 63, 64, 65, 127, 129, 200}) : draw.documents(5, 150);
  const int64_t head_dim = tiles         ? draw.pick<int64_t>({64, 96, 128, 256})
                           : draw.flip() ? draw.pick<int64_t>({16, 64, 128})
                                         : draw.size(130);
  const int64_t kv_heads = draw.integer(1, !tiles ? 3 : head_dim > 64 ? 1 : 2);
  const int64_t group = draw.integer(1, !tiles ? 4 : head_dim > 128 ? 2 : 3);
  Attention op = attention_of(draw, documents, tiles ? DType::bf16 : draw.float_dtype(), kv_heads, group, head_dim);
  if (draw.integer(0, 2) == 0) op.window = static_cast<int>(draw.size(100));
  if (draw.integer(0, 3) == 0) op.softcap = draw.pick({0.7f, 2.0f, 30.0f});
  if (draw.integer(0, 2) == 0) op.sinks = draw.tensor(DType::f32, {op.q.shape[1]}, draw.pick({1.0, 4.0}));
  if (draw.integer(0, 3) == 0) {
    const int64_t value_dim = tiles ? draw.pick<int64_t>({32, 64, 128}) : draw.size(130);
    op.v = draw.tensor(op.v.dtype, {documents.keys, kv_heads, value_dim});
    op.o = draw.empty(op.o.dtype, {documents.queries, kv_heads * group, value_dim});
  }
  return op;
}

Op attention(Draw& draw) { return forward_attention(draw); }

Op attention_grad(Draw& draw) {
  AttentionGrad op = attention_grad_of(draw, forward_attention(draw));
  if (op.sinks && draw.integer(0, 3)) {
    op.acc_sinks = draw.flip();
    op.dsinks = op.acc_sinks ? draw.like(op.sinks) : draw.empty_like(op.sinks);
  }
  return op;
}

Chain attention_chain(Draw& draw) {
  Attention forward;
  const Documents documents = draw.documents(3, 9);
  const int64_t kv_heads = draw.integer(1, 2), heads = kv_heads * draw.integer(1, 3), head_dim = draw.size(6);
  const int64_t value_dim = draw.flip() ? head_dim : draw.size(6);
  forward.cu_q = documents.cu_q, forward.cu_k = documents.cu_k;
  forward.q = draw.tensor(DType::f32, {documents.queries, heads, head_dim});
  forward.k = draw.tensor(DType::f32, {documents.keys, kv_heads, head_dim});
  forward.v = draw.tensor(DType::f32, {documents.keys, kv_heads, value_dim});
  forward.o = draw.empty(DType::f32, {documents.queries, heads, value_dim}),
  forward.lse = draw.empty(DType::f32, {heads, documents.queries});
  forward.scale = 0.6f, forward.window = draw.flip() ? 4 : 0, forward.softcap = draw.flip() ? 1.5f : 0;
  forward.sinks = draw.tensor(DType::f32, {heads});
  const View dout = draw.like(forward.o);
  AttentionGrad gradient;
  gradient.q = forward.q, gradient.k = forward.k, gradient.v = forward.v, gradient.cu_q = forward.cu_q,
  gradient.cu_k = forward.cu_k;
  gradient.o = forward.o, gradient.lse = forward.lse, gradient.dout = dout,
  gradient.delta = draw.empty_like(forward.lse);
  gradient.dq = draw.empty_like(forward.q), gradient.dk = draw.empty_like(forward.k),
  gradient.dv = draw.empty_like(forward.v), gradient.dsinks = draw.empty_like(forward.sinks);
  gradient.scale = forward.scale, gradient.window = forward.window;
  gradient.sinks = forward.sinks, gradient.softcap = forward.softcap;
  const Pairs pairs = {
      {forward.q, gradient.dq}, {forward.k, gradient.dk}, {forward.v, gradient.dv}, {forward.sinks, gradient.dsinks}};
  return {forward, {gradient}, forward.o, dout, pairs, {forward.o, forward.lse}};
}

// Calls f(query, first key, one past the last key) for each query of each document.
template <class Op, class T, class F>
void each_query(const Op& op, const Sheet<T>& sheet, F f) {
  const auto cu_q = sheet.integers(op.cu_q), cu_k = sheet.integers(op.cu_k);
  for (size_t s = 0; s + 1 < cu_q.size(); ++s)
    for (int64_t t = cu_q[s]; t < cu_q[s + 1]; ++t) {
      const int64_t end = cu_k[s + 1] - (cu_q[s + 1] - 1 - t);
      int64_t begin = cu_k[s];
      if (op.window > 0) begin = std::max<int64_t>(begin, end - op.window);
      if (begin < end) f(t, begin, end);
    }
}

// The score that takes part in the softmax, of the scaled product.
template <class T>
T capped(T score, float softcap) {
  using std::tanh;
  return softcap > 0 ? T(softcap) * tanh(score / T(softcap)) : score;
}

template <class T>
T dot(const Array<T>& a, int64_t t, int64_t h, const Array<T>& b, int64_t j, int64_t g) {
  T sum = 0;
  for (int64_t d = 0; d < a.shape[2]; ++d) sum += a(t, h, d) * b(j, g, d);
  return sum;
}

}  // namespace

Attention attention_of(Draw& draw, const Documents& documents, DType dtype, int64_t kv_heads, int64_t group,
                       int64_t head_dim) {
  Attention op;
  op.cu_q = documents.cu_q, op.cu_k = documents.cu_k;
  op.q = draw.tensor(dtype, {documents.queries, kv_heads * group, head_dim});
  op.k = draw.tensor(dtype, {documents.keys, kv_heads, head_dim}, draw.pick({1.0, 1.0, 10.0}));
  op.v = draw.tensor(dtype, {documents.keys, kv_heads, head_dim});
  op.o = draw.empty_like(op.q);
  op.lse = draw.empty(DType::f32, {op.q.shape[1], op.q.shape[0]});
  op.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)));
  return op;
}

AttentionGrad attention_grad_of(Draw& draw, const Attention& forward) {
  Sheet<double> sheet;
  run_reference(forward, sheet);
  for (const View& view : {forward.o, forward.lse})
    for (int64_t i = 0; i < view.elements(); ++i) encode(view, i, sheet.results[view.data].array[i]);
  AttentionGrad op;
  op.q = forward.q, op.k = forward.k, op.v = forward.v, op.cu_q = forward.cu_q, op.cu_k = forward.cu_k;
  op.o = forward.o, op.lse = forward.lse, op.scale = forward.scale, op.window = forward.window;
  op.sinks = forward.sinks, op.softcap = forward.softcap;
  op.dout = draw.like(forward.o), op.delta = draw.empty_like(forward.lse);
  op.dq = draw.empty_like(forward.q), op.dk = draw.empty_like(forward.k), op.dv = draw.empty_like(forward.v);
  return op;
}

template <class T>
void reference(const Attention& op, Sheet<T>& sheet) {
  using std::exp, std::log;
  const Array<T> q = sheet.in(op.q), k = sheet.in(op.k), v = sheet.in(op.v);
  const Array<T> sinks = op.sinks ? sheet.in(op.sinks) : Array<T>();
  Array<T>&o = sheet.out(op.o), &lse = sheet.out(op.lse);
  const int64_t heads = op.q.shape[1], group = heads / op.k.shape[1], value_dim = op.v.shape[2];
  const double half_ulp = unit_roundoff(op.q.dtype);  // tensor cores take the probabilities in q's dtype
  each_query(op, sheet, [&](int64_t t, int64_t begin, int64_t end) {
    for (int64_t h = 0; h < heads; ++h) {
      std::vector<T> score;
      for (int64_t j = begin; j < end; ++j)
        score.push_back(capped(T(op.scale) * dot(q, t, h, k, j, h / group), op.softcap));
      double top = op.sinks ? value_of(sinks[h]) : value_of(score[0]);
      for (const T& s : score) top = std::max(top, value_of(s));
      T total = op.sinks ? exp(sinks[h] - T(top)) : T(0);
      for (const T& s : score) total += exp(s - T(top));
      lse(h, t) = T(top) + log(total);
      for (int64_t d = 0; d < value_dim; ++d) {
        T sum = 0;
        for (int64_t j = begin; j < end; ++j)
          sum += kept(exp(score[static_cast<size_t>(j - begin)] - T(top)), half_ulp) * v(j, h / group, d);
        o(t, h, d) = sum / total;
      }
    }
  });
}

template <class T>
void reference(const AttentionGrad& op, Sheet<T>& sheet) {
  using std::exp;
  const Array<T> q = sheet.in(op.q), k = sheet.in(op.k), v = sheet.in(op.v), o = sheet.in(op.o),
                 dout = sheet.in(op.dout);
  const Array<T> lse = sheet.in(op.lse), sinks = op.sinks ? sheet.in(op.sinks) : Array<T>();
  Array<T>&dq = sheet.out(op.dq), &dk = sheet.out(op.dk), &dv = sheet.out(op.dv);
  Array<T> nobody, &dsinks = op.dsinks ? sheet.update(op.dsinks, op.acc_sinks) : nobody;
  sheet.scratch(op.delta);
  const int64_t heads = op.q.shape[1], group = heads / op.k.shape[1], dim = op.q.shape[2], value_dim = op.v.shape[2];
  const double half_ulp = unit_roundoff(op.q.dtype);
  each_query(op, sheet, [&](int64_t t, int64_t begin, int64_t end) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t g = h / group;
      const T delta = dot(dout, t, h, o, t, h);
      if (op.dsinks) dsinks[h] += -(exp(sinks[h] - lse(h, t)) * delta);
      for (int64_t j = begin; j < end; ++j) {
        const T s = capped(T(op.scale) * dot(q, t, h, k, j, g), op.softcap), p = exp(s - lse(h, t));
        T ds = p * (dot(dout, t, h, v, j, g) - delta);
        if (op.softcap > 0) ds = ds * (T(1) - s / T(op.softcap) * (s / T(op.softcap)));
        ds = kept(ds, half_ulp);
        for (int64_t d = 0; d < dim; ++d) {
          dq(t, h, d) += T(op.scale) * ds * k(j, g, d);
          dk(j, g, d) += T(op.scale) * ds * q(t, h, d);
        }
        for (int64_t d = 0; d < value_dim; ++d) dv(j, g, d) += kept(p, half_ulp) * dout(t, h, d);
      }
    }
  });
}

QENG_CONFORMANCE(Attention, .make = attention);
QENG_CONFORMANCE(AttentionGrad, .make = attention_grad, .derivatives = {{"attention_grad", attention_chain}});

}  // namespace qeng::conformance
