// CausalConv and its gradient.
#include <numeric>

#include "tests/conformance/table.h"

namespace qeng::conformance {
namespace {

CausalConv forward_of(Draw& draw, DType dtype, const Documents& documents, int64_t channels) {
  CausalConv op;
  op.x = draw.tensor(dtype, {documents.queries, channels});
  const DType weights = draw.flip() ? DType::f32 : dtype;
  op.w = draw.tensor(weights, {channels, draw.integer(2, 8)});
  if (draw.flip()) op.bias = draw.tensor(weights, {channels});
  op.cu = documents.cu_q, op.y = draw.empty_like(op.x);
  return op;
}

Op causal_conv(Draw& draw) {
  draw.sometimes_misalign();
  const Documents documents = draw.documents(6, 60);
  CausalConv op = forward_of(draw, draw.float_dtype(), documents, draw.size(200));
  if (draw.flip()) return op;
  const int64_t count = documents.cu_q.elements() - 1, slots = count + draw.integer(1, 4);
  op.state = draw.tensor(DType::f32, {slots, op.w.columns() - 1, op.x.columns()});
  std::vector<double> order(static_cast<size_t>(slots));
  std::iota(order.begin(), order.end(), 0.0);
  for (size_t i = order.size() - 1; i > 0; --i)
    std::swap(order[i], order[static_cast<size_t>(draw.integer(0, static_cast<int64_t>(i)))]);
  order.resize(static_cast<size_t>(count));
  op.slots = draw.values(DType::i32, order);
  return op;
}

Op causal_conv_grad(Draw& draw) {
  draw.sometimes_misalign();
  const CausalConv forward = forward_of(draw, draw.float_dtype(), draw.documents(6, 60), draw.size(200));
  CausalConvGrad op{.x = forward.x, .w = forward.w, .cu = forward.cu, .dy = draw.like(forward.x)};
  op.acc = draw.flip();
  const auto sums = [&](std::initializer_list<int64_t> shape) {
    return op.acc ? draw.tensor(DType::f32, shape) : draw.empty(DType::f32, shape);
  };
  if (draw.integer(0, 3)) op.dx = draw.empty_like(op.x);
  if (draw.integer(0, 3)) op.dw = sums({op.w.shape[0], op.w.shape[1]});
  if (draw.flip()) op.dbias = sums({op.x.columns()});
  return op;
}

Chain causal_conv_chain(Draw& draw) {
  CausalConv forward = forward_of(draw, DType::f32, draw.documents(3, 7), draw.size(5));
  if (!forward.bias) forward.bias = draw.tensor(DType::f32, {forward.x.columns()});
  const View dout = draw.like(forward.y);
  CausalConvGrad gradient{.x = forward.x, .w = forward.w, .cu = forward.cu, .dy = dout};
  gradient.dx = draw.empty_like(forward.x), gradient.dw = draw.empty_like(forward.w);
  gradient.dbias = draw.empty_like(forward.bias);
  const Pairs pairs = {{forward.x, gradient.dx}, {forward.w, gradient.dw}, {forward.bias, gradient.dbias}};
  return {forward, {gradient}, forward.y, dout, pairs};
}

}  // namespace

template <class T>
void reference(const CausalConv& op, Sheet<T>& sheet) {
  const Array<T> x = sheet.in(op.x), w = sheet.in(op.w), bias = op.bias ? sheet.in(op.bias) : Array<T>();
  const auto cu = sheet.integers(op.cu);
  Array<T>& y = sheet.out(op.y);
  Array<T> old = op.state ? sheet.in(op.state) : Array<T>(), state = old;
  const int64_t channels = op.x.columns(), tail = op.w.columns() - 1;
  for (size_t s = 0; s + 1 < cu.size(); ++s) {
    const int64_t slot = op.state ? sheet.integers(op.slots)[s] : 0;
    // Row t of the document, those before it those of the state.
    const auto row = [&](int64_t t, int64_t c) {
      if (t >= cu[s]) return x(t, c);
      return op.state ? old(slot, tail + t - cu[s], c) : T(0);
    };
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t t = cu[s]; t < cu[s + 1]; ++t) {
        T sum = op.bias ? bias[c] : T(0);
        for (int64_t j = 0; j <= tail; ++j) sum += w(c, j) * row(t - tail + j, c);
        y(t, c) = sum;
      }
      for (int64_t j = 0; op.state && j < tail; ++j) state(slot, j, c) = row(cu[s + 1] - tail + j, c);
    }
  }
  if (op.state) sheet.out(op.state, Sheet<T>::Check::exact) = state;
}

template <class T>
void reference(const CausalConvGrad& op, Sheet<T>& sheet) {
  const Array<T> x = sheet.in(op.x), w = sheet.in(op.w), dy = sheet.in(op.dy);
  const auto cu = sheet.integers(op.cu);
  Array<T> dx(op.x), dw(op.w), dbias(View(nullptr, DType::f32, {op.x.columns()}));
  const int64_t tail = op.w.columns() - 1;
  for (size_t s = 0; s + 1 < cu.size(); ++s)
    for (int64_t t = cu[s]; t < cu[s + 1]; ++t)
      for (int64_t c = 0; c < op.x.columns(); ++c) {
        dbias[c] += dy(t, c);
        for (int64_t j = 0; j <= tail; ++j) {
          if (t - tail + j < cu[s]) continue;
          dx(t - tail + j, c) += w(c, j) * dy(t, c);
          dw(c, j) += x(t - tail + j, c) * dy(t, c);
        }
      }
  if (op.dx) sheet.out(op.dx) = dx;
  for (const auto& [view, sums] : {std::pair{op.dw, dw}, std::pair{op.dbias, dbias}}) {
    if (!view) continue;
    Array<T>& array = sheet.update(view, op.acc);
    for (int64_t i = 0; i < array.size(); ++i) array[i] += sums[i];
  }
}

QENG_CONFORMANCE(CausalConv, .make = causal_conv, .free_shape = {"cu", "w"});
QENG_CONFORMANCE(CausalConvGrad, .make = causal_conv_grad, .free_shape = {"cu", "w"},
                 .derivatives = {{"causal_conv", causal_conv_chain}});

}  // namespace qeng::conformance
