// LmHeadLoss and the optimizer's ops from their equations in kernels/ops.h.
#pragma once
#include "tests/conformance/sheet.h"

namespace qeng::conformance {

template <class T>
void reference(const LmHeadLoss& op, Sheet<T>& sheet) {
  using std::exp, std::log;
  const Array<T> h = sheet.in(op.h);
  Array<T> w = sheet.in(op.w);
  if (op.w.dtype != op.h.dtype)
    for (T& x : w.values) x = kept(x, unit_roundoff(op.h.dtype));  // decoded to h's dtype
  const auto targets = sheet.integers(op.targets);
  const T scale = sheet.in(op.loss_scale)[0];
  Array<T>&nll = sheet.out(op.nll), &loss = sheet.out(op.loss);
  Array<T>* dh = op.dh ? &sheet.out(op.dh) : nullptr;
  Array<T>* dw = op.dw ? &sheet.update(op.dw) : nullptr;
  if (op.workspace) sheet.scratch(op.workspace);
  const int64_t vocab = op.w.shape[0], hidden = op.w.shape[1];
  const double half_ulp = unit_roundoff(op.h.dtype);  // logits, and their gradient in the same place, have h's dtype
  for (int64_t t = 0; t < op.h.shape[0]; ++t) {
    const int64_t target = targets[static_cast<size_t>(t)];
    if (target < 0) continue;
    std::vector<T> z;
    double top = -INFINITY;
    for (int64_t c = 0; c < vocab; ++c) {
      T sum = 0;
      for (int64_t i = 0; i < hidden; ++i) sum += h(t, i) * w(c, i);
      z.push_back(kept(sum, half_ulp));
      top = std::max(top, value_of(sum));
    }
    T total = 0;
    for (const T& logit : z) total += exp(logit - T(top));
    nll[t] = T(top) + log(total) - z[static_cast<size_t>(target)];
    loss[0] += scale * nll[t];
    for (int64_t c = 0; c < vocab && (dh || dw); ++c) {
      const T p = exp(z[static_cast<size_t>(c)] - T(top)) / total;
      const T dz = kept(scale * (c == target ? p - T(1) : p), half_ulp);
      for (int64_t i = 0; i < hidden; ++i) {
        if (dh) (*dh)(t, i) += dz * w(c, i);
        if (dw) (*dw)(c, i) += dz * h(t, i);
      }
    }
  }
}

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

}  // namespace qeng::conformance
