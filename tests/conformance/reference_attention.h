// Rope, Attention and AttentionGrad from their equations in kernels/ops.h, one query and one key at a time.
#pragma once
#include "tests/conformance/sheet.h"

namespace qeng::conformance {

template <class T>
void reference(const Rope& op, Sheet<T>& sheet) {
  using std::cos, std::sin;
  const Array<T> inv_freq = sheet.in(op.inv_freq);
  const auto positions = sheet.integers(op.positions);
  const int64_t half = inv_freq.size();
  for (const auto& [in, out] : {std::pair(op.x, op.y), std::pair(op.x2, op.y2)}) {
    if (!in) continue;
    const Array<T> x = sheet.in(in);
    Array<T>& y = sheet.out(out);
    y.values = x.values;
    for (int64_t t = 0; t < in.shape[0]; ++t)
      for (int64_t h = 0; h < in.shape[1]; ++h)
        for (int64_t i = 0; i < half; ++i) {
          const T angle = T(static_cast<double>(positions[static_cast<size_t>(t)])) * inv_freq[i];
          const T c = T(op.scale) * cos(angle), s = T(op.scale) * sin(op.inverse ? -angle : angle);
          y(t, h, i) = c * x(t, h, i) - s * x(t, h, i + half);
          y(t, h, i + half) = s * x(t, h, i) + c * x(t, h, i + half);
        }
  }
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

template <class T>
T dot(const Array<T>& a, int64_t t, int64_t h, const Array<T>& b, int64_t j, int64_t g) {
  T sum = 0;
  for (int64_t d = 0; d < a.shape[2]; ++d) sum += a(t, h, d) * b(j, g, d);
  return sum;
}

template <class T>
void reference(const Attention& op, Sheet<T>& sheet) {
  using std::exp, std::log;
  const Array<T> q = sheet.in(op.q), k = sheet.in(op.k), v = sheet.in(op.v);
  Array<T>&o = sheet.out(op.o), &lse = sheet.out(op.lse);
  const int64_t heads = op.q.shape[1], group = heads / op.k.shape[1], dim = op.q.shape[2];
  const double half_ulp = unit_roundoff(op.q.dtype);  // tensor cores take the probabilities in q's dtype
  each_query(op, sheet, [&](int64_t t, int64_t begin, int64_t end) {
    for (int64_t h = 0; h < heads; ++h) {
      std::vector<T> score;
      for (int64_t j = begin; j < end; ++j) score.push_back(T(op.scale) * dot(q, t, h, k, j, h / group));
      double top = value_of(score[0]);
      for (const T& s : score) top = std::max(top, value_of(s));
      T total = 0;
      for (const T& s : score) total += exp(s - T(top));
      lse(h, t) = T(top) + log(total);
      for (int64_t d = 0; d < dim; ++d) {
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
  const Array<T> lse = sheet.in(op.lse);
  Array<T>&dq = sheet.out(op.dq), &dk = sheet.out(op.dk), &dv = sheet.out(op.dv);
  sheet.scratch(op.delta);
  const int64_t heads = op.q.shape[1], group = heads / op.k.shape[1], dim = op.q.shape[2];
  const double half_ulp = unit_roundoff(op.q.dtype);
  each_query(op, sheet, [&](int64_t t, int64_t begin, int64_t end) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t g = h / group;
      const T delta = dot(dout, t, h, o, t, h);
      for (int64_t j = begin; j < end; ++j) {
        const T p = exp(T(op.scale) * dot(q, t, h, k, j, g) - lse(h, t));
        const T ds = kept(p * (dot(dout, t, h, v, j, g) - delta), half_ulp);
        for (int64_t d = 0; d < dim; ++d) {
          dq(t, h, d) += T(op.scale) * ds * k(j, g, d);
          dk(j, g, d) += T(op.scale) * ds * q(t, h, d);
          dv(j, g, d) += kept(p, half_ulp) * dout(t, h, d);
        }
      }
    }
  });
}

}  // namespace qeng::conformance
