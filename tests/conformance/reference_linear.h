// Matmul, BiasGrad, Embedding, EmbeddingGrad from their equations in kernels/ops.h.
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
