// Matmul, RowLinear, Hadamard, BiasGrad, Embedding, EmbeddingGrad from their equations in kernels/ops.h.
#pragma once
#include <cstring>

#include "kernels/math/blocks/activations.h"
#include "kernels/math/blocks/with_block.h"
#include "tests/conformance/sheet.h"

namespace qeng::conformance {

template <class T>
void reference(const Matmul& op, Sheet<T>& sheet) {
  const Array<T> a = sheet.in(op.a);
  Array<T> b = sheet.in(op.b);
  if (op.b.dtype != op.a.dtype)
    for (T& x : b.values) x = kept(x, unit_roundoff(op.a.dtype));  // decoded to a's dtype
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

// x rounded in groups of `group`, the last of which may be shorter: codes, and the scale of each.
struct RoundedRow {
  std::vector<double> codes, scales;
};
inline RoundedRow rounded_row(const std::vector<double>& x, size_t group) {
  RoundedRow rounded;
  for (size_t first = 0; first < x.size(); first += group) {
    const size_t end = std::min(x.size(), first + group);
    double largest = 0;
    for (size_t k = first; k < end; ++k) largest = std::max(largest, std::fabs(x[k]));
    const blocks::ActivationGroup made = blocks::activation_group(static_cast<float>(largest));
    blocks::ActivationFit fit;
    for (size_t k = first; k < end; ++k) {
      const int code = blocks::activation_code(static_cast<float>(x[k]), made.inverse);
      rounded.codes.push_back(code);
      blocks::add_to_fit(fit, static_cast<float>(x[k]), made.inverse, code);
    }
    rounded.scales.push_back(blocks::activation_scale(made, fit, static_cast<int>(group)));
  }
  return rounded;
}

// <x, row j of w> where w is of a block format: the equation of activations.h. Backends round A_b and the products of
// scales to f32.
template <class T>
T rounded_dot(const RoundedRow& x, size_t group, const View& w, int64_t j) {
  T sum = 0;
  blocks::with_block(w.dtype, [&](auto tag) {
    using Block = decltype(tag);
    constexpr size_t kElements = Block::kElements;
    const auto columns = static_cast<size_t>(w.columns());
    for (size_t first = 0; first < columns; first += group) {
      double dot = 0, less = 0;
      for (size_t i = first; i < std::min(columns, first + group); ++i) {
        Block block;
        std::memcpy(&block, w.as<char>() + (static_cast<size_t>(j) * columns + i) / kElements * sizeof block, sizeof block);
        const auto k = static_cast<int>(i % kElements);
        const double q = x.codes[i], d = scale(block, k / Block::kGroup);
        if constexpr (requires { block.zero; }) {  // d (q - zero) as d q - (d zero)
          dot += d * (code(block, k) + block.zero) * q, less += d * block.zero * q;
        } else {
          dot += d * code(block, k) * q;
          if constexpr (Block::kHasMin) less += static_cast<double>(min(block, k / Block::kGroup)) * q;
        }
      }
      const double scale_of_x = x.scales[first / group];
      sum += T(1) * (T(dot) * T(scale_of_x));
      sum += T(-1) * (T(less) * T(scale_of_x));
    }
  });
  return sum;
}

template <class T>
void reference(const RowLinear& op, Sheet<T>& sheet) {
  const Array<T> exact = sheet.in(op.x);
  for (size_t i = 0; i < op.w.size(); ++i) {
    Array<T> x = exact;
    if (op.w[i].dtype == DType::bf16)
      for (T& each : x.values) each = T(to_f32(to_bf16(static_cast<float>(value_of(each)))));
    const bool rounded = is_block(op.w[i].dtype);
    const Array<T> w = rounded ? Array<T>() : sheet.in(op.w[i]);
    const View bias_view = op.bias.empty() ? View() : op.bias[i], scale_view = op.scale.empty() ? View() : op.scale[i];
    const Array<T> bias = bias_view ? sheet.in(bias_view) : Array<T>();
    const Array<T> scale = scale_view ? sheet.in(scale_view) : Array<T>();
    Array<T>& y = sheet.update(op.y[i], op.acc);
    const int64_t n = op.w[i].shape[0], k = op.x.columns();
    const bool signs = op.w[i].dtype == DType::one_bit || op.w[i].dtype == DType::ternary;
    const int block = dtype_info(op.w[i].dtype).elements;
    const auto group = static_cast<size_t>(signs ? blocks::kSignGroup : blocks::group_elements(block));
    std::vector<double> row(static_cast<size_t>(k));
    for (int64_t r = 0; r < op.x.rows(); ++r) {
      for (int64_t l = 0; l < k; ++l) row[static_cast<size_t>(l)] = value_of(x[r * k + l]);
      const RoundedRow codes = rounded ? rounded_row(row, group) : RoundedRow();
      for (int64_t j = 0; j < n; ++j) {
        T sum = 0;
        if (rounded) sum = rounded_dot<T>(codes, group, op.w[i], j);
        for (int64_t l = 0; !rounded && l < k; ++l) sum += x[r * k + l] * w[j * k + l];
        if (scale_view) sum = scale[j] * sum;
        sum = T(op.alpha) * sum;
        if (bias_view) sum += bias[j];
        y[r * n + j] += sum;
      }
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
