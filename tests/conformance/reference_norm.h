// RmsNorm, SwiGlu and their gradients, and the elementwise ops, from their equations in kernels/ops.h.
#pragma once
#include <numbers>
#include <utility>

#include "tests/conformance/sheet.h"

namespace qeng::conformance {

template <class T>
void reference(const RmsNorm& op, Sheet<T>& sheet) {
  using std::sqrt;
  const Array<T> x = sheet.in(op.x), w = sheet.in(op.w);
  Array<T>&y = sheet.out(op.y), &rstd = sheet.out(op.rstd);
  const int64_t dim = op.x.columns();
  for (int64_t r = 0; r < op.x.rows(); ++r) {
    T squares = 0;
    for (int64_t i = 0; i < dim; ++i) squares += x[r * dim + i] * x[r * dim + i];
    rstd[r] = T(1) / sqrt(squares / T(static_cast<double>(dim)) + T(op.eps));
    for (int64_t i = 0; i < dim; ++i) y[r * dim + i] = x[r * dim + i] * rstd[r] * (w[i] + T(op.plus_one ? 1 : 0));
  }
}

template <class T>
void reference(const AddRmsNorm& op, Sheet<T>& sheet) {
  const Array<T> a = sheet.in(op.a), b = sheet.in(op.b);
  Array<T> sum(op.sum);
  for (int64_t i = 0; i < sum.size(); ++i) sum[i] = stored_sum(a[i], b[i], op.a.dtype);
  sheet.given[op.sum.data] = sum;
  reference(RmsNorm{op.sum, op.w, op.y, op.rstd, op.eps, op.plus_one}, sheet);
  sheet.out(op.sum, Sheet<T>::Check::exact).values = sum.values;
}

template <class T>
void reference(const RmsNormGrad& op, Sheet<T>& sheet) {
  const Array<T> x = sheet.in(op.x), w = sheet.in(op.w), rstd = sheet.in(op.rstd), dy = sheet.in(op.dy);
  const Array<T> dresidual = op.dresidual ? sheet.in(op.dresidual) : Array<T>(op.dx);
  Array<T>& dx = sheet.out(op.dx);
  Array<T> sums(op.w);
  const int64_t dim = op.x.columns();
  for (int64_t r = 0; r < op.x.rows(); ++r) {
    T mean = 0;
    for (int64_t i = 0; i < dim; ++i)
      mean += dy[r * dim + i] * (w[i] + T(op.plus_one ? 1 : 0)) * (x[r * dim + i] * rstd[r]);
    mean = mean / T(static_cast<double>(dim));
    for (int64_t i = 0; i < dim; ++i) {
      const T xhat = x[r * dim + i] * rstd[r], g = dy[r * dim + i] * (w[i] + T(op.plus_one ? 1 : 0));
      dx[r * dim + i] = dresidual[r * dim + i] + rstd[r] * (g - xhat * mean);
      sums[i] += dy[r * dim + i] * xhat;
    }
  }
  if (!op.dw) return;
  Array<T>& dw = sheet.update(op.dw, op.acc_dw);
  for (int64_t i = 0; i < dim; ++i) dw[i] += sums[i];
}

template <class T>
T sigmoid(T z) {
  using std::exp;
  return T(1) / (T(1) + exp(-z));
}

// sigmoid(a(z)) and a'(z) of SwiGlu. GELU's sigmoid leaves 0 and 1 by less than 1e-37 beyond 10.
template <class T>
std::pair<T, T> gate_of(T z, bool gelu) {
  if (!gelu) return {sigmoid(z), T(1)};
  const T scale = kept(T(2 * std::sqrt(2 / std::numbers::pi)), 0x1p-24), cubic = kept(T(0.044715), 0x1p-24);
  const T slope = scale * (T(1) + T(3) * cubic * z * z);
  if (std::fabs(value_of(z)) > 10) return {within(T(value_of(z) > 0 ? 1 : 0), 1e-37), slope};
  return {sigmoid(scale * (z + cubic * z * z * z)), slope};
}

template <class T>
void reference(const SwiGlu& op, Sheet<T>& sheet) {
  const Array<T> gate = sheet.in(op.gate), up = sheet.in(op.up);
  Array<T>& y = sheet.out(op.y);
  for (int64_t i = 0; i < y.size(); ++i) y[i] = gate[i] * gate_of(T(gate[i]), op.gelu).first * up[i];
}

template <class T>
void reference(const SwiGluGrad& op, Sheet<T>& sheet) {
  const Array<T> gate = sheet.in(op.gate), up = sheet.in(op.up), dy = sheet.in(op.dy);
  Array<T>&dgate = sheet.out(op.dgate), &dup = sheet.out(op.dup);
  for (int64_t i = 0; i < dy.size(); ++i) {
    const auto [s, slope] = gate_of(T(gate[i]), op.gelu);
    dup[i] = dy[i] * gate[i] * s;
    dgate[i] = dy[i] * up[i] * s * (T(1) + gate[i] * (T(1) - s) * slope);
  }
}

template <class T>
void reference(const Add& op, Sheet<T>& sheet) {
  const Array<T> a = sheet.in(op.a), b = sheet.in(op.b);
  Array<T>& y = sheet.out(op.y);
  for (int64_t i = 0; i < y.size(); ++i) y[i] = a[i] + b[i];
}

template <class T>
void reference(const Scale& op, Sheet<T>& sheet) {
  const Array<T> x = sheet.in(op.x);
  Array<T>& y = sheet.out(op.y);
  for (int64_t i = 0; i < y.size(); ++i) y[i] = T(op.alpha) * x[i];
}

template <class T>
void reference(const Cast& op, Sheet<T>& sheet) {
  sheet.out(op.y, Sheet<T>::Check::exact).values = sheet.in(op.x).values;
}

template <class T>
void reference(const Copy& op, Sheet<T>& sheet) {
  sheet.out(op.y, Sheet<T>::Check::exact).values = sheet.in(op.x).values;
}

template <class T>
void reference(const UseWeights&, Sheet<T>&) {}  // computes nothing

template <class T>
void reference(const Fill& op, Sheet<T>& sheet) {
  for (T& y : sheet.out(op.y, Sheet<T>::Check::exact).values) y = T(op.value);
}

}  // namespace qeng::conformance
