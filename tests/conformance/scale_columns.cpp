// ScaleColumns and its gradient.
#include "tests/conformance/table.h"

namespace qeng::conformance {
namespace {

Op scale_columns(Draw& draw) {
  draw.sometimes_misalign();
  ScaleColumns op;
  op.x = draw.tensor(draw.float_dtype(), {draw.size(40), draw.size(200)});
  op.scale = draw.tensor(DType::f32, {op.x.columns()});
  if (draw.flip()) op.bias = draw.tensor(draw.flip() ? DType::f32 : op.x.dtype, {op.x.columns()});
  op.y = draw.empty_like(op.x);
  return op;
}

Op scale_columns_grad(Draw& draw) {
  draw.sometimes_misalign();
  ScaleColumnsGrad op;
  op.x = draw.tensor(draw.float_dtype(), {draw.size(200), draw.size(150)});
  op.scale = draw.tensor(DType::f32, {op.x.columns()});
  op.dy = draw.like(op.x), op.dx = draw.flip() ? op.dy : draw.empty_like(op.x);
  op.acc = draw.flip();
  if (draw.integer(0, 3))
    op.dscale = op.acc ? draw.tensor(DType::f32, {op.x.columns()}) : draw.empty(DType::f32, {op.x.columns()});
  return op;
}

Chain scale_columns_chain(Draw& draw) {
  ScaleColumns forward;
  forward.x = draw.tensor(DType::f32, {draw.size(5), draw.size(7)}),
  forward.scale = draw.tensor(DType::f32, {forward.x.columns()});
  forward.bias = draw.tensor(DType::f32, {forward.x.columns()}), forward.y = draw.empty_like(forward.x);
  const View dout = draw.like(forward.y);
  ScaleColumnsGrad gradient{forward.x, forward.scale, dout, draw.empty_like(forward.x), draw.empty_like(forward.scale)};
  BiasGrad bias;
  bias.dy = dout, bias.db = draw.empty_like(forward.bias);
  const Pairs pairs = {{forward.x, gradient.dx}, {forward.scale, gradient.dscale}, {forward.bias, bias.db}};
  return {forward, {gradient, bias}, forward.y, dout, pairs};
}

}  // namespace

template <class T>
void reference(const ScaleColumns& op, Sheet<T>& sheet) {
  const Array<T> x = sheet.in(op.x), scale = sheet.in(op.scale), bias = op.bias ? sheet.in(op.bias) : Array<T>();
  Array<T>& y = sheet.out(op.y);
  const int64_t n = op.x.columns();
  for (int64_t i = 0; i < y.size(); ++i) {
    y[i] = x[i] * scale[i % n];
    if (op.bias) y[i] += bias[i % n];
  }
}

template <class T>
void reference(const ScaleColumnsGrad& op, Sheet<T>& sheet) {
  const Array<T> x = sheet.in(op.x), scale = sheet.in(op.scale), dy = sheet.in(op.dy);
  Array<T>& dx = sheet.out(op.dx);
  const int64_t n = op.x.columns();
  for (int64_t i = 0; i < dx.size(); ++i) dx[i] = dy[i] * scale[i % n];
  if (!op.dscale) return;
  Array<T>& dscale = sheet.update(op.dscale, op.acc);
  for (int64_t i = 0; i < dy.size(); ++i) dscale[i % n] += dy[i] * x[i];
}

QENG_CONFORMANCE(ScaleColumns, .make = scale_columns, .derivatives = {{"scale_columns", scale_columns_chain}});
QENG_CONFORMANCE(ScaleColumnsGrad, .make = scale_columns_grad);

}  // namespace qeng::conformance
