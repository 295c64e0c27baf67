// MatmulSum, LoraDown, LoraDownGrad and LoraUpGrad.
#include "tests/conformance/table.h"

namespace qeng::conformance {
namespace {

// Sizes that vectors of bf16 fit, as tensor cores take them, or any.
struct Sizes {
  DType dtype;
  bool whole;
  explicit Sizes(Draw& draw) : dtype(draw.float_dtype()), whole(draw.flip()) {
    if (whole)
      dtype = DType::bf16;
    else
      draw.sometimes_misalign();
  }
  int64_t of(Draw& draw, int64_t most) const { return whole ? 8 * draw.size((most + 7) / 8) : draw.size(most); }
};

// One sum: a product with a narrow one before it, as an adapter's; or those of several layers; or any.
MatmulSum::Sum sum_of(Draw& draw, const MatmulSum& op, const Sizes& sizes, int64_t m, int64_t n, DType weights,
                      int64_t count) {
  MatmulSum::Sum sum;
  for (int64_t i = 0; i < count; ++i) {
    const bool narrow = i % 2 == 0 && i + 1 < count;
    int64_t k = op.trans_a ? draw.size(200) : sizes.of(draw, narrow ? 40 : 200);
    const DType dtype = narrow ? sizes.dtype : weights;
    if (op.trans_b && is_block(dtype)) k = draw.row_length(weights, 256);
    sum.a.push_back(op.trans_a ? draw.tensor(sizes.dtype, {k, m}) : draw.tensor(sizes.dtype, {m, k}));
    sum.b.push_back(op.trans_b ? draw.tensor(dtype, {n, k}) : draw.tensor(dtype, {k, n}));
  }
  if (draw.integer(0, 3) == 0) sum.bias = draw.tensor(draw.flip() ? DType::f32 : sizes.dtype, {n});
  return sum;
}

// One sum; or those of several layers, which share m or, with trans_a, n; or any.
Op matmul_sum(Draw& draw) {
  const Sizes sizes(draw);
  MatmulSum op;
  const bool stored = draw.integer(0, 4) == 0, acc = draw.integer(0, 3) == 0;
  op.trans_a = draw.integer(0, 2) == 0, op.trans_b = draw.flip() && !(sizes.whole && op.trans_a);
  const DType weights = stored ? draw.stored_dtype(sizes.dtype) : sizes.dtype;
  const auto rows = [&] {
    if (stored || !sizes.whole) return draw.size(stored ? 20 : 70);
    return op.trans_a ? sizes.of(draw, 300) : draw.size(300);
  };
  const auto columns = [&] {
    return !op.trans_b && stored ? draw.row_length(weights, 256) : sizes.of(draw, draw.flip() ? 100 : 300);
  };
  const bool alike = draw.integer(0, 3) > 0;
  const int64_t count = draw.integer(1, 5), m = rows(), n = columns();
  const DType result = draw.flip() ? DType::f32 : sizes.dtype;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t products = count == 1 ? draw.integer(1, 6) : draw.integer(1, 2);
    const int64_t own_m = alike && !op.trans_a ? m : rows(), own_n = alike && op.trans_a ? n : columns();
    MatmulSum::Sum sum = sum_of(draw, op, sizes, own_m, own_n, weights, products);
    const DType own = alike || draw.flip() ? result : sizes.dtype;
    sum.acc = acc && draw.integer(0, 3);
    sum.c = sum.acc ? draw.tensor(own, {own_m, own_n}) : draw.empty(own, {own_m, own_n});
    op.sums.push_back(sum);
  }
  return op;
}

Op lora_down(Draw& draw) {
  const Sizes sizes(draw);
  LoraDown op;
  const int64_t rows = draw.size(sizes.whole ? 300 : 50), k = sizes.of(draw, draw.integer(0, 3) ? 100 : 600);
  op.x = draw.tensor(sizes.dtype, {rows, k});
  for (int64_t i = draw.integer(1, 4); i > 0; --i) {
    const int64_t rank = sizes.of(draw, draw.integer(0, 3) ? 24 : 90);
    op.a.push_back(draw.tensor(sizes.dtype, {rank, k})), op.u.push_back(draw.empty(sizes.dtype, {rows, rank}));
    op.alpha.push_back(draw.pick({1.0f, 2.0f, -0.3f}));
  }
  return op;
}

Op lora_down_grad(Draw& draw) {
  const Sizes sizes(draw);
  LoraDownGrad op;
  const int64_t rows = draw.size(sizes.whole ? 700 : 50), k = sizes.of(draw, draw.integer(0, 3) ? 100 : 400);
  op.x = draw.tensor(sizes.dtype, {rows, k}), op.acc = draw.flip();
  const DType result = draw.integer(0, 3) ? DType::f32 : sizes.dtype;
  for (int64_t i = draw.integer(1, 4); i > 0; --i) {
    const int64_t rank = sizes.of(draw, draw.integer(0, 3) ? 24 : 90);
    op.du.push_back(draw.tensor(sizes.dtype, {rows, rank}));
    op.da.push_back(op.acc ? draw.tensor(result, {rank, k}) : draw.empty(result, {rank, k}));
  }
  return op;
}

Op lora_up_grad(Draw& draw) {
  const Sizes sizes(draw);
  LoraUpGrad op;
  const int64_t rows = draw.size(sizes.whole ? 700 : 50), n = sizes.of(draw, draw.integer(0, 3) ? 100 : 600);
  const int64_t rank = sizes.of(draw, draw.integer(0, 3) ? 24 : 90);
  op.dy = draw.tensor(sizes.dtype, {rows, n}), op.b = draw.tensor(sizes.dtype, {n, rank});
  op.u = draw.tensor(sizes.dtype, {rows, rank}), op.du = draw.empty(sizes.dtype, {rows, rank});
  op.alpha = draw.pick({1.0f, 2.0f, -0.3f}), op.acc = draw.flip();
  const DType result = draw.integer(0, 3) ? DType::f32 : sizes.dtype;
  if (draw.integer(0, 4)) op.db = op.acc ? draw.tensor(result, {n, rank}) : draw.empty(result, {n, rank});
  return op;
}

// Both sides of a sum of two products. What its two first sides hand on are two results of one operation, and so are
// its two second ones.
Chain sum_chain(Draw& draw) {
  MatmulSum forward{.sums = {{}}, .trans_b = true}, first, second{.sums = {}, .trans_a = true};
  MatmulSum::Sum& sum = forward.sums[0];
  const int64_t m = draw.size(5), n = draw.size(5);
  Pairs pairs;
  sum.c = draw.empty(DType::f32, {m, n});
  const View dout = draw.like(sum.c);
  for (int i = 0; i < 2; ++i) {
    const int64_t k = draw.size(6);
    const View a = draw.tensor(DType::f32, {m, k}), b = draw.tensor(DType::f32, {n, k});
    const View da = draw.empty_like(a), db = draw.empty_like(b);
    sum.a.push_back(a), sum.b.push_back(b);
    first.sums.push_back({.a = {dout}, .b = {b}, .bias = {}, .c = da});
    second.sums.push_back({.a = {dout}, .b = {a}, .bias = {}, .c = db});
    pairs.push_back({a, da}), pairs.push_back({b, db});
  }
  return {forward, {first, second}, sum.c, dout, pairs};
}

// Without a factor, which LoraUpGrad gives to du.
Chain down_chain(Draw& draw) {
  LoraDown forward;
  const int64_t rows = draw.size(5), k = draw.size(6), rank = draw.size(4);
  forward.x = draw.tensor(DType::f32, {rows, k}), forward.a = {draw.tensor(DType::f32, {rank, k})};
  forward.u = {draw.empty(DType::f32, {rows, rank})}, forward.alpha = {1};
  const View dout = draw.like(forward.u[0]), dx = draw.empty_like(forward.x), da = draw.empty_like(forward.a[0]);
  return {forward,
          {LoraDownGrad{.x = forward.x, .du = {dout}, .da = {da}}, Matmul{.a = dout, .b = forward.a[0], .c = dx}},
          forward.u[0],
          dout,
          {{forward.x, dx}, {forward.a[0], da}}};
}

Chain up_chain(Draw& draw) {
  const int64_t rows = draw.size(5), n = draw.size(6), rank = draw.size(4);
  const View u = draw.tensor(DType::f32, {rows, rank}), b = draw.tensor(DType::f32, {n, rank});
  const View y = draw.empty(DType::f32, {rows, n}), dout = draw.like(y);
  const LoraUpGrad back{.dy = dout, .b = b, .u = u, .du = draw.empty_like(u), .db = draw.empty_like(b)};
  return {MatmulSum{.sums = {{.a = {u}, .b = {b}, .bias = {}, .c = y}}, .trans_b = true},
          {back},
          y,
          dout,
          {{u, back.du}, {b, back.db}}};
}

// c (+)= alpha op(a) op(b) of what sheets hold.
template <class T>
void add_product(const Array<T>& a, bool trans_a, const Array<T>& b, bool trans_b, T alpha, Array<T>& c) {
  const int64_t n = c.shape.back(), m = c.size() / std::max<int64_t>(1, n);
  const int64_t k = trans_a ? a.size() / std::max<int64_t>(1, m) : a.shape.back();
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      T sum = 0;
      for (int64_t l = 0; l < k; ++l)
        sum += (trans_a ? a[l * m + i] : a[i * k + l]) * (trans_b ? b[j * k + l] : b[l * n + j]);
      c[i * n + j] += alpha * sum;
    }
}

}  // namespace

template <class T>
void reference(const MatmulSum& op, Sheet<T>& sheet) {
  for (const MatmulSum::Sum& sum : op.sums) {
    Array<T>& c = sheet.update(sum.c, sum.acc);
    const double rounding = unit_roundoff(sum.c.dtype);
    for (size_t i = 0; i < sum.a.size(); ++i) {
      Array<T> b = sheet.in(sum.b[i]);
      if (sum.b[i].dtype != sum.a[i].dtype)
        for (T& x : b.values) x = kept(x, unit_roundoff(sum.a[i].dtype));  // decoded to a's dtype
      add_product(sheet.in(sum.a[i]), op.trans_a, b, op.trans_b, T(1), c);
      if (i + 1 < sum.a.size())
        for (T& x : c.values) x = kept(x, rounding);
    }
    if (!sum.bias) continue;
    const Array<T> bias = sheet.in(sum.bias);
    for (int64_t i = 0; i < c.size(); ++i) c[i] += bias[i % bias.size()];
  }
}

template <class T>
void reference(const LoraDown& op, Sheet<T>& sheet) {
  for (size_t i = 0; i < op.a.size(); ++i)
    add_product(sheet.in(op.x), false, sheet.in(op.a[i]), true, T(op.alpha[i]), sheet.out(op.u[i]));
}

template <class T>
void reference(const LoraDownGrad& op, Sheet<T>& sheet) {
  for (size_t i = 0; i < op.du.size(); ++i)
    add_product(sheet.in(op.du[i]), true, sheet.in(op.x), false, T(1), sheet.update(op.da[i], op.acc));
}

template <class T>
void reference(const LoraUpGrad& op, Sheet<T>& sheet) {
  add_product(sheet.in(op.dy), false, sheet.in(op.b), false, T(op.alpha), sheet.out(op.du));
  if (op.db) add_product(sheet.in(op.dy), true, sheet.in(op.u), false, T(1), sheet.update(op.db, op.acc));
}

QENG_CONFORMANCE(MatmulSum, .make = matmul_sum, .derivatives = {{"matmul_sum", sum_chain}});
QENG_CONFORMANCE(LoraDown, .make = lora_down, .derivatives = {{"lora_down", down_chain}});
QENG_CONFORMANCE(LoraDownGrad, .make = lora_down_grad);
QENG_CONFORMANCE(LoraUpGrad, .make = lora_up_grad, .derivatives = {{"lora_up_grad", up_chain}});

}  // namespace qeng::conformance
