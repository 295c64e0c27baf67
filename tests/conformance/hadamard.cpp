// Hadamard.
#include "tests/conformance/table.h"

namespace qeng::conformance {
namespace {

Op hadamard(Draw& draw) {
  draw.sometimes_misalign();
  Hadamard op;
  op.block = 1 << draw.integer(0, 11);
  op.x = draw.tensor(draw.float_dtype(),
                     {draw.size(op.block > 256 ? 6 : 40), op.block * draw.integer(1, op.block > 256 ? 2 : 5)});
  if (draw.flip()) {
    op.signs = draw.empty(DType::f32, {op.x.columns()});
    for (int64_t i = 0; i < op.x.columns(); ++i) encode(op.signs, i, draw.flip() ? 1 : -1);
  }
  op.inverse = draw.flip();
  op.y = draw.flip() ? op.x : draw.empty_like(op.x);
  return op;
}

Chain hadamard_chain(Draw& draw) {
  Hadamard forward;
  forward.block = 8, forward.inverse = draw.flip();
  forward.x = draw.tensor(DType::f32, {draw.size(4), 24}), forward.y = draw.empty_like(forward.x);
  forward.signs = draw.empty(DType::f32, {24});
  for (int64_t i = 0; i < 24; ++i) encode(forward.signs, i, draw.flip() ? 1 : -1);
  const View dout = draw.like(forward.y);
  Hadamard gradient = forward;
  gradient.x = dout, gradient.y = draw.empty_like(forward.x), gradient.inverse = !forward.inverse;
  return {forward, {gradient}, forward.y, dout, {{forward.x, gradient.y}}};
}

}  // namespace

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

QENG_CONFORMANCE(Hadamard, .make = hadamard, .derivatives = {{"hadamard", hadamard_chain}});

}  // namespace qeng::conformance
