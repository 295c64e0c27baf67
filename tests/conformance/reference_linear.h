// Matmul, RowLinear, Hadamard, BiasGrad, Embedding, EmbeddingGrad from their equations in kernels/ops.h.
#pragma once
#include "tests/conformance/sheet.h"

namespace qeng::conformance {

template <class T>
void reference(const Matmul& op, Sheet<T>& sheet) {
  const Array<T> a = sheet.in(op.a), b = sheet.in(op.b);
  const int64_t m = op.trans_a ? op.a.columns() : op.a.rows(), k = op.trans_a ? op.a.rows() : op.a.columns(),
                n = op.c.columns();
  const Array<T> bias = op.bias ? sheet.in(op.bias) : Array<T>();
  Array<T>& c = sheet.update(op.c, op.acc);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      T sum = 0;
      for (int64_t l = 0; l < k; ++l)
        sum += (op.trans_a ? a[l * m + i] : a[i * k + l]) * (op.trans_b ? b[j * k + l] : b[l * n + j]);
      sum = T(op.alpha) * sum;
      if (op.bias) sum += bias[j];
      c[i * n + j] += sum;
    }
}

template <class T>
void reference(const RowLinear& op, Sheet<T>& sheet) {
  const Array<T> x = sheet.in(op.x);
  for (size_t i = 0; i < op.w.size(); ++i) {
    const Array<T> w = sheet.in(op.w[i]);
    const View bias_view = op.bias.empty() ? View() : op.bias[i];
    const Array<T> bias = bias_view ? sheet.in(bias_view) : Array<T>();
    Array<T>& y = sheet.update(op.y[i], op.acc);
    const int64_t n = op.w[i].shape[0], k = op.x.columns();
    for (int64_t r = 0; r < op.x.rows(); ++r)
      for (int64_t j = 0; j < n; ++j) {
        T sum = 0;
        for (int64_t l = 0; l < k; ++l) sum += x[r * k + l] * w[j * k + l];
        sum = T(op.alpha) * sum;
        if (bias_view) sum += bias[j];
        y[r * n + j] += sum;
      }
  }
}

template <class T>
void reference(const Hadamard& op, Sheet<T>& sheet) {
  const Array<T> x = sheet.in(op.x), signs = op.signs ? sheet.in(op.signs) : Array<T>();
  Array<T>& y = sheet.out(op.y);
  const int64_t dim = op.x.columns();
  for (int64_t i = 0; i < op.x.elements(); ++i) {
    const int64_t column = i % dim, first = i - column % op.block;
    T sum = 0;
    for (int64_t j = 0; j < op.block; ++j) {
      T term = x[first + j];
      if (op.signs && !op.inverse) term = term * signs[first % dim + j];
      sum += __builtin_popcountll(static_cast<unsigned long long>((column % op.block) & j)) % 2 ? T(0) - term : term;
    }
    if (op.signs && op.inverse) sum = sum * signs[column];
    y[i] = sum * T(1 / std::sqrt(static_cast<double>(op.block)));
  }
}

template <class T>
void reference(const BiasGrad& op, Sheet<T>& sheet) {
  const Array<T> dy = sheet.in(op.dy);
  Array<T>& db = sheet.update(op.db, op.acc);
  for (int64_t j = 0; j < op.dy.columns(); ++j) {
    T sum = 0;
    for (int64_t i = 0; i < op.dy.rows(); ++i) sum += dy(i, j);
    db[j] += sum;
  }
}

template <class T>
void reference(const Embedding& op, Sheet<T>& sheet) {
  const auto tokens = sheet.integers(op.tokens);
  const Array<T> table = sheet.in(op.table);
  Array<T>& y = sheet.out(op.y, Sheet<T>::Check::exact);
  for (size_t t = 0; t < tokens.size(); ++t)
    for (int64_t j = 0; j < op.table.columns(); ++j) y(static_cast<int64_t>(t), j) = table(tokens[t], j);
}

template <class T>
void reference(const EmbeddingGrad& op, Sheet<T>& sheet) {
  const auto tokens = sheet.integers(op.tokens);
  const Array<T> dy = sheet.in(op.dy);
  Array<T>& dtable = sheet.update(op.dtable);
  for (size_t t = 0; t < tokens.size(); ++t)
    for (int64_t j = 0; j < op.dy.columns(); ++j) dtable(tokens[t], j) += dy(static_cast<int64_t>(t), j);
}

}  // namespace qeng::conformance
