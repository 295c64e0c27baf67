// Fp8Round and Fp8Matmul.
#include <cmath>

#include "tests/conformance/table.h"

namespace qeng::conformance {
namespace {

// The numbers of E4M3 by their definition.
double value_of_code(int code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  const double magnitude = exponent ? std::ldexp(1 + fraction / 8.0, exponent - 7) : std::ldexp(fraction, -9);
  return (code & 127) == 127 ? std::nan("") : code & 128 ? -magnitude : magnitude;
}

// The code of the nearest, of two at the same distance the even one: by trying all.
int nearest_code(double x) {
  int best = 0;
  for (int code = 0; code < 127; ++code) {
    const double off = std::fabs(value_of_code(code) - std::fabs(x)),
                 known = std::fabs(value_of_code(best) - std::fabs(x));
    if (off < known || (off == known && code % 2 == 0)) best = code;
  }
  return std::signbit(x) ? best | 128 : best;
}

// Magnitudes of many powers of two, some beyond what is not 0 beside the largest; at times one that is not finite.
Op fp8_round(Draw& draw) {
  draw.sometimes_misalign();
  Fp8Round op;
  const bool whole = draw.flip();
  int64_t rows = draw.size(draw.integer(0, 3) ? 70 : 300), columns = draw.size(draw.integer(0, 3) ? 90 : 300);
  if (whole) rows = (rows + 15) / 16 * 16, columns = (columns + 15) / 16 * 16;
  op.x = draw.tensor(draw.float_dtype(), {rows, columns}, draw.pick({1.0, 1e-3, 400.0, 1e-30}));
  for (int64_t i = draw.integer(0, 40); i > 0; --i) {
    const int64_t at = draw.integer(0, op.x.elements() - 1);
    encode(op.x, at, decode(op.x, at) * std::ldexp(1, static_cast<int>(draw.integer(-20, 4))));
  }
  const int64_t special = draw.integer(0, 9);
  if (special == 0) encode(op.x, draw.integer(0, op.x.elements() - 1), draw.pick({double{INFINITY}, std::nan("")}));
  for (int64_t i = 0; special == 1 && i < op.x.elements(); ++i) encode(op.x, i, 0);
  const int64_t absent = draw.integer(0, 3);
  if (absent != 0) op.y = draw.empty(DType::u8, {rows, columns});
  if (absent != 1) op.yt = draw.empty(DType::u8, {columns, rows});
  op.scale = draw.empty(DType::f32, {1});
  return op;
}

View codes(Draw& draw, int64_t rows, int64_t columns) {
  const View view = draw.empty(DType::u8, {rows, columns});
  for (int64_t i = 0; i < view.elements(); ++i) {
    const int64_t code = draw.integer(0, 255);
    encode(view, i, static_cast<double>((code & 127) == 127 ? 0 : code));
  }
  return view;
}

Op fp8_matmul(Draw& draw) {
  draw.sometimes_misalign();
  Fp8Matmul op;
  const bool whole = draw.flip();
  const auto size = [&](int64_t most) { return whole ? 16 * draw.size((most + 15) / 16) : draw.size(most); };
  const int64_t m = draw.size(90), n = size(90), k = size(130);
  op.a = codes(draw, m, k), op.b = codes(draw, n, k);
  const auto scale = [&] { return draw.values(DType::f32, {std::ldexp(1, static_cast<int>(draw.integer(-12, 6)))}); };
  op.scale_a = scale(), op.scale_b = scale();
  const DType result = draw.float_dtype();
  op.acc = draw.flip();
  if (draw.integer(0, 3) == 0) op.bias = draw.tensor(draw.flip() ? DType::f32 : result, {n});
  op.c = op.acc ? draw.tensor(result, {m, n}) : draw.empty(result, {m, n});
  return op;
}

}  // namespace

template <class T>
void reference(const Fp8Round& op, Sheet<T>& sheet) {
  const Array<T> x = sheet.in(op.x);
  double most = 0;
  bool finite = true;
  for (const T& value : x.values)
    finite = finite && std::isfinite(value_of(value)), most = std::fmax(most, std::fabs(value_of(value)));
  double scale = finite ? std::ldexp(1, -126) : std::nan("");
  while (finite && most / scale > 448) scale *= 2;
  const auto exact = Sheet<T>::Check::exact;
  sheet.out(op.scale, exact)[0] = scale;
  const int64_t rows = op.x.rows(), columns = op.x.columns();
  std::vector<double> all;
  for (const T& value : x.values) all.push_back(finite ? nearest_code(value_of(value) / scale) : 127);
  if (op.y) {
    Array<T>& y = sheet.out(op.y, exact);
    for (int64_t i = 0; i < rows * columns; ++i) y[i] = all[i];
  }
  if (!op.yt) return;
  Array<T>& yt = sheet.out(op.yt, exact);
  for (int64_t i = 0; i < rows * columns; ++i) yt[i % columns * rows + i / columns] = all[i];
}

template <class T>
void reference(const Fp8Matmul& op, Sheet<T>& sheet) {
  const std::vector<int64_t> a = sheet.integers(op.a), b = sheet.integers(op.b);
  const T scale = T(decode(op.scale_a, 0) * decode(op.scale_b, 0));
  const int64_t n = op.c.columns(), k = op.a.columns();
  const Array<T> bias = op.bias ? sheet.in(op.bias) : Array<T>();
  Array<T>& c = sheet.update(op.c, op.acc);
  for (int64_t i = 0; i < c.size(); ++i) {
    T sum = 0;
    for (int64_t l = 0; l < k; ++l)
      sum += T(value_of_code(static_cast<int>(a[i / n * k + l])) * value_of_code(static_cast<int>(b[i % n * k + l])));
    if (op.bias) c[i] = kept(c[i] + bias[i % n], unit_roundoff(op.c.dtype));
    c[i] += scale * sum;
  }
}

QENG_CONFORMANCE(Fp8Round, .make = fp8_round);
QENG_CONFORMANCE(Fp8Matmul, .make = fp8_matmul);

}  // namespace qeng::conformance
