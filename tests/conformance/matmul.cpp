// Matmul, BatchedMatmul and BiasGrad.
#include "tests/conformance/table.h"

namespace qeng::conformance {
namespace {

Op matmul(Draw& draw) {
  draw.sometimes_misalign();
  Matmul op;
  int64_t m = draw.size(70), k = draw.size(90), n = draw.size(70);
  if (draw.integer(0, 2) == 0) m = 8 * draw.size(20), k = 8 * draw.size(24), n = 8 * draw.size(20);  // whole vectors
  const DType dtype = draw.float_dtype();
  op.trans_a = draw.flip(), op.trans_b = draw.flip(), op.acc = draw.flip();
  if (draw.integer(0, 5) == 0) m = 1, k = 8 * draw.size(80), op.trans_b = true;  // decoding: a row times whole vectors
  op.alpha = draw.pick({1.0f, 1.0f, -0.5f, 2.75f});
  DType weights = dtype;
  if (draw.integer(0, 2) == 0) {  // stored weights; sometimes rows longer than the panels that they are decoded to
    weights = draw.stored_dtype(dtype);
    const bool wide = draw.integer(0, 7) == 0;
    m = std::min<int64_t>(m, wide ? 3 : 20);
    int64_t &along = op.trans_b ? k : n, &across = op.trans_b ? n : k;
    along = wide ? 1280 : draw.row_length(weights, 512), across = std::min<int64_t>(across, wide ? 9 : 40);
  }
  op.a = op.trans_a ? draw.tensor(dtype, {k, m}) : draw.tensor(dtype, {m, k});
  op.b = op.trans_b ? draw.tensor(weights, {n, k}) : draw.tensor(weights, {k, n});
  if (draw.flip()) op.bias = draw.tensor(draw.flip() ? DType::f32 : dtype, {n});
  const DType result = draw.flip() ? DType::f32 : dtype;
  op.c = op.acc ? draw.tensor(result, {m, n}) : draw.empty(result, {m, n});
  if (draw.integer(0, 3) == 0 && !op.trans_a) op.a.rank = 3, op.a.shape[2] = k, op.a.shape[1] = 1;  // [m, 1, k]
  return op;
}

// A space of up to three dimensions, over matrices that are one for all along some of them, or run backwards.
Op batched_matmul(Draw& draw) {
  draw.sometimes_misalign();
  BatchedMatmul op;
  const DType dtype = draw.float_dtype();
  const int64_t most = draw.integer(0, 3) == 0 ? 40 : 12, m = draw.size(most), n = draw.size(most), k = draw.size(most);
  op.trans_a = draw.flip(), op.trans_b = draw.flip(), op.acc = draw.flip();
  op.batch.rank = static_cast<int>(draw.integer(0, 3));
  for (int d = 0; d < op.batch.rank; ++d) op.batch.shape[d] = draw.integer(0, 20) == 0 ? 0 : draw.size(4);
  const auto matrices = [&](Strides& places, bool shared) {
    int64_t count = 1;
    for (int d = op.batch.rank - 1; d >= 0; --d) {
      if (shared && draw.integer(0, 2) == 0) continue;
      places.stride[d] = count, count *= op.batch.shape[d];
      if (op.batch.shape[d] > 0 && draw.integer(0, 5) == 0) {
        places.first += (op.batch.shape[d] - 1) * places.stride[d];
        places.stride[d] = -places.stride[d];
      }
    }
    return count + draw.integer(0, 1);  // one that is not touched
  };
  const int64_t of_a = matrices(op.of_a, true), of_b = matrices(op.of_b, true), of_c = matrices(op.of_c, false);
  op.a = op.trans_a ? draw.tensor(dtype, {of_a, k, m}) : draw.tensor(dtype, {of_a, m, k});
  op.b = op.trans_b ? draw.tensor(dtype, {of_b, n, k}) : draw.tensor(dtype, {of_b, k, n});
  op.c = draw.tensor(dtype, {of_c, m, n});
  if (op.fills() && !op.acc) op.c = draw.empty_like(op.c);
  return op;
}

Op bias_grad(Draw& draw) {
  draw.sometimes_misalign();
  BiasGrad op;
  const int64_t n = draw.columns(150);
  op.dy = draw.tensor(draw.float_dtype(), {draw.size(n > 150 ? 50 : 400), n});
  op.acc = draw.flip();
  op.db = op.acc ? draw.tensor(DType::f32, {op.dy.columns()}) : draw.empty(DType::f32, {op.dy.columns()});
  return op;
}

Chain linear_chain(Draw& draw) {
  Matmul forward;
  const int64_t m = draw.size(6), k = draw.size(7), n = draw.size(5);
  forward.alpha = 0.75f, forward.trans_b = true;
  forward.a = draw.tensor(DType::f32, {m, k}), forward.b = draw.tensor(DType::f32, {n, k}),
  forward.bias = draw.tensor(DType::f32, {n});
  forward.c = draw.empty(DType::f32, {m, n});
  const View dout = draw.like(forward.c);
  Matmul da, db;
  da.alpha = db.alpha = forward.alpha;
  da.a = dout, da.b = forward.b, da.c = draw.empty_like(forward.a);
  db.a = dout, db.b = forward.a, db.c = draw.empty_like(forward.b), db.trans_a = true;
  BiasGrad bias;
  bias.dy = dout, bias.db = draw.empty_like(forward.bias);
  return {forward, {da, db, bias}, forward.c, dout, {{forward.a, da.c}, {forward.b, db.c}, {forward.bias, bias.db}}};
}

Chain batched_chain(Draw& draw) {
  BatchedMatmul forward;
  const int64_t m = draw.size(5), k = draw.size(4), n = draw.size(5);
  forward.trans_b = true;
  forward.batch = View(nullptr, DType::f32, {3});
  forward.of_a.stride[0] = forward.of_b.stride[0] = forward.of_c.stride[0] = 1;
  forward.a = draw.tensor(DType::f32, {3, m, k}), forward.b = draw.tensor(DType::f32, {3, n, k});
  forward.c = draw.empty(DType::f32, {3, m, n});
  const View dout = draw.like(forward.c);
  BatchedMatmul da = forward, db = forward;
  da.a = dout, da.c = draw.empty_like(forward.a), da.trans_b = false;
  db.a = dout, db.trans_a = true, db.b = forward.a, db.trans_b = false, db.c = draw.empty_like(forward.b);
  return {forward, {da, db}, forward.c, dout, {{forward.a, da.c}, {forward.b, db.c}}};
}

// The frozen weights of a block format: the gradient of their product's input.
Chain stored_linear_chain(Draw& draw) {
  Matmul forward, da;
  forward.alpha = da.alpha = -0.5f, forward.trans_b = true;
  forward.a = draw.tensor(DType::f32, {draw.size(4), 256});
  forward.b = draw.tensor(draw.block_format(), {draw.size(5), 256});
  forward.c = draw.empty(DType::f32, {forward.a.shape[0], forward.b.shape[0]});
  const View dout = draw.like(forward.c);
  da.a = dout, da.b = forward.b, da.c = draw.empty_like(forward.a);
  return {forward, {da}, forward.c, dout, {{forward.a, da.c}}};
}

}  // namespace

template <class T>
void reference(const Matmul& op, Sheet<T>& sheet) {
  const Array<T> a = sheet.in(op.a);
  Array<T> b = sheet.in(op.b);
  if (op.b.dtype != op.a.dtype)
    for (T& x : b.values) x = kept(x, unit_roundoff(op.a.dtype));  // decoded to a's dtype
  const int64_t m = op.trans_a ? op.a.columns() : op.a.rows(), k = op.trans_a ? op.a.rows() : op.a.columns(),
                n = op.c.columns();
  const Array<T> bias = op.bias ? sheet.in(op.bias) : Array<T>();
  Array<T>& c = sheet.update(op.c, op.acc);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      T sum = 0;
      for (int64_t l = 0; l < k; ++l)
        sum += (op.trans_a ? a[l * m + i] : a[i * k + l]) * (op.trans_b ? b[j * k + l] : b[l * n + j]);
      sum = T(op.alpha) * sum;
      if (op.bias) sum += bias[j];
      c[i * n + j] += sum;
    }
}

template <class T>
void reference(const BatchedMatmul& op, Sheet<T>& sheet) {
  const Array<T> a = sheet.in(op.a), b = sheet.in(op.b);
  Array<T>& c = sheet.update(op.c, op.acc || !op.fills());
  const int64_t m = op.c.shape[op.c.rank - 2], n = op.c.columns(), k = op.a.shape[op.a.rank - (op.trans_a ? 2 : 1)];
  for (int64_t i = 0; i < op.batch.elements(); ++i) {
    int64_t at_a = op.of_a.first, at_b = op.of_b.first, at_c = op.of_c.first, rest = i;
    for (int d = op.batch.rank - 1; d >= 0; rest /= op.batch.shape[d--]) {
      const int64_t index = rest % op.batch.shape[d];
      at_a += index * op.of_a.stride[d], at_b += index * op.of_b.stride[d], at_c += index * op.of_c.stride[d];
    }
    for (int64_t row = 0; row < m; ++row)
      for (int64_t column = 0; column < n; ++column) {
        T sum = 0;
        for (int64_t l = 0; l < k; ++l)
          sum += a[at_a * m * k + (op.trans_a ? l * m + row : row * k + l)] *
                 b[at_b * k * n + (op.trans_b ? column * k + l : l * n + column)];
        T& to = c[(at_c * m + row) * n + column];
        to = op.acc ? to + sum : sum;
      }
  }
}

template <class T>
void reference(const BiasGrad& op, Sheet<T>& sheet) {
  const Array<T> dy = sheet.in(op.dy);
  Array<T>& db = sheet.update(op.db, op.acc);
  for (int64_t j = 0; j < op.dy.columns(); ++j) {
    T sum = 0;
    for (int64_t i = 0; i < op.dy.rows(); ++i) sum += dy(i, j);
    db[j] += sum;
  }
}

QENG_CONFORMANCE(Matmul, .make = matmul,
                 .derivatives = {{"matmul and bias_grad", linear_chain},
                                 {"matmul of stored weights", stored_linear_chain}});
QENG_CONFORMANCE(BatchedMatmul, .make = batched_matmul, .derivatives = {{"batched_matmul", batched_chain}});
QENG_CONFORMANCE(BiasGrad, .make = bias_grad);

}  // namespace qeng::conformance
