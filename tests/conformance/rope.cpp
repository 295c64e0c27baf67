// Rope, whose inverse is its gradient.
#include "tests/conformance/table.h"

namespace qeng::conformance {
namespace {

Op rope(Draw& draw) {
  draw.sometimes_misalign();
  Rope op;
  const int64_t head_dim = draw.flip() ? draw.pick<int64_t>({16, 64, 96, 128, 256, 640}) : 2 * draw.size(64);
  const int64_t half = draw.flip() ? head_dim / 2 : draw.flip() ? head_dim / 4 : draw.integer(1, head_dim / 2);
  op.x = draw.tensor(draw.float_dtype(), {draw.size(40), draw.integer(1, 6), head_dim});
  if (draw.flip()) {
    op.x2 = draw.tensor(op.x.dtype, {op.x.shape[0], draw.integer(1, 3), head_dim});
    op.y2 = draw.flip() ? op.x2 : draw.empty_like(op.x2);
  }
  op.positions = draw.tokens(op.x.shape[0], draw.pick<int64_t>({8, 4096, 131072}));
  op.inv_freq = draw.empty(DType::f32, {half});
  for (int64_t i = 0; i < half; ++i)
    encode(op.inv_freq, i, std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half)));
  op.y = draw.flip() ? op.x : draw.empty_like(op.x);
  op.scale = draw.pick({1.0f, 1.2079441f});
  op.inverse = draw.flip(), op.interleaved = draw.integer(0, 2) == 0;
  return op;
}

Chain rope_chain(Draw& draw) {
  Rope forward;
  forward.x = draw.tensor(DType::f32, {draw.size(5), draw.integer(1, 3), 10}), forward.y = draw.empty_like(forward.x);
  forward.positions = draw.tokens(forward.x.shape[0], 50), forward.inv_freq = draw.values(DType::f32, {1, 0.3, 0.01});
  forward.x2 = draw.tensor(DType::f32, {forward.x.shape[0], draw.integer(1, 3), 10}),
  forward.y2 = draw.empty_like(forward.x2);
  forward.scale = 1.25f, forward.interleaved = draw.flip();
  const View dout = draw.like(forward.y), dy2 = draw.like(forward.y2);
  Rope gradient = forward;
  gradient.x = dout, gradient.y = draw.empty_like(forward.x), gradient.inverse = true;
  gradient.x2 = dy2, gradient.y2 = draw.empty_like(forward.x2);
  const Pairs pairs = {{forward.x, gradient.y}, {forward.x2, gradient.y2}};
  return {forward, {gradient}, forward.y, dout, pairs, {}, {{forward.y2, dy2}}};
}

}  // namespace

template <class T>
void reference(const Rope& op, Sheet<T>& sheet) {
  using std::cos, std::sin;
  const Array<T> inv_freq = sheet.in(op.inv_freq);
  const auto positions = sheet.integers(op.positions);
  const int64_t half = inv_freq.size();
  for (const auto& [in, out] : {std::pair(op.x, op.y), std::pair(op.x2, op.y2)}) {
    if (!in) continue;
    const Array<T> x = sheet.in(in);
    Array<T>& y = sheet.out(out);
    y.values = x.values;
    for (int64_t t = 0; t < in.shape[0]; ++t)
      for (int64_t h = 0; h < in.shape[1]; ++h)
        for (int64_t i = 0; i < half; ++i) {
          const T angle = T(static_cast<double>(positions[static_cast<size_t>(t)])) * inv_freq[i];
          const T c = T(op.scale) * cos(angle), s = T(op.scale) * sin(op.inverse ? -angle : angle);
          const int64_t a = op.interleaved ? 2 * i : i, b = op.interleaved ? a + 1 : a + half;
          y(t, h, a) = c * x(t, h, a) - s * x(t, h, b);
          y(t, h, b) = s * x(t, h, a) + c * x(t, h, b);
        }
  }
}

QENG_CONFORMANCE(Rope, .make = rope, .free_shape = {"inv_freq"}, .derivatives = {{"rope", rope_chain}});

}  // namespace qeng::conformance
