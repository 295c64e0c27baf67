// HeadLinear.
#include "tests/conformance/table.h"

namespace qeng::conformance {
namespace {

Op head_linear(Draw& draw) {
  draw.sometimes_misalign();
  HeadLinear op;
  const int64_t bases = draw.integer(1, 4), group = draw.integer(1, 4), dim = 16 * draw.integer(1, 8),
                out = draw.flip() ? dim : 16 * draw.integer(1, 8);
  op.x = draw.tensor(draw.float_dtype(), {draw.size(90), bases * group, dim});
  op.w = draw.tensor(DType::f32, {bases, dim, out}, 1 / std::sqrt(static_cast<double>(dim)));
  if (draw.flip()) op.bias = draw.tensor(DType::f32, {bases, out});
  op.y = draw.empty(op.x.dtype, {op.x.shape[0], bases * group, out});
  return op;
}

}  // namespace

template <class T>
void reference(const HeadLinear& op, Sheet<T>& sheet) {
  const Array<T> x = sheet.in(op.x), w = sheet.in(op.w), bias = op.bias ? sheet.in(op.bias) : Array<T>();
  Array<T>& y = sheet.out(op.y);
  const int64_t heads = op.x.shape[1], group = heads / op.w.shape[0];
  for (int64_t t = 0; t < op.x.shape[0]; ++t)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t j = 0; j < op.w.shape[2]; ++j) {
        T sum = op.bias ? bias(h / group, j) : T(0);
        for (int64_t d = 0; d < op.x.shape[2]; ++d) sum += x(t, h, d) * w(h / group, d, j);
        y(t, h, j) = sum;
      }
}

QENG_CONFORMANCE(HeadLinear, .make = head_linear);

}  // namespace qeng::conformance
