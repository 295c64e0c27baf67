// CausalConv and its gradient.
#include <algorithm>

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
  // Sequences with rows of earlier steps, in pages of their own. What is not needed holds NaN.
  const auto cu = Sheet<double>().integers(op.cu);
  const int64_t count = op.cu.elements() - 1;
  std::vector<double> lengths, order;
  op.page_tokens = draw.pick<int64_t>({1, 2, 16, 64, 7});
  int64_t most = 1;
  for (int64_t s = 0; s < count; ++s) {
    lengths.push_back(static_cast<double>(cu[static_cast<size_t>(s) + 1] - cu[static_cast<size_t>(s)]) +
                      static_cast<double>(draw.integer(0, 2) ? draw.size(40) : 0));
    most = std::max(most, (static_cast<int64_t>(lengths.back()) + op.page_tokens - 1) / op.page_tokens);
  }
  for (int64_t i = most * count - 1; i >= 0; --i) order.push_back(static_cast<double>(i));
  const int64_t depth = op.w.columns() - 1 + draw.integer(0, 5);
  op.state = draw.empty(DType::f32, {most * count + draw.integer(1, 3), depth, op.x.columns()});
  op.lengths = draw.values(DType::i32, lengths), op.pages = draw.values(DType::i32, order);
  op.pages.rank = 2, op.pages.shape[0] = count, op.pages.shape[1] = most;
  for (int64_t s = 0; s < count; ++s) {
    const int64_t begun = static_cast<int64_t>(lengths[static_cast<size_t>(s)]) -
                          (cu[static_cast<size_t>(s) + 1] - cu[static_cast<size_t>(s)]);
    for (int64_t t = std::max<int64_t>(0, begun - op.w.columns() + 1); t < begun; ++t)
      for (int64_t c = 0; c < op.x.columns(); ++c) {
        const int64_t page = static_cast<int64_t>(order[static_cast<size_t>(s * most + t / op.page_tokens)]);
        encode(op.state, (page * depth + t % depth) * op.x.columns() + c, draw.normal());
      }
  }
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
  const Array<T> old = op.state ? sheet.in(op.state) : Array<T>();
  Array<T>* state = op.state ? &sheet.update(op.state, true, Sheet<T>::Check::exact) : nullptr;
  const auto lengths = op.state ? sheet.integers(op.lengths) : cu, pages = op.state ? sheet.integers(op.pages) : cu;
  const int64_t tail = op.w.columns() - 1;
  for (size_t s = 0; s + 1 < cu.size(); ++s) {
    const int64_t rows = cu[s + 1] - cu[s], begun = op.state ? lengths[s] - rows : 0;
    const auto place = [&](int64_t t, int64_t c) {  // of row t of the sequence
      const int64_t page = pages[s * static_cast<size_t>(op.pages.shape[1]) + static_cast<size_t>(t / op.page_tokens)];
      return (page * op.state.shape[1] + t % op.state.shape[1]) * op.x.columns() + c;
    };
    for (int64_t c = 0; c < op.x.columns(); ++c) {
      for (int64_t t = begun; t < begun + rows; ++t) {
        T sum = op.bias ? bias[c] : T(0);
        for (int64_t j = std::max<int64_t>(0, tail - t); j <= tail; ++j) {
          const int64_t from = t - tail + j;
          sum += w(c, j) * (from >= begun ? x(cu[s] + from - begun, c) : old[place(from, c)]);
        }
        y(cu[s] + t - begun, c) = sum;
        // What a page keeps: the last of its rows.
        const int64_t end = state ? std::min(begun + rows, (t / op.page_tokens + 1) * op.page_tokens) : 0;
        if (state && t >= end - op.state.shape[1]) (*state)[place(t, c)] = x(cu[s] + t - begun, c);
      }
    }
  }
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

QENG_CONFORMANCE(CausalConv, .make = causal_conv, .free_shape = {"cu", "w", "state", "pages"});
QENG_CONFORMANCE(CausalConvGrad, .make = causal_conv_grad, .free_shape = {"cu", "w"},
                 .derivatives = {{"causal_conv", causal_conv_chain}});

}  // namespace qeng::conformance
