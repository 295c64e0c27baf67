// Dropout, which is its own gradient.
#include "tests/conformance/philox.h"
#include "tests/conformance/table.h"

namespace qeng::conformance {
namespace {

Op dropout(Draw& draw) {
  draw.sometimes_misalign();
  Dropout op;
  op.x = draw.tensor(draw.float_dtype(), {draw.size(60), draw.size(200)});
  op.y = draw.flip() ? op.x : draw.empty_like(op.x);
  op.rng = draw.rng();
  op.p = draw.pick({0.0f, 0.1f, 0.5f, 0.9f});
  op.subsequence = static_cast<uint32_t>(draw.integer(0, 1000));
  return op;
}

Chain dropout_chain(Draw& draw) {
  Dropout forward;
  forward.x = draw.tensor(DType::f32, {draw.size(6), draw.size(30)}), forward.y = draw.empty_like(forward.x);
  forward.rng = draw.values(DType::i64, {7, 3}), forward.p = 0.4f, forward.subsequence = 5;
  const View dout = draw.like(forward.y);
  Dropout gradient = forward;
  gradient.x = dout, gradient.y = draw.empty_like(forward.x);
  return {forward, {gradient}, forward.y, dout, {{forward.x, gradient.y}}};
}

}  // namespace

template <class T>
void reference(const Dropout& op, Sheet<T>& sheet) {
  const Array<T> x = sheet.in(op.x);
  const auto rng = sheet.integers(op.rng);
  Array<T>& y = sheet.out(op.y);
  for (int64_t i = 0; i < y.size(); ++i) {
    const double drawn = philox_uniform(rng, op.subsequence, i);
    y[i] = drawn >= double{op.p} ? x[i] / (T(1) - T(op.p)) : T(0);
  }
}

QENG_CONFORMANCE(Dropout, .make = dropout, .derivatives = {{"dropout", dropout_chain}});

}  // namespace qeng::conformance
