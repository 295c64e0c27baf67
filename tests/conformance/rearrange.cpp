// Rearrange, Gather, ScatterAdd.
#include "tests/conformance/table.h"

namespace qeng::conformance {
namespace {

DType plain_dtype(Draw& draw) {
  return draw.pick({DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8});
}
DType storable_float(Draw& draw) { return draw.pick({DType::f32, DType::bf16, DType::f16}); }

// Numbers that are whole where the dtype is an integer's.
View numbers(Draw& draw, DType dtype, std::initializer_list<int64_t> shape) {
  return dtype == DType::i32 || dtype == DType::i64 || dtype == DType::u8 ? draw.tensor(dtype, shape, 20, 100)
                                                                          : draw.tensor(dtype, shape);
}

// Dimensions in a random order in memory, forwards or backwards, with gaps or without, repeated where that may be;
// elements: what the view has to have.
Strides places(Draw& draw, const View& space, bool dense, bool repeats, int64_t& elements) {
  Strides result;
  std::vector<int> order;
  for (int d = 0; d < space.rank; ++d)
    order.insert(order.begin() + draw.integer(0, static_cast<int64_t>(order.size())), d);
  int64_t span = 1;
  for (const int d : order) {
    if (repeats && draw.integer(0, 3) == 0) continue;
    const int64_t stride = span * (dense ? 1 : draw.pick({1, 1, 1, 2, 3}));
    const bool backwards = draw.integer(0, 3) == 0;
    result.stride[d] = backwards ? -stride : stride;
    if (backwards) result.first += stride * (space.shape[d] - 1);
    span = stride * space.shape[d];
  }
  const int64_t before = dense ? 0 : draw.integer(0, 5);
  result.first += before;
  elements = before + span + (dense ? 0 : draw.integer(0, 5));
  return result;
}

Op rearrange(Draw& draw) {
  draw.sometimes_misalign();
  Rearrange op;
  op.acc = draw.integer(0, 2) == 0;
  op.space.rank = static_cast<int>(draw.integer(1, 4));
  for (int d = 0; d < op.space.rank; ++d) op.space.shape[d] = draw.size(op.space.rank < 3 ? 90 : 14);
  const DType dtype = op.acc ? storable_float(draw) : plain_dtype(draw);
  int64_t in = 0, out = 0;
  op.from = places(draw, op.space, draw.flip(), draw.flip(), in);
  op.to = places(draw, op.space, draw.flip(), false, out);
  op.x = numbers(draw, dtype, {in});
  op.y = op.acc || op.space.elements() != out ? numbers(draw, dtype, {out}) : draw.empty(dtype, {out});
  return op;
}

Chain rearrange_chain(Draw& draw) {
  Rearrange forward;
  forward.space.rank = 2;
  forward.space.shape[0] = draw.size(5), forward.space.shape[1] = draw.size(5);
  int64_t in = 0, out = 0;
  forward.from = places(draw, forward.space, false, false, in);
  forward.to = places(draw, forward.space, true, false, out);
  forward.x = draw.tensor(DType::f32, {in}), forward.y = draw.empty(DType::f32, {out});
  const View dout = draw.like(forward.y);
  Rearrange gradient{dout, draw.tensor(DType::f32, {in}, 0), forward.space, forward.to, forward.from, true};
  return {forward, {gradient}, forward.y, dout, {{forward.x, gradient.y}}};
}

View index(Draw& draw, int64_t outer, int64_t m, int64_t inner, int64_t below) {
  if (draw.flip()) outer = 1;
  if (draw.flip()) inner = 1;
  View view = draw.tokens(outer * m * inner, below);
  view.rank = 3, view.shape[0] = outer, view.shape[1] = m, view.shape[2] = inner;
  return view;
}

Op gather(Draw& draw) {
  draw.sometimes_misalign();
  Gather op;
  const int64_t outer = draw.size(8), n = draw.size(40), m = draw.size(40), inner = draw.size(40);
  const DType dtype = plain_dtype(draw);
  op.x = numbers(draw, dtype, {outer, n, inner});
  op.index = index(draw, outer, m, inner, n);
  op.y = draw.empty(dtype, {outer, m, inner});
  return op;
}

Op scatter_add(Draw& draw) {
  draw.sometimes_misalign();
  ScatterAdd op;
  const int64_t outer = draw.size(8), n = draw.size(40), m = draw.size(40), inner = draw.size(40);
  op.x = draw.tensor(storable_float(draw), {outer, m, inner});
  op.index = index(draw, outer, m, inner, n);
  op.y = draw.tensor(DType::f32, {outer, n, inner});
  return op;
}

Chain gather_chain(Draw& draw) {
  Gather forward;
  const int64_t outer = draw.size(3), n = draw.size(5), m = draw.size(6), inner = draw.size(4);
  forward.x = draw.tensor(DType::f32, {outer, n, inner});
  forward.index = index(draw, outer, m, inner, n);
  forward.y = draw.empty(DType::f32, {outer, m, inner});
  const View dout = draw.like(forward.y);
  ScatterAdd gradient{dout, forward.index, draw.tensor(DType::f32, {outer, n, inner}, 0)};
  return {forward, {gradient}, forward.y, dout, {{forward.x, gradient.y}}};
}

// Where indices of the space lie, in order.
std::vector<int64_t> walk(const View& space, const Strides& places) {
  std::vector<int64_t> found;
  for (int64_t i = 0; i < space.elements(); ++i) {
    int64_t at = places.first;
    for (int64_t rest = i, d = space.rank; d-- > 0; rest /= space.shape[d])
      at += rest % space.shape[d] * places.stride[d];
    found.push_back(at);
  }
  return found;
}

// Calls f(place in the array of n, place in that of m) for each element of the latter, in order.
template <class F>
void each_place(const View& index, const std::vector<int64_t>& values, int64_t n, const View& some, F f) {
  const int64_t outer = some.shape[0], m = some.shape[1], inner = some.shape[2];
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t j = 0; j < m; ++j)
      for (int64_t i = 0; i < inner; ++i) {
        const int64_t its_o = index.shape[0] == 1 ? 0 : o, its_i = index.shape[2] == 1 ? 0 : i;
        const int64_t value = values[static_cast<size_t>((its_o * m + j) * index.shape[2] + its_i)];
        f((o * n + value) * inner + i, (o * m + j) * inner + i);
      }
}

}  // namespace

template <class T>
void reference(const Rearrange& op, Sheet<T>& sheet) {
  const Array<T> x = sheet.in(op.x);
  Array<T>& y = sheet.update(op.y, op.acc || !op.fills(), op.acc ? Sheet<T>::Check::bounded : Sheet<T>::Check::exact);
  const std::vector<int64_t> from = walk(op.space, op.from), to = walk(op.space, op.to);
  for (size_t i = 0; i < from.size(); ++i) y[to[i]] = op.acc ? y[to[i]] + x[from[i]] : x[from[i]];
}

template <class T>
void reference(const Gather& op, Sheet<T>& sheet) {
  const Array<T> x = sheet.in(op.x);
  Array<T>& y = sheet.out(op.y, Sheet<T>::Check::exact);
  each_place(op.index, sheet.integers(op.index), op.x.shape[1], op.y,
             [&](int64_t whole, int64_t some) { y[some] = x[whole]; });
}

template <class T>
void reference(const ScatterAdd& op, Sheet<T>& sheet) {
  const Array<T> x = sheet.in(op.x);
  Array<T>& y = sheet.update(op.y);
  each_place(op.index, sheet.integers(op.index), op.y.shape[1], op.x,
             [&](int64_t whole, int64_t some) { y[whole] = y[whole] + x[some]; });
}

QENG_CONFORMANCE(Rearrange, .make = rearrange, .free_shape = {"x", "y"},
                 .derivatives = {{"rearrange", rearrange_chain}});
QENG_CONFORMANCE(Gather, .make = gather);
QENG_CONFORMANCE(ScatterAdd, .make = scatter_add, .derivatives = {{"scatter_add", gather_chain}});

}  // namespace qeng::conformance
