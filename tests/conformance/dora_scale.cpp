// DoraScale.
#include "tests/conformance/table.h"

namespace qeng::conformance {
namespace {

Op dora_scale(Draw& draw) {
  draw.sometimes_misalign();
  DoraScale op;
  const int64_t out = draw.size(300), rank = draw.size(40);
  op.b = draw.tensor(draw.float_dtype(), {out, rank}), op.cross = draw.tensor(DType::f32, {rank, out});
  // The square of a length: above what the drawn sums bring.
  op.squares = draw.tensor(DType::f32, {out}, 5, 20.0 * static_cast<double>(rank) + 40);
  op.magnitude = draw.tensor(DType::f32, {out});
  op.inverse = draw.empty_like(op.magnitude), op.scale = draw.empty_like(op.magnitude);
  return op;
}

}  // namespace

template <class T>
void reference(const DoraScale& op, Sheet<T>& sheet) {
  using std::sqrt;
  const Array<T> squares = sheet.in(op.squares), magnitude = sheet.in(op.magnitude), b = sheet.in(op.b),
                 cross = sheet.in(op.cross);
  Array<T>&inverse = sheet.out(op.inverse), &scale = sheet.out(op.scale);
  for (int64_t i = 0; i < squares.size(); ++i) {
    T sum = T(0);
    for (int64_t k = 0; k < b.shape[1]; ++k) sum += b(i, k) * cross(k, i);
    inverse[i] = T(1) / sqrt(squares[i] + sum);
    scale[i] = magnitude[i] * inverse[i];
  }
}

QENG_CONFORMANCE(DoraScale, .make = dora_scale);

}  // namespace qeng::conformance
