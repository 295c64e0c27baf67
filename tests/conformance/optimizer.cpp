// SumSquares, ClipScale, AdamW.
#include "tests/conformance/table.h"

namespace qeng::conformance {
namespace {

// One tensor, a few, or more than one launch of a GPU takes.
int64_t tensors(Draw& draw) { return draw.integer(0, 9) ? draw.integer(1, 4) : draw.pick<int64_t>({0, 70, 130}); }

Op sum_squares(Draw& draw) {
  SumSquares op;
  const int64_t count = tensors(draw), most = count > 4 ? 3 : 300;
  for (int64_t i = 0; i < count; ++i) op.x.push_back(draw.tensor(DType::f32, {draw.size(80), draw.size(most)}));
  if (draw.integer(0, 9) == 0) op.x.push_back(draw.tensor(DType::f32, {33000}));  // several blocks of partial sums
  op.out = draw.empty(DType::f32, {static_cast<int64_t>(op.x.size())});
  return op;
}

Op clip_scale(Draw& draw) {
  ClipScale op;
  op.partials = draw.empty(DType::f32, {draw.size(200)});
  for (int64_t i = 0; i < op.partials.elements(); ++i) encode(op.partials, i, draw.uniform(0, draw.pick({1e-3, 2.0})));
  if (draw.integer(0, 3) == 0)
    encode(op.partials, draw.integer(0, op.partials.elements() - 1), draw.pick({double{INFINITY}, std::nan("")}));
  op.out = draw.empty(DType::f32, {3});
  op.max_norm = draw.pick({0.0f, 1.0f, 1.0f, 1e6f});
  return op;
}

Op adamw(Draw& draw) {
  AdamW op;
  const int64_t count = tensors(draw), most = count > 4 ? 3 : 200;
  const bool models = draw.flip();
  for (int64_t k = 0; k < count; ++k) {
    const View w = draw.tensor(DType::f32, {draw.size(60), draw.size(most)}), v = draw.like(w);
    for (int64_t i = 0; i < v.elements(); ++i) encode(v, i, std::fabs(decode(v, i)));
    op.w.push_back(w), op.grad.push_back(draw.like(w)), op.m.push_back(draw.like(w)), op.v.push_back(v);
    if (models) op.model.push_back(draw.integer(0, 3) ? draw.resized(w, DType::bf16) : View());
  }
  op.hyper =
      draw.values(DType::f32, {draw.pick({1e-3, 0.02}), static_cast<double>(draw.pick<int64_t>({1, 2, 10, 5000}))});
  op.clip = draw.values(DType::f32, {2.0, draw.pick({1.0, 0.25}), draw.integer(0, 4) ? 0.0 : 1.0});
  op.decay = draw.pick({0.0f, 0.1f});
  op.clear = draw.flip();
  return op;
}

}  // namespace

template <class T>
void reference(const SumSquares& op, Sheet<T>& sheet) {
  Array<T>& out = sheet.out(op.out);
  for (size_t i = 0; i < op.x.size(); ++i) {
    double sum = 0;
    for (const T& x : sheet.in(op.x[i]).values) sum += value_of(x) * value_of(x);
    out[static_cast<int64_t>(i)] = T(sum);
  }
}

template <class T>
void reference(const ClipScale& op, Sheet<T>& sheet) {
  using std::sqrt;
  const Array<T> partials = sheet.in(op.partials);
  Array<T>& out = sheet.out(op.out);
  T total = 0;
  for (const T& partial : partials.values) total += partial;
  const T norm = sqrt(total);
  const bool finite = std::isfinite(value_of(norm));
  out[0] = finite ? norm : T(value_of(norm));
  out[1] = T(1);
  if (op.max_norm > 0 && value_of(norm) + 1e-6 > op.max_norm) out[1] = T(op.max_norm) / (norm + T(1e-6));
  if (!finite) out[1] = T(0);
  out[2] = T(finite ? 0 : 1);
}

template <class T>
void reference(const AdamW& op, Sheet<T>& sheet) {
  using std::sqrt;
  const Array<T> hyper = sheet.in(op.hyper), clip = sheet.in(op.clip);
  const double t = value_of(hyper[1]);
  const double correct1 = 1 - std::pow(static_cast<double>(op.beta1), t),
               correct2 = 1 - std::pow(static_cast<double>(op.beta2), t);
  for (size_t k = 0; k < op.w.size(); ++k) {
    const Array<T> grad = sheet.in(op.grad[k]);
    Array<T>&w = sheet.update(op.w[k]), &m = sheet.update(op.m[k]), &v = sheet.update(op.v[k]);
    Array<T>* model = !op.model.empty() && op.model[k] ? &sheet.update(op.model[k]) : nullptr;
    if (op.clear) sheet.out(op.grad[k], Sheet<T>::Check::exact);
    if (value_of(clip[2]) != 0) continue;
    for (int64_t i = 0; i < w.size(); ++i) {
      const T g = clip[1] * grad[i];
      m[i] = T(op.beta1) * m[i] + (T(1) - T(op.beta1)) * g;
      v[i] = T(op.beta2) * v[i] + (T(1) - T(op.beta2)) * g * g;
      w[i] = w[i] * (T(1) - hyper[0] * T(op.decay)) -
             hyper[0] * (m[i] / T(correct1)) / (sqrt(v[i] / T(correct2)) + T(op.eps));
      if (model) (*model)[i] = w[i];
    }
  }
}

QENG_CONFORMANCE(SumSquares, .make = sum_squares, .free_shape = {"x"});
QENG_CONFORMANCE(ClipScale, .make = clip_scale, .free_shape = {"partials"});
QENG_CONFORMANCE(AdamW, .make = adamw);

}  // namespace qeng::conformance
