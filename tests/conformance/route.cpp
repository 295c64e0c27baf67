// Route, Dispatch and Combine.
#include <algorithm>
#include <cmath>

#include "tests/conformance/table.h"

namespace qeng::conformance {
namespace {

Op route(Draw& draw) {
  draw.sometimes_misalign();
  Route op;
  const int64_t tokens = draw.size(60), experts = draw.integer(0, 7) ? draw.size(40) : draw.integer(300, 512);
  const int64_t k = draw.integer(0, 3) ? std::min(experts, draw.size(8)) : draw.integer(1, experts);
  op.scores = draw.tensor(DType::f32, {tokens, experts});
  const bool whole = draw.flip();  // many equal ones
  for (int64_t i = 0; whole && i < op.scores.elements(); ++i)
    encode(op.scores, i, std::nearbyint(decode(op.scores, i)));
  for (const double special : {0.0, -0.0, double{INFINITY}, -double{INFINITY}, std::nan("")})
    for (int64_t times = draw.integer(0, 2); times > 0; --times)
      encode(op.scores, draw.integer(0, op.scores.elements() - 1), special);
  if (draw.flip()) op.bias = draw.tensor(DType::f32, {experts});
  op.choice = draw.empty(DType::i32, {tokens, k}), op.order = draw.empty(DType::i32, {tokens * k});
  op.first = draw.empty(DType::i32, {experts + 1}), op.place = draw.empty(DType::i32, {tokens, k});
  return op;
}

// [tokens, k]: each of 0 .. tokens * k - 1 once.
View places(Draw& draw, int64_t tokens, int64_t k) {
  std::vector<double> list;
  for (int64_t i = 0; i < tokens * k; ++i) list.push_back(static_cast<double>(i));
  for (int64_t i = tokens * k - 1; i > 0; --i)
    std::swap(list[static_cast<size_t>(i)], list[static_cast<size_t>(draw.integer(0, i))]);
  View view = draw.values(DType::i32, list);
  view.rank = 2, view.shape[0] = tokens, view.shape[1] = k;
  return view;
}

Op dispatch(Draw& draw) {
  draw.sometimes_misalign();
  Dispatch op;
  const int64_t tokens = draw.size(20), k = draw.size(6), n = draw.columns(150);
  const DType dtype = draw.float_dtype();
  op.x = draw.tensor(dtype, {tokens, n}), op.place = places(draw, tokens, k);
  if (draw.flip()) op.weight = draw.tensor(DType::f32, {tokens, k});
  op.y = draw.empty(dtype, {tokens * k, n});
  if (draw.flip()) op.rows = draw.like(op.y), op.dot = draw.empty(DType::f32, {tokens, k});
  return op;
}

Op combine(Draw& draw) {
  draw.sometimes_misalign();
  Combine op;
  const int64_t tokens = draw.size(20), k = draw.size(6), n = draw.columns(150);
  op.x = draw.tensor(draw.float_dtype(), {tokens * k, n}), op.place = places(draw, tokens, k);
  if (draw.flip()) op.weight = draw.tensor(DType::f32, {tokens, k});
  op.y = draw.empty(op.x.dtype, {tokens, n});
  return op;
}

Chain dispatch_chain(Draw& draw) {
  Dispatch forward;
  Combine dx;
  const int64_t tokens = draw.size(5), k = draw.size(3);
  forward.x = draw.tensor(DType::f32, {tokens, 4}), forward.place = dx.place = places(draw, tokens, k);
  forward.y = draw.empty(DType::f32, {tokens * k, 4});
  const View dout = draw.like(forward.y);
  dx.x = dout, dx.y = draw.empty_like(forward.x);
  return {forward, {dx}, forward.y, dout, {{forward.x, dx.y}}};
}

Chain combine_chain(Draw& draw) {
  Combine forward;
  Dispatch backward;
  const int64_t tokens = draw.size(5), k = draw.size(3);
  forward.x = draw.tensor(DType::f32, {tokens * k, 4}), forward.place = backward.place = places(draw, tokens, k);
  forward.weight = backward.weight = draw.tensor(DType::f32, {tokens, k});
  forward.y = draw.empty(DType::f32, {tokens, 4});
  const View dout = draw.like(forward.y);
  backward.x = dout, backward.rows = forward.x;
  backward.y = draw.empty_like(forward.x), backward.dot = draw.empty_like(forward.weight);
  return {forward, {backward}, forward.y, dout, {{forward.x, backward.y}, {forward.weight, backward.dot}}};
}

}  // namespace

template <class T>
void reference(const Route& op, Sheet<T>& sheet) {
  const int64_t tokens = op.scores.shape[0], experts = op.scores.shape[1], k = op.choice.shape[1];
  Array<T>& choice = sheet.out(op.choice, Sheet<T>::Check::exact);
  std::vector<std::vector<int64_t>> places(static_cast<size_t>(experts));
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<double> score;
    std::vector<int64_t> all;
    for (int64_t e = 0; e < experts; ++e) {
      const double sum = decode(op.scores, t * experts + e) + (op.bias ? decode(op.bias, e) : 0);
      score.push_back(round_to(DType::f32, sum)), all.push_back(e);
    }
    std::stable_sort(all.begin(), all.end(), [&](int64_t a, int64_t b) {
      const double left = score[static_cast<size_t>(a)], right = score[static_cast<size_t>(b)];
      return std::isnan(right) ? !std::isnan(left) : left > right;
    });
    for (int64_t j = 0; j < k; ++j) {
      const int64_t expert = all[static_cast<size_t>(j)];
      choice(t, j) = T(static_cast<double>(expert));
      places[static_cast<size_t>(expert)].push_back(t * k + j);
    }
  }
  Array<T>& order = sheet.out(op.order, Sheet<T>::Check::exact);
  Array<T>& inverse = sheet.out(op.place, Sheet<T>::Check::exact);
  Array<T>& first = sheet.out(op.first, Sheet<T>::Check::exact);
  int64_t next = 0;
  for (int64_t e = 0; e < experts; ++e) {
    for (const int64_t place : places[static_cast<size_t>(e)]) {
      inverse[place] = T(static_cast<double>(next));
      order[next++] = T(static_cast<double>(place));
    }
    first[e + 1] = T(static_cast<double>(next));
  }
}

template <class T>
void reference(const Dispatch& op, Sheet<T>& sheet) {
  const Array<T> x = sheet.in(op.x);
  const std::vector<int64_t> place = sheet.integers(op.place);
  const Array<T> weight = op.weight ? sheet.in(op.weight) : Array<T>(), rows = op.dot ? sheet.in(op.rows) : Array<T>();
  Array<T>& y = sheet.out(op.y);
  Array<T> none;
  Array<T>& dot = op.dot ? sheet.out(op.dot) : none;
  const int64_t k = op.place.columns(), n = op.x.columns();
  for (int64_t i = 0; i < op.place.elements(); ++i) {
    const int64_t to = place[static_cast<size_t>(i)], t = i / k;
    T sum = 0;
    for (int64_t l = 0; l < n; ++l) {
      y(to, l) = op.weight ? weight[i] * x(t, l) : x(t, l);
      if (op.dot) sum += x(t, l) * rows(to, l);
    }
    if (op.dot) dot[i] = sum;
  }
}

template <class T>
void reference(const Combine& op, Sheet<T>& sheet) {
  const Array<T> x = sheet.in(op.x);
  const std::vector<int64_t> place = sheet.integers(op.place);
  const Array<T> weight = op.weight ? sheet.in(op.weight) : Array<T>();
  Array<T>& y = sheet.out(op.y);
  const int64_t k = op.place.columns(), n = op.x.columns();
  for (int64_t t = 0; t < op.y.shape[0]; ++t)
    for (int64_t l = 0; l < n; ++l) {
      T sum = 0;
      for (int64_t i = t * k; i < (t + 1) * k; ++i) {
        const T& each = x(place[static_cast<size_t>(i)], l);
        sum += op.weight ? weight[i] * each : each;
      }
      y(t, l) = sum;
    }
}

QENG_CONFORMANCE(Route, .make = route);
QENG_CONFORMANCE(Dispatch, .make = dispatch, .derivatives = {{"dispatch and combine", dispatch_chain}});
QENG_CONFORMANCE(Combine, .make = combine, .derivatives = {{"combine and dispatch", combine_chain}});

}  // namespace qeng::conformance
