// RmsNorm, AddRmsNorm, LayerNorm and their gradients.
#include "tests/conformance/table.h"

namespace qeng::conformance {
namespace {

// [rows, dim] or [tokens, heads, head_dim]. Mostly rows of whole 16-byte vectors: as many as a device gives to a few
// lanes, a warp or a block, and more than it keeps in registers.
View rows_of(Draw& draw, DType dtype) {
  switch (draw.integer(0, 8)) {
    case 0: return draw.tensor(dtype, {draw.size(40), draw.size(300)}, draw.pick({1.0, 0.01, 30.0}));
    case 1: return draw.tensor(dtype, {draw.size(20), draw.integer(1, 5), draw.size(70)});
    case 2: return draw.tensor(dtype, {draw.integer(1030, 1300), draw.size(6)});  // many blocks of partial sums
    default: break;
  }
  const int64_t most = draw.pick<int64_t>({8, 16, 128, 256, 512, 1024, 2048});
  const int64_t vectors = draw.integer(most / 2 + 1, std::min<int64_t>(most, 1100));
  const int64_t dim = vectors * 16 / static_cast<int64_t>(dtype_size(dtype));
  if (most <= 16) return draw.tensor(dtype, {draw.size(60), draw.integer(1, 5), dim});
  return draw.tensor(dtype, {draw.size(9), dim});
}

// Weights of such rows: of all, or of each group of a token's columns.
View weights_of(Draw& draw, const View& x) {
  if (x.rank == 3 && draw.flip()) return draw.tensor(x.dtype, {x.shape[1], x.columns()});
  return draw.tensor(x.dtype, {x.columns()});
}

// Where the gradient of w goes; acc: numbers to add to.
View sums_of(Draw& draw, const View& w, bool acc) {
  const View sums = draw.resized(w, DType::f32);
  for (int64_t i = 0; acc && i < sums.elements(); ++i) encode(sums, i, draw.normal());
  return sums;
}

Op rmsnorm(Draw& draw) {
  draw.sometimes_misalign();
  RmsNorm op;
  op.x = rows_of(draw, draw.float_dtype());
  op.w = weights_of(draw, op.x);
  op.y = draw.empty_like(op.x);
  op.rstd = draw.empty(DType::f32, {op.x.rows()});
  op.eps = draw.pick({1e-6f, 1e-5f, 1e-2f});
  op.plus_one = draw.flip();
  return op;
}

Op add_rmsnorm(Draw& draw) {
  draw.sometimes_misalign();
  AddRmsNorm op;
  op.a = rows_of(draw, draw.float_dtype()), op.b = draw.like(op.a);
  op.w = draw.tensor(op.a.dtype, {op.a.columns()});
  op.sum = draw.empty_like(op.a), op.y = draw.empty_like(op.a);
  op.rstd = draw.empty(DType::f32, {op.a.rows()});
  op.eps = draw.pick({1e-6f, 1e-5f, 1e-2f});
  op.plus_one = draw.flip();
  return op;
}

Op rmsnorm_grad(Draw& draw) {
  draw.sometimes_misalign();
  RmsNormGrad op;
  op.x = rows_of(draw, draw.float_dtype());
  op.w = weights_of(draw, op.x);
  op.rstd = draw.empty(DType::f32, {op.x.rows()});
  for (int64_t r = 0; r < op.x.rows(); ++r) encode(op.rstd, r, draw.uniform(0.1, 3));
  op.dy = draw.like(op.x);
  op.plus_one = draw.flip(), op.acc_dw = draw.flip();
  if (draw.flip()) op.dresidual = draw.like(op.x);
  op.dx = op.dresidual && draw.flip() ? op.dresidual : draw.empty_like(op.x);
  if (draw.flip()) op.dw = sums_of(draw, op.w, op.acc_dw);
  return op;
}

Chain rmsnorm_chain(Draw& draw) {
  RmsNorm forward;
  forward.x = draw.tensor(DType::f32, {draw.size(6), draw.integer(1, 3), draw.size(9)});
  forward.w = weights_of(draw, forward.x);
  forward.y = draw.empty_like(forward.x), forward.rstd = draw.empty(DType::f32, {forward.x.rows()});
  forward.eps = 0.01f, forward.plus_one = draw.flip();
  const View dout = draw.like(forward.y);
  RmsNormGrad gradient;
  gradient.x = forward.x, gradient.w = forward.w, gradient.rstd = forward.rstd, gradient.dy = dout;
  gradient.dx = draw.empty_like(forward.x), gradient.dw = draw.empty_like(forward.w),
  gradient.plus_one = forward.plus_one;
  return {forward, {gradient}, forward.y, dout, {{forward.x, gradient.dx}, {forward.w, gradient.dw}}, {forward.rstd}};
}

Chain add_rmsnorm_chain(Draw& draw) {
  AddRmsNorm forward;
  forward.a = draw.tensor(DType::f32, {draw.size(6), draw.size(9)}), forward.b = draw.like(forward.a);
  forward.w = draw.tensor(DType::f32, {forward.a.columns()});
  forward.sum = draw.empty_like(forward.a), forward.y = draw.empty_like(forward.a);
  forward.rstd = draw.empty(DType::f32, {forward.a.rows()});
  forward.eps = 0.01f, forward.plus_one = draw.flip();
  const View dout = draw.like(forward.y), dsum = draw.like(forward.sum);
  RmsNormGrad gradient;
  gradient.x = forward.sum, gradient.w = forward.w, gradient.rstd = forward.rstd, gradient.dy = dout;
  gradient.dresidual = dsum, gradient.dx = draw.empty_like(forward.a);
  gradient.dw = draw.empty_like(forward.w), gradient.plus_one = forward.plus_one;
  const Pairs pairs = {{forward.a, gradient.dx}, {forward.b, gradient.dx}, {forward.w, gradient.dw}};
  return {forward, {gradient}, forward.y, dout, pairs, {forward.sum, forward.rstd}, {{forward.sum, dsum}}};
}

// Weights of a layer norm, and its bias or none.
void layer_norm_weights(Draw& draw, const View& x, View& w, View& b) {
  const DType dtype = draw.flip() ? DType::f32 : x.dtype;
  w = draw.tensor(dtype, {x.columns()});
  if (draw.flip()) b = draw.tensor(dtype, {x.columns()});
}

Op layer_norm(Draw& draw) {
  draw.sometimes_misalign();
  LayerNorm op;
  op.x = rows_of(draw, draw.float_dtype());
  layer_norm_weights(draw, op.x, op.w, op.b);
  op.y = draw.empty_like(op.x);
  op.mean = draw.empty(DType::f32, {op.x.rows()}), op.rstd = draw.empty(DType::f32, {op.x.rows()});
  op.eps = draw.pick({1e-5f, 1e-2f});
  return op;
}

Op layer_norm_grad(Draw& draw) {
  draw.sometimes_misalign();
  LayerNormGrad op;
  View bias;
  op.x = rows_of(draw, draw.float_dtype());
  layer_norm_weights(draw, op.x, op.w, bias);
  op.mean = draw.tensor(DType::f32, {op.x.rows()}), op.rstd = draw.empty(DType::f32, {op.x.rows()});
  for (int64_t r = 0; r < op.x.rows(); ++r) encode(op.rstd, r, draw.uniform(0.1, 3));
  op.dy = draw.like(op.x);
  op.acc = draw.flip();
  if (draw.flip()) op.dresidual = draw.like(op.x);
  op.dx = op.dresidual && draw.flip() ? op.dresidual : draw.empty_like(op.x);
  if (draw.flip()) op.dw = sums_of(draw, op.w, op.acc);
  if (draw.flip()) op.db = sums_of(draw, op.w, op.acc);
  return op;
}

Chain layer_norm_chain(Draw& draw) {
  LayerNorm forward;
  forward.x = draw.tensor(DType::f32, {draw.size(6), draw.integer(2, 9)});
  forward.w = draw.tensor(DType::f32, {forward.x.columns()}), forward.b = draw.like(forward.w);
  forward.y = draw.empty_like(forward.x), forward.eps = 0.01f;
  forward.mean = draw.empty(DType::f32, {forward.x.rows()}), forward.rstd = draw.empty(DType::f32, {forward.x.rows()});
  const View dout = draw.like(forward.y);
  LayerNormGrad gradient;
  gradient.x = forward.x, gradient.w = forward.w, gradient.mean = forward.mean, gradient.rstd = forward.rstd;
  gradient.dy = dout, gradient.dx = draw.empty_like(forward.x);
  gradient.dw = draw.empty_like(forward.w), gradient.db = draw.empty_like(forward.b);
  const Pairs pairs = {{forward.x, gradient.dx}, {forward.w, gradient.dw}, {forward.b, gradient.db}};
  return {forward, {gradient}, forward.y, dout, pairs, {forward.mean, forward.rstd}};
}

}  // namespace

template <class T>
void reference(const RmsNorm& op, Sheet<T>& sheet) {
  using std::sqrt;
  const Array<T> x = sheet.in(op.x), w = sheet.in(op.w);
  Array<T>&y = sheet.out(op.y), &rstd = sheet.out(op.rstd);
  const int64_t dim = op.x.columns();
  for (int64_t r = 0; r < op.x.rows(); ++r) {
    T squares = 0;
    for (int64_t i = 0; i < dim; ++i) squares += x[r * dim + i] * x[r * dim + i];
    rstd[r] = T(1) / sqrt(squares / T(static_cast<double>(dim)) + T(op.eps));
    const int64_t first = r % (w.size() / dim) * dim;
    for (int64_t i = 0; i < dim; ++i)
      y[r * dim + i] = x[r * dim + i] * rstd[r] * (w[first + i] + T(op.plus_one ? 1 : 0));
  }
}

template <class T>
void reference(const AddRmsNorm& op, Sheet<T>& sheet) {
  const Array<T> a = sheet.in(op.a), b = sheet.in(op.b);
  Array<T> sum(op.sum);
  for (int64_t i = 0; i < sum.size(); ++i) sum[i] = stored_sum(a[i], b[i], op.a.dtype);
  sheet.given[op.sum.data] = sum;
  reference(RmsNorm{op.sum, op.w, op.y, op.rstd, op.eps, op.plus_one}, sheet);
  sheet.out(op.sum, Sheet<T>::Check::exact).values = sum.values;
}

template <class T>
void reference(const RmsNormGrad& op, Sheet<T>& sheet) {
  const Array<T> x = sheet.in(op.x), w = sheet.in(op.w), rstd = sheet.in(op.rstd), dy = sheet.in(op.dy);
  const Array<T> dresidual = op.dresidual ? sheet.in(op.dresidual) : Array<T>(op.dx);
  Array<T>& dx = sheet.out(op.dx);
  Array<T> sums(op.w);
  const int64_t dim = op.x.columns();
  for (int64_t r = 0; r < op.x.rows(); ++r) {
    T mean = 0;
    const int64_t first = r % (w.size() / dim) * dim;
    for (int64_t i = 0; i < dim; ++i)
      mean += dy[r * dim + i] * (w[first + i] + T(op.plus_one ? 1 : 0)) * (x[r * dim + i] * rstd[r]);
    mean = mean / T(static_cast<double>(dim));
    for (int64_t i = 0; i < dim; ++i) {
      const T xhat = x[r * dim + i] * rstd[r], g = dy[r * dim + i] * (w[first + i] + T(op.plus_one ? 1 : 0));
      dx[r * dim + i] = dresidual[r * dim + i] + rstd[r] * (g - xhat * mean);
      sums[first + i] += dy[r * dim + i] * xhat;
    }
  }
  if (!op.dw) return;
  Array<T>& dw = sheet.update(op.dw, op.acc_dw);
  for (int64_t i = 0; i < dw.size(); ++i) dw[i] += sums[i];
}

template <class T>
void reference(const LayerNorm& op, Sheet<T>& sheet) {
  using std::sqrt;
  const Array<T> x = sheet.in(op.x), w = sheet.in(op.w), b = op.b ? sheet.in(op.b) : Array<T>(op.w);
  Array<T>&y = sheet.out(op.y), &mean = sheet.out(op.mean), &rstd = sheet.out(op.rstd);
  const int64_t dim = op.x.columns();
  const T n = T(static_cast<double>(dim));
  for (int64_t r = 0; r < op.x.rows(); ++r) {
    T sum = 0, squares = 0;
    for (int64_t i = 0; i < dim; ++i) sum += x[r * dim + i];
    mean[r] = sum / n;
    for (int64_t i = 0; i < dim; ++i) squares += (x[r * dim + i] - mean[r]) * (x[r * dim + i] - mean[r]);
    rstd[r] = T(1) / sqrt(squares / n + T(op.eps));
    for (int64_t i = 0; i < dim; ++i) y[r * dim + i] = (x[r * dim + i] - mean[r]) * rstd[r] * w[i] + b[i];
  }
}

template <class T>
void reference(const LayerNormGrad& op, Sheet<T>& sheet) {
  const Array<T> x = sheet.in(op.x), w = sheet.in(op.w), mean = sheet.in(op.mean), rstd = sheet.in(op.rstd),
                 dy = sheet.in(op.dy);
  const Array<T> dresidual = op.dresidual ? sheet.in(op.dresidual) : Array<T>(op.dx);
  Array<T>& dx = sheet.out(op.dx);
  Array<T> of_w(op.w), of_b(op.w);
  const int64_t dim = op.x.columns();
  const T n = T(static_cast<double>(dim));
  for (int64_t r = 0; r < op.x.rows(); ++r) {
    T sum = 0, dot = 0;
    for (int64_t i = 0; i < dim; ++i) {
      const T g = dy[r * dim + i] * w[i];
      sum += g;
      dot += g * ((x[r * dim + i] - mean[r]) * rstd[r]);
    }
    for (int64_t i = 0; i < dim; ++i) {
      const T xhat = (x[r * dim + i] - mean[r]) * rstd[r];
      dx[r * dim + i] = dresidual[r * dim + i] + rstd[r] * (dy[r * dim + i] * w[i] - sum / n - xhat * (dot / n));
      of_w[i] += dy[r * dim + i] * xhat;
      of_b[i] += dy[r * dim + i];
    }
  }
  if (op.dw) {
    Array<T>& dw = sheet.update(op.dw, op.acc);
    for (int64_t i = 0; i < dim; ++i) dw[i] += of_w[i];
  }
  if (op.db) {
    Array<T>& db = sheet.update(op.db, op.acc);
    for (int64_t i = 0; i < dim; ++i) db[i] += of_b[i];
  }
}

QENG_CONFORMANCE(RmsNorm, .make = rmsnorm);
QENG_CONFORMANCE(AddRmsNorm, .make = add_rmsnorm);
QENG_CONFORMANCE(RmsNormGrad, .make = rmsnorm_grad,
                 .derivatives = {{"rmsnorm_grad", rmsnorm_chain}, {"rmsnorm_grad of a sum", add_rmsnorm_chain}});
QENG_CONFORMANCE(LayerNorm, .make = layer_norm);
QENG_CONFORMANCE(LayerNormGrad, .make = layer_norm_grad, .derivatives = {{"layer_norm_grad", layer_norm_chain}});

}  // namespace qeng::conformance
