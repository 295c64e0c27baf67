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

// One product with a narrow one before it, as an adapter's; or those of several layers; or any.
Op matmul_sum(Draw& draw) {
  const Sizes sizes(draw);
  MatmulSum op;
  const bool stored = draw.integer(0, 4) == 0;
  const int64_t m = stored ? draw.size(20) : draw.size(sizes.whole ? 300 : 70), count = draw.integer(1, 6);
  int64_t n = sizes.of(draw, draw.integer(0, 3) ? 100 : 300);
  op.trans_b = draw.flip(), op.acc = draw.integer(0, 3) == 0;
  const DType weights = stored ? draw.stored_dtype(sizes.dtype) : sizes.dtype;
  if (!op.trans_b && stored) n = draw.row_length(weights, 256);
  for (int64_t i = 0; i < count; ++i) {
    const bool narrow = i % 2 == 0 && i + 1 < count;
    int64_t k = sizes.of(draw, narrow ? 40 : 200);
    const DType dtype = narrow ? sizes.dtype : weights;
    if (op.trans_b && is_block(dtype)) k = draw.row_length(weights, 256);
    op.a.push_back(draw.tensor(sizes.dtype, {m, k}));
    op.b.push_back(op.trans_b ? draw.tensor(dtype, {n, k}) : draw.tensor(dtype, {k, n}));
  }
  if (draw.integer(0, 3) == 0) op.bias = draw.tensor(draw.flip() ? DType::f32 : sizes.dtype, {n});
  const DType result = draw.integer(0, 3) == 0 ? DType::f32 : sizes.dtype;
  op.c = op.acc ? draw.tensor(result, {m, n}) : draw.empty(result, {m, n});
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

// Both sides of a sum of two products; the gradient of the one side is a sum again where products share it.
Chain sum_chain(Draw& draw) {
  MatmulSum forward;
  const int64_t m = draw.size(5), n = draw.size(5);
  std::vector<Op> gradients;
  Pairs pairs;
  forward.trans_b = true, forward.c = draw.empty(DType::f32, {m, n});
  const View dout = draw.like(forward.c);
  for (int i = 0; i < 2; ++i) {
    const int64_t k = draw.size(6);
    forward.a.push_back(draw.tensor(DType::f32, {m, k})), forward.b.push_back(draw.tensor(DType::f32, {n, k}));
    const View da = draw.empty_like(forward.a.back()), db = draw.empty_like(forward.b.back());
    gradients.push_back(MatmulSum{.a = {dout}, .b = {forward.b.back()}, .bias = {}, .c = da});
    gradients.push_back(Matmul{.a = dout, .b = forward.a.back(), .c = db, .trans_a = true});
    pairs.push_back({forward.a.back(), da}), pairs.push_back({forward.b.back(), db});
  }
  return {forward, gradients, forward.c, dout, pairs};
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
  MatmulSum forward;
  const int64_t rows = draw.size(5), n = draw.size(6), rank = draw.size(4);
  forward.a = {draw.tensor(DType::f32, {rows, rank})}, forward.b = {draw.tensor(DType::f32, {n, rank})};
  forward.trans_b = true, forward.c = draw.empty(DType::f32, {rows, n});
  const View dout = draw.like(forward.c);
  LoraUpGrad back{.dy = dout, .b = forward.b[0], .u = forward.a[0], .du = draw.empty_like(forward.a[0]), .db = {}};
  back.db = draw.empty_like(forward.b[0]);
  return {forward, {back}, forward.c, dout, {{forward.a[0], back.du}, {forward.b[0], back.db}}};
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
  Array<T>& c = sheet.update(op.c, op.acc);
  const double rounding = unit_roundoff(op.c.dtype);
  for (size_t i = 0; i < op.a.size(); ++i) {
    Array<T> b = sheet.in(op.b[i]);
    if (op.b[i].dtype != op.a[i].dtype)
      for (T& x : b.values) x = kept(x, unit_roundoff(op.a[i].dtype));  // decoded to a's dtype
    add_product(sheet.in(op.a[i]), false, b, op.trans_b, T(1), c);
    if (i + 1 < op.a.size())
      for (T& x : c.values) x = kept(x, rounding);
  }
  if (!op.bias) return;
  const Array<T> bias = sheet.in(op.bias);
  for (int64_t i = 0; i < c.size(); ++i) c[i] += bias[i % bias.size()];
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
