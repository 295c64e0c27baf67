// Generators of the ops of one-bit training.
#include "tests/conformance/table.h"

namespace qeng::conformance {
namespace {

View some_rng(Draw& draw) {
  return draw.values(DType::i64, {static_cast<double>(draw.integer(0, int64_t{1} << 40)),
                                  static_cast<double>(draw.integer(0, int64_t{1} << 33))});
}
View small_integers(Draw& draw, DType dtype, std::initializer_list<int64_t> shape) {
  const View view = draw.empty(dtype, shape);
  for (int64_t i = 0; i < view.elements(); ++i) encode(view, i, static_cast<double>(draw.integer(-6, 6)));
  return view;
}

}  // namespace

Op scale_columns(Draw& draw) {
  if (draw.integer(0, 3) == 0) draw.misalign();
  ScaleColumns op;
  op.x = draw.tensor(draw.float_dtype(), {draw.size(40), draw.size(200)});
  op.scale = draw.tensor(DType::f32, {op.x.columns()});
  if (draw.flip()) op.bias = draw.tensor(draw.flip() ? DType::f32 : op.x.dtype, {op.x.columns()});
  op.y = draw.empty_like(op.x);
  return op;
}

Op scale_columns_grad(Draw& draw) {
  if (draw.integer(0, 3) == 0) draw.misalign();
  ScaleColumnsGrad op;
  op.x = draw.tensor(draw.float_dtype(), {draw.size(200), draw.size(150)});
  op.scale = draw.tensor(DType::f32, {op.x.columns()});
  op.dy = draw.like(op.x), op.dx = draw.flip() ? op.dy : draw.empty_like(op.x);
  op.acc = draw.flip();
  if (draw.integer(0, 3))
    op.dscale = op.acc ? draw.tensor(DType::f32, {op.x.columns()}) : draw.empty(DType::f32, {op.x.columns()});
  return op;
}

Op pulse_grad(Draw& draw) {
  if (draw.integer(0, 3) == 0) draw.misalign();
  PulseGrad op;
  const int64_t rows = draw.size(40), n = draw.size(60), k = 32 * draw.integer(1, 9), past = draw.integer(0, 3);
  const DType dtype = draw.float_dtype();
  op.first = draw.integer(0, 3);
  op.dy = small_integers(draw, dtype, {rows, op.first + n + past}), op.x = small_integers(draw, dtype, {rows, k});
  op.pulses = draw.empty(draw.flip() ? DType::ternary : DType::u8, {n, k});
  const double strength =
      op.pulses.dtype == DType::u8 ? draw.pick({0.01, 0.7, 10.3, 200.1}) : draw.pick({0.0, 0.31, 1.437, 2.9, 1e30});
  op.weights = draw.tensor(DType::one_bit, {n, k});
  op.hyper = draw.values(DType::f32, {strength, draw.pick({0.0, 0.1, 1.3}), 0, 0});
  op.rng = some_rng(draw), op.stream = static_cast<uint32_t>(draw.integer(0, 1000));
  return op;
}

Op inertia(Draw& draw) {
  if (draw.integer(0, 3) == 0) draw.misalign();
  Inertia op;
  const int64_t n = draw.size(50), k = 32 * draw.integer(1, 9);
  op.weights = draw.tensor(DType::one_bit, {n, k});
  if (draw.flip()) {
    op.state = draw.tensor(DType::one_bit, {draw.integer(1, 4), n, k});
    op.pulses = draw.tensor(DType::ternary, {n, k});
  } else {
    op.bop = draw.flip();
    op.state = draw.empty(DType::u8, {n, k}), op.pulses = draw.empty(DType::u8, {n, k});
    const int64_t most = draw.pick<int64_t>({2, 30, 127});
    for (int64_t i = 0; i < n * k; ++i) {
      const int64_t pulse = draw.flip() ? 0 : draw.integer(-most, most), momentum = draw.integer(-127, 127);
      encode(op.pulses, i, static_cast<double>(pulse < 0 ? pulse + 256 : pulse));
      encode(op.state, i,
             static_cast<double>(!op.bop        ? draw.integer(0, draw.flip() ? 255 : 5)
                                 : momentum < 0 ? momentum + 256
                                                : momentum));
    }
  }
  op.counts = draw.values(DType::i64, {7, static_cast<double>(int64_t{1} << 33)});
  op.hyper = draw.values(DType::f32, {0, 0, draw.pick({0.02, 0.5}), draw.pick({0.05, 0.4})});
  op.rng = some_rng(draw), op.stream = static_cast<uint32_t>(draw.integer(0, 1000));
  return op;
}

Op count_levels(Draw& draw) {
  if (draw.integer(0, 3) == 0) draw.misalign();
  CountLevels op;
  const int64_t n = draw.size(80), k = 32 * draw.integer(1, 9);
  if (draw.flip()) {
    op.state = draw.tensor(DType::one_bit, {draw.integer(1, 4), n, k});
  } else {
    op.state = draw.empty(DType::u8, {n, k - draw.integer(0, 31)});
    for (int64_t i = 0; i < op.state.elements(); ++i) encode(op.state, i, static_cast<double>(draw.integer(0, 255)));
  }
  std::vector<double> before(16);
  for (double& count : before) count = static_cast<double>(draw.integer(0, int64_t{1} << 34));
  op.counts = draw.values(DType::i64, before);
  return op;
}

Op pack_signs(Draw& draw) {
  if (draw.integer(0, 3) == 0) draw.misalign();
  PackSigns op;
  op.x = draw.tensor(DType::f32, {draw.size(40), 32 * draw.integer(1, 9)});
  for (int64_t i = 0; i < op.x.elements(); i += 7) encode(op.x, i, i % 2 ? -0.0 : 0.0);
  op.y = draw.resized(op.x, DType::one_bit);
  return op;
}

Op clip_to_grid(Draw& draw) {
  if (draw.integer(0, 3) == 0) draw.misalign();
  ClipToGrid op;
  op.x = draw.tensor(DType::f32, {draw.size(40), draw.size(200)}, draw.pick({0.3, 2.0}));
  op.y = draw.flip() ? op.x : draw.empty_like(op.x);
  op.levels = draw.pick({0, 1, 7, 127});
  op.rng = some_rng(draw), op.stream = static_cast<uint32_t>(draw.integer(0, 1000));
  return op;
}

}  // namespace qeng::conformance
