// Sort and CumulativeSum.
#include <algorithm>
#include <cmath>

#include "tests/conformance/table.h"

namespace qeng::conformance {
namespace {

Op sort(Draw& draw) {
  draw.sometimes_misalign();
  Sort op;
  const DType dtype = draw.pick({DType::f32, DType::bf16, DType::f16, DType::i32});
  const int64_t rows = draw.size(20), n = draw.integer(0, 7) ? draw.size(200) : draw.integer(4000, 9000);
  const int64_t k = draw.flip() ? n : n > 4096 && draw.flip() ? draw.size(1024) : draw.integer(1, n);
  op.x = draw.tensor(dtype, {rows, n}, draw.pick({1.0, 30.0}));
  const bool whole = draw.flip();  // many equal ones
  for (int64_t i = 0; whole && i < op.x.elements(); ++i) encode(op.x, i, std::nearbyint(decode(op.x, i)));
  if (dtype != DType::i32)
    for (const double special : {0.0, -0.0, double{INFINITY}, -double{INFINITY}, std::nan("")})
      for (int64_t times = draw.integer(0, 2); times > 0; --times)
        encode(op.x, draw.integer(0, op.x.elements() - 1), special);
  op.y = draw.empty(dtype, {rows, k});
  op.index = draw.empty(DType::i32, {rows, k});
  op.descending = draw.flip();
  return op;
}

Op cumulative_sum(Draw& draw) {
  draw.sometimes_misalign();
  CumulativeSum op;
  op.x = draw.tensor(draw.pick({DType::f32, DType::bf16, DType::f16}), {draw.size(20), draw.size(700)});
  op.y = draw.flip() ? op.x : draw.empty_like(op.x);
  op.reverse = draw.flip();
  return op;
}

Chain cumulative_sum_chain(Draw& draw) {
  CumulativeSum forward;
  forward.x = draw.tensor(DType::f32, {draw.size(4), draw.size(9)});
  forward.y = draw.empty_like(forward.x);
  forward.reverse = draw.flip();
  const View dout = draw.like(forward.y);
  CumulativeSum gradient{dout, draw.empty_like(forward.x), !forward.reverse};
  return {forward, {gradient}, forward.y, dout, {{forward.x, gradient.y}}};
}

}  // namespace

template <class T>
void reference(const Sort& op, Sheet<T>& sheet) {
  const Array<T> x = sheet.in(op.x);
  Array<T>& y = sheet.out(op.y, Sheet<T>::Check::exact);
  Array<T>& index = sheet.out(op.index, Sheet<T>::Check::exact);
  const int64_t n = op.x.shape[1], k = op.y.shape[1];
  for (int64_t r = 0; r < op.x.shape[0]; ++r) {
    std::vector<int64_t> columns;
    for (int64_t j = 0; j < n; ++j) columns.push_back(j);
    const auto value = [&](int64_t j) { return value_of(x(r, j)); };
    const auto before = [&](double a, double b) { return std::isnan(b) ? !std::isnan(a) : a < b; };
    std::stable_sort(columns.begin(), columns.end(), [&](int64_t a, int64_t b) {
      return op.descending ? before(value(b), value(a)) : before(value(a), value(b));
    });
    for (int64_t j = 0; j < k; ++j) {
      const int64_t column = columns[static_cast<size_t>(j)];
      y(r, j) = x(r, column);
      index(r, j) = T(static_cast<double>(column));
    }
  }
}

template <class T>
void reference(const CumulativeSum& op, Sheet<T>& sheet) {
  using std::fabs;
  const Array<T> x = sheet.in(op.x);
  Array<T>& y = sheet.out(op.y);
  const int64_t n = op.x.shape[1];
  for (int64_t r = 0; r < op.x.shape[0]; ++r) {
    T sum = T(0), sizes = T(0);
    for (int64_t j = 0; j < n; ++j) {
      const int64_t i = op.reverse ? n - 1 - j : j;
      sum = sum + x(r, i), sizes = sizes + fabs(x(r, i));
      y(r, i) = sum + (sizes - sizes);  // of any order: what adding the sizes may lose
    }
  }
}

QENG_CONFORMANCE(Sort, .make = sort, .free_shape = {"x"});
QENG_CONFORMANCE(CumulativeSum, .make = cumulative_sum, .derivatives = {{"cumulative_sum", cumulative_sum_chain}});

}  // namespace qeng::conformance
