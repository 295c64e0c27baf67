// Route.
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
  op.first = draw.empty(DType::i32, {experts + 1});
  return op;
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
  Array<T>& first = sheet.out(op.first, Sheet<T>::Check::exact);
  int64_t next = 0;
  for (int64_t e = 0; e < experts; ++e) {
    for (const int64_t place : places[static_cast<size_t>(e)]) order[next++] = T(static_cast<double>(place));
    first[e + 1] = T(static_cast<double>(next));
  }
}

QENG_CONFORMANCE(Route, .make = route);

}  // namespace qeng::conformance
