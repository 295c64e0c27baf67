// SwiGlu and its gradient.
#include <numbers>
#include <utility>

#include "tests/conformance/table.h"

namespace qeng::conformance {
namespace {

Op swiglu(Draw& draw) {
  draw.sometimes_misalign();
  SwiGlu op;
  op.gate = draw.tensor(draw.float_dtype(), {draw.size(40), draw.size(200)}, draw.pick({1.0, 40.0}));
  op.up = draw.like(op.gate), op.y = draw.empty_like(op.gate), op.gelu = draw.flip();
  return op;
}

Op swiglu_grad(Draw& draw) {
  draw.sometimes_misalign();
  SwiGluGrad op;
  op.gate = draw.tensor(draw.float_dtype(), {draw.size(40), draw.size(200)}, draw.pick({1.0, 40.0}));
  op.up = draw.like(op.gate), op.dy = draw.like(op.gate);
  op.dgate = draw.flip() ? op.gate : draw.empty_like(op.gate);
  op.dup = draw.pick({draw.empty_like(op.gate), op.up, op.dy});
  op.gelu = draw.flip();
  return op;
}

Chain swiglu_chain(Draw& draw) {
  SwiGlu forward;
  forward.gate = draw.tensor(DType::f32, {draw.size(6), draw.size(9)}, 2), forward.up = draw.like(forward.gate);
  forward.y = draw.empty_like(forward.gate), forward.gelu = draw.flip();
  const View dout = draw.like(forward.y);
  SwiGluGrad gradient{forward.gate, forward.up, dout, draw.empty_like(forward.gate), draw.empty_like(forward.gate),
                      forward.gelu};
  return {forward, {gradient}, forward.y, dout, {{forward.gate, gradient.dgate}, {forward.up, gradient.dup}}};
}

template <class T>
T sigmoid(T z) {
  using std::exp;
  return T(1) / (T(1) + exp(-z));
}

// sigmoid(a(z)) and a'(z) of SwiGlu. GELU's sigmoid leaves 0 and 1 by less than 1e-37 beyond 10.
template <class T>
std::pair<T, T> gate_of(T z, bool gelu) {
  if (!gelu) return {sigmoid(z), T(1)};
  const T scale = kept(T(2 * std::sqrt(2 / std::numbers::pi)), 0x1p-24), cubic = kept(T(0.044715), 0x1p-24);
  const T slope = scale * (T(1) + T(3) * cubic * z * z);
  if (std::fabs(value_of(z)) > 10) return {within(T(value_of(z) > 0 ? 1 : 0), 1e-37), slope};
  return {sigmoid(scale * (z + cubic * z * z * z)), slope};
}

}  // namespace

template <class T>
void reference(const SwiGlu& op, Sheet<T>& sheet) {
  const Array<T> gate = sheet.in(op.gate), up = sheet.in(op.up);
  Array<T>& y = sheet.out(op.y);
  for (int64_t i = 0; i < y.size(); ++i) y[i] = gate[i] * gate_of(T(gate[i]), op.gelu).first * up[i];
}

template <class T>
void reference(const SwiGluGrad& op, Sheet<T>& sheet) {
  const Array<T> gate = sheet.in(op.gate), up = sheet.in(op.up), dy = sheet.in(op.dy);
  Array<T>&dgate = sheet.out(op.dgate), &dup = sheet.out(op.dup);
  for (int64_t i = 0; i < dy.size(); ++i) {
    const auto [s, slope] = gate_of(T(gate[i]), op.gelu);
    dup[i] = dy[i] * gate[i] * s;
    dgate[i] = dy[i] * up[i] * s * (T(1) + gate[i] * (T(1) - s) * slope);
  }
}

QENG_CONFORMANCE(SwiGlu, .make = swiglu);
QENG_CONFORMANCE(SwiGluGrad, .make = swiglu_grad, .derivatives = {{"swiglu_grad", swiglu_chain}});

}  // namespace qeng::conformance
