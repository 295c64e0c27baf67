// HeadLinear.
#include "tests/conformance/table.h"

namespace qeng::conformance {
namespace {

// A turn by signs and Hadamard's matrix, twice, for all bases: w has its values exactly.
void add_signs(Draw& draw, HeadLinear& op) {
  const int64_t bases = op.w.shape[0], dim = op.w.shape[1];
  std::vector<double> signs;
  for (int64_t i = 0; i < 3 * dim; ++i) signs.push_back(draw.flip() ? 1 : -1);
  op.signs = draw.values(DType::f32, signs);
  op.signs.rank = 2, op.signs.shape[0] = 3, op.signs.shape[1] = dim;
  const auto element = [](int64_t i, int64_t j) {
    return __builtin_popcountll(static_cast<unsigned long long>(i & j)) % 2 ? -1.0 : 1.0;
  };
  const auto sign = [&](int64_t round, int64_t i) { return signs[static_cast<size_t>(round * dim + i)]; };
  for (int64_t d = 0; d < dim; ++d)
    for (int64_t j = 0; j < dim; ++j) {
      double sum = 0;
      for (int64_t i = 0; i < dim; ++i) sum += element(j, i) * sign(1, i) * element(i, d);
      for (int64_t b = 0; b < bases; ++b)
        encode(op.w, (b * dim + d) * dim + j, sign(2, j) * sum * sign(0, d) / static_cast<double>(dim));
    }
}

Op head_linear(Draw& draw) {
  draw.sometimes_misalign();
  HeadLinear op;
  const bool signs = draw.integer(0, 2) == 0;
  const int64_t bases = draw.integer(1, 4), group = draw.integer(1, 4),
                dim = signs ? draw.pick<int64_t>({16, 32, 64, 128, 256, 512}) : 16 * draw.integer(1, 8),
                out = signs || draw.flip() ? dim : 16 * draw.integer(1, 8);
  op.x = draw.tensor(draw.float_dtype(), {draw.size(90), bases * group, dim});
  op.w = draw.tensor(DType::f32, {bases, dim, out}, 1 / std::sqrt(static_cast<double>(dim)));
  if (signs) add_signs(draw, op);
  if (draw.flip()) op.bias = draw.tensor(DType::f32, {bases, out});
  op.y = draw.empty(op.x.dtype, {op.x.shape[0], bases * group, out});
  return op;
}

}  // namespace

template <class T>
void reference(const HeadLinear& op, Sheet<T>& sheet) {
  const Array<T> x = sheet.in(op.x), w = sheet.in(op.w), bias = op.bias ? sheet.in(op.bias) : Array<T>();
  Array<T>& y = sheet.out(op.y);
  const int64_t heads = op.x.shape[1], group = heads / op.w.shape[0];
  for (int64_t t = 0; t < op.x.shape[0]; ++t)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t j = 0; j < op.w.shape[2]; ++j) {
        T sum = op.bias ? bias(h / group, j) : T(0);
        for (int64_t d = 0; d < op.x.shape[2]; ++d) sum += x(t, h, d) * w(h / group, d, j);
        y(t, h, j) = sum;
      }
}

QENG_CONFORMANCE(HeadLinear, .make = head_linear);

}  // namespace qeng::conformance
