// RmsNorm, AddRmsNorm and their gradient.
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

Op rmsnorm(Draw& draw) {
  draw.sometimes_misalign();
  RmsNorm op;
  op.x = rows_of(draw, draw.float_dtype());
  op.w = draw.tensor(op.x.dtype, {op.x.columns()});
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
  op.w = draw.tensor(op.x.dtype, {op.x.columns()});
  op.rstd = draw.empty(DType::f32, {op.x.rows()});
  for (int64_t r = 0; r < op.x.rows(); ++r) encode(op.rstd, r, draw.uniform(0.1, 3));
  op.dy = draw.like(op.x);
  op.plus_one = draw.flip(), op.acc_dw = draw.flip();
  if (draw.flip()) op.dresidual = draw.like(op.x);
  op.dx = op.dresidual && draw.flip() ? op.dresidual : draw.empty_like(op.x);
  if (draw.flip())
    op.dw = op.acc_dw ? draw.tensor(DType::f32, {op.x.columns()}) : draw.empty(DType::f32, {op.x.columns()});
  return op;
}

Chain rmsnorm_chain(Draw& draw) {
  RmsNorm forward;
  forward.x = draw.tensor(DType::f32, {draw.size(6), draw.size(9)}),
  forward.w = draw.tensor(DType::f32, {forward.x.columns()});
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
    for (int64_t i = 0; i < dim; ++i) y[r * dim + i] = x[r * dim + i] * rstd[r] * (w[i] + T(op.plus_one ? 1 : 0));
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
    for (int64_t i = 0; i < dim; ++i)
      mean += dy[r * dim + i] * (w[i] + T(op.plus_one ? 1 : 0)) * (x[r * dim + i] * rstd[r]);
    mean = mean / T(static_cast<double>(dim));
    for (int64_t i = 0; i < dim; ++i) {
      const T xhat = x[r * dim + i] * rstd[r], g = dy[r * dim + i] * (w[i] + T(op.plus_one ? 1 : 0));
      dx[r * dim + i] = dresidual[r * dim + i] + rstd[r] * (g - xhat * mean);
      sums[i] += dy[r * dim + i] * xhat;
    }
  }
  if (!op.dw) return;
  Array<T>& dw = sheet.update(op.dw, op.acc_dw);
  for (int64_t i = 0; i < dim; ++i) dw[i] += sums[i];
}

QENG_CONFORMANCE(RmsNorm, .make = rmsnorm);
QENG_CONFORMANCE(AddRmsNorm, .make = add_rmsnorm);
QENG_CONFORMANCE(RmsNormGrad, .make = rmsnorm_grad,
                 .derivatives = {{"rmsnorm_grad", rmsnorm_chain}, {"rmsnorm_grad of a sum", add_rmsnorm_chain}});

}  // namespace qeng::conformance
