// GroupedMatmul and GroupedMatmulGrad.
#include "tests/conformance/table.h"

namespace qeng::conformance {
namespace {

// Boundaries of the rows of each expert: of few or many rows, many without any, sometimes all rows of one; and sometimes
// rows past the last expert's.
struct Groups {
  View first;
  int64_t experts, rows;
};
Groups groups(Draw& draw, int64_t most_rows) {
  const int64_t experts = draw.size(9), only = draw.integer(0, 3) ? -1 : draw.integer(0, experts - 1);
  std::vector<double> first{0};
  for (int64_t e = 0; e < experts; ++e) {
    const bool empty = only >= 0 ? e != only : draw.integer(0, 2) == 0;
    first.push_back(first.back() + static_cast<double>(empty ? 0 : draw.size(most_rows)));
  }
  const auto rows = static_cast<int64_t>(first.back()) + (draw.flip() ? 0 : draw.integer(0, 5));
  return {draw.values(DType::i32, first), experts, rows};
}

Op grouped_matmul(Draw& draw) {
  draw.sometimes_misalign();
  GroupedMatmul op;
  const Groups of =
      groups(draw, draw.pick<int64_t>({1, 1, 20, 20, 70, 200}));  // of 1: a row for an expert, as in decoding
  const bool whole = draw.integer(0, 2) == 0;  // vectors of bf16, or of f16 weights, as tensor cores take them
  const bool stored = draw.flip();
  const DType dtype = whole && !stored ? DType::bf16 : draw.float_dtype();
  const DType weights = stored ? draw.stored_dtype(dtype) : dtype;
  op.apart = draw.flip(), op.tall = !op.apart && draw.flip(), op.acc = draw.flip();
  const auto columns = [&](int64_t most) { return whole ? 8 * draw.size(most) : draw.columns(most); };
  const int64_t along = is_block(weights) ? draw.row_length(weights, 512) : columns(stored ? 64 : 40),
                across = columns(stored ? 8 : 40);
  const int64_t k = op.tall ? across : along, n = op.tall ? along : across;
  op.x = draw.tensor(dtype, {of.rows, k}), op.first = of.first;
  op.w = draw.tensor(weights, {of.experts, across, along});
  if (draw.flip()) op.bias = draw.tensor(draw.flip() ? DType::f32 : dtype, {of.experts, n});
  const DType result = draw.flip() ? DType::f32 : dtype;
  op.y = op.acc ? draw.tensor(result, {of.rows, n}) : draw.empty(result, {of.rows, n});
  return op;
}

Op grouped_matmul_grad(Draw& draw) {
  draw.sometimes_misalign();
  GroupedMatmulGrad op;
  const Groups of = groups(draw, draw.integer(0, 3) ? 20 : 150);
  const bool whole = draw.integer(0, 2) == 0;  // as above
  const DType dtype = whole ? DType::bf16 : draw.float_dtype();
  const int64_t n = whole ? 8 * draw.size(30) : draw.columns(30), k = whole ? 8 * draw.size(40) : draw.columns(40);
  op.acc = draw.flip();
  const auto result = [&](const View& view) { return op.acc ? draw.like(view) : view; };
  op.dy = draw.tensor(dtype, {of.rows, n}), op.x = draw.tensor(dtype, {of.rows, k}), op.first = of.first;
  const int64_t which = draw.integer(0, 3);
  if (which != 0) op.dw = result(draw.empty(DType::f32, {of.experts, n, k}));
  if (which <= 1) op.dbias = result(draw.empty(DType::f32, {of.experts, n}));
  return op;
}

// A product and its gradients; the weights' rows along n where it is tall.
Chain grouped_chain(Draw& draw) {
  GroupedMatmul forward, dx;
  GroupedMatmulGrad dw;
  const Groups of = groups(draw, 6);
  const int64_t k = draw.size(6), n = draw.size(5);
  forward.x = draw.tensor(DType::f32, {of.rows, k}), forward.first = dx.first = dw.first = of.first;
  forward.w = draw.tensor(DType::f32, {of.experts, n, k}), forward.bias = draw.tensor(DType::f32, {of.experts, n});
  forward.y = draw.empty(DType::f32, {of.rows, n});
  const View dout = draw.like(forward.y);
  dx.x = dout, dx.w = forward.w, dx.tall = true, dx.y = draw.empty_like(forward.x);
  dw.dy = dout, dw.x = forward.x, dw.dw = draw.empty_like(forward.w), dw.dbias = draw.empty_like(forward.bias);
  return {forward, {dx, dw}, forward.y, dout, {{forward.x, dx.y}, {forward.w, dw.dw}, {forward.bias, dw.dbias}}};
}

// Frozen weights of a block format: the gradient of their product's input.
Chain stored_grouped_chain(Draw& draw) {
  GroupedMatmul forward, dx;
  const Groups of = groups(draw, 4);
  forward.x = draw.tensor(DType::f32, {of.rows, 256}), forward.first = dx.first = of.first;
  forward.w = draw.tensor(draw.block_format(), {of.experts, draw.size(4), 256});
  forward.y = draw.empty(DType::f32, {of.rows, forward.w.shape[1]});
  const View dout = draw.like(forward.y);
  dx.x = dout, dx.w = forward.w, dx.tall = true, dx.y = draw.empty_like(forward.x);
  return {forward, {dx}, forward.y, dout, {{forward.x, dx.y}}};
}

View rows_of(const View& view, int64_t first, int64_t rows) {
  return View(view.as<char>() + static_cast<int64_t>(dtype_bytes(view.dtype, view.columns())) * first, view.dtype,
              {rows, view.columns()});
}

// The rows of an expert by the reference of RowLinear.
template <class T>
void reference_apart(const GroupedMatmul& op, int64_t expert, int64_t first, int64_t rows, Array<T>& y) {
  const int64_t n = op.w.shape[1];
  RowLinear product;
  product.x = rows_of(op.x, first, rows), product.w = {rows_of(op.w, expert * n, n)};
  if (op.bias) product.bias = {rows_of(op.bias, expert, 1)};
  product.y = {rows_of(op.y, first, rows)}, product.acc = op.acc;
  Sheet<T> sheet;
  reference(product, sheet);
  const Array<T>& own = sheet.results.at(product.y[0].data).array;
  for (int64_t i = 0; i < own.size(); ++i) y[first * n + i] = own[i];
}

}  // namespace

template <class T>
void reference(const GroupedMatmul& op, Sheet<T>& sheet) {
  const Array<T> x = sheet.in(op.x);
  Array<T> w = sheet.in(op.w);
  if (op.w.dtype != op.x.dtype)
    for (T& each : w.values) each = kept(each, unit_roundoff(op.x.dtype));  // decoded to x's dtype
  const std::vector<int64_t> first = sheet.integers(op.first);
  const Array<T> bias = op.bias ? sheet.in(op.bias) : Array<T>();
  Array<T>& y = sheet.update(op.y, op.acc);
  const int64_t n = op.y.columns(), k = op.x.columns();
  for (int64_t e = 0; e < op.w.shape[0]; ++e) {
    const int64_t begin = first[static_cast<size_t>(e)], end = first[static_cast<size_t>(e) + 1];
    if (op.apart && end > begin) reference_apart(op, e, begin, end - begin, y);
    for (int64_t r = begin; r < end && !op.apart; ++r)
      for (int64_t j = 0; j < n; ++j) {
        T sum = 0;
        for (int64_t l = 0; l < k; ++l) sum += x[r * k + l] * (op.tall ? w(e, l, j) : w(e, j, l));
        if (op.bias) sum += bias(e, j);
        y[r * n + j] += sum;
      }
  }
}

template <class T>
void reference(const GroupedMatmulGrad& op, Sheet<T>& sheet) {
  const Array<T> dy = sheet.in(op.dy), x = sheet.in(op.x);
  const std::vector<int64_t> first = sheet.integers(op.first);
  const int64_t experts = op.first.elements() - 1, n = op.dy.columns(), k = op.x.columns();
  if (op.dw) {
    Array<T>& dw = sheet.update(op.dw, op.acc);
    for (int64_t e = 0; e < experts; ++e)
      for (int64_t j = 0; j < n; ++j)
        for (int64_t l = 0; l < k; ++l) {
          T sum = 0;
          for (int64_t r = first[static_cast<size_t>(e)]; r < first[static_cast<size_t>(e) + 1]; ++r)
            sum += dy(r, j) * x(r, l);
          dw(e, j, l) += sum;
        }
  }
  if (!op.dbias) return;
  Array<T>& dbias = sheet.update(op.dbias, op.acc);
  for (int64_t e = 0; e < experts; ++e)
    for (int64_t j = 0; j < n; ++j) {
      T sum = 0;
      for (int64_t r = first[static_cast<size_t>(e)]; r < first[static_cast<size_t>(e) + 1]; ++r) sum += dy(r, j);
      dbias(e, j) += sum;
    }
}

QENG_CONFORMANCE(GroupedMatmul, .make = grouped_matmul,
                 .derivatives = {{"grouped_matmul and its gradient", grouped_chain},
                                 {"grouped_matmul of stored weights", stored_grouped_chain}});
QENG_CONFORMANCE(GroupedMatmulGrad, .make = grouped_matmul_grad);

}  // namespace qeng::conformance
