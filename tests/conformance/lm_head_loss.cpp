// LmHeadLoss, which gives its gradients itself.
#include "tests/conformance/table.h"

namespace qeng::conformance {
namespace {

Op lm_head_loss(Draw& draw) {
  LmHeadLoss op;
  const DType dtype = draw.float_dtype();
  const bool stored = draw.integer(0, 2) == 0;  // a head that is only read
  const DType weights = stored ? draw.stored_dtype(dtype) : dtype;
  const int64_t tokens = draw.size(40), vocab = draw.size(70),
                hidden = is_block(weights) ? draw.row_length(weights, 256) : draw.size(40);
  const double share = draw.pick({0.0, 0.3, 0.8, 1.0});
  int64_t trained = tokens;
  op.h = draw.tensor(dtype, {tokens, hidden});
  op.w = draw.tensor(weights, {vocab, hidden}, hidden > 64 ? 0.2 : 0.5);
  op.targets = draw.tokens(tokens, vocab);
  for (int64_t t = 0; t < tokens; ++t)
    if (draw.uniform(0, 1) >= share) encode(op.targets, t, -1), --trained;
  if (draw.flip()) op.trained = draw.integer(trained, tokens);
  op.loss_scale = draw.values(DType::f32, {draw.uniform(0.01, 2)});
  op.nll = draw.empty(DType::f32, {tokens}), op.loss = draw.empty(DType::f32, {1});
  if (draw.integer(0, 3)) {
    op.dh = draw.empty_like(op.h);
    if (draw.flip() && !stored) op.dw = draw.tensor(DType::f32, {vocab, hidden});
  }
  if (draw.integer(0, 2) == 0) op.softcap = draw.pick({1.0f, 30.0f});
  op.chunk = static_cast<int>(draw.pick<int64_t>({1, 7, 16, 256}));
  op.workspace = draw.empty(DType::u8, {lm_head_workspace(tokens, hidden, vocab, op.chunk, op.h.dtype)});
  return op;
}

Chain lm_head_loss_chain(Draw& draw) {
  LmHeadLoss forward;
  const int64_t tokens = draw.size(6), hidden = draw.size(5), vocab = draw.size(7);
  forward.h = draw.tensor(DType::f32, {tokens, hidden}), forward.w = draw.tensor(DType::f32, {vocab, hidden});
  forward.targets = draw.tokens(tokens, vocab);
  encode(forward.targets, 0, draw.flip() ? -1 : 0);
  forward.loss_scale = draw.values(DType::f32, {0.3});
  forward.nll = draw.empty(DType::f32, {tokens}), forward.loss = draw.empty(DType::f32, {1});
  forward.softcap = draw.flip() ? 1.5f : 0;
  LmHeadLoss gradient = forward;
  gradient.dh = draw.empty_like(forward.h), gradient.dw = draw.tensor(DType::f32, {vocab, hidden}, 0);
  const Pairs pairs = {{forward.h, gradient.dh}, {forward.w, gradient.dw}};
  return {forward, {gradient}, forward.loss, draw.values(DType::f32, {1}), pairs};
}

}  // namespace

template <class T>
void reference(const LmHeadLoss& op, Sheet<T>& sheet) {
  using std::exp, std::log, std::tanh;
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
      sum = kept(sum, half_ulp);
      z.push_back(op.softcap > 0 ? T(op.softcap) * tanh(sum / T(op.softcap)) : sum);
      top = std::max(top, value_of(z.back()));
    }
    T total = 0;
    for (const T& logit : z) total += exp(logit - T(top));
    nll[t] = T(top) + log(total) - z[static_cast<size_t>(target)];
    loss[0] += scale * nll[t];
    for (int64_t c = 0; c < vocab && (dh || dw); ++c) {
      const T p = exp(z[static_cast<size_t>(c)] - T(top)) / total;
      T dz = scale * (c == target ? p - T(1) : p);
      if (op.softcap > 0) {
        const T share = z[static_cast<size_t>(c)] / T(op.softcap);
        dz = dz * (T(1) - share * share);
      }
      dz = kept(dz, half_ulp);
      for (int64_t i = 0; i < hidden; ++i) {
        if (dh) (*dh)(t, i) += dz * w(c, i);
        if (dw) (*dw)(c, i) += dz * h(t, i);
      }
    }
  }
}

QENG_CONFORMANCE(LmHeadLoss, .make = lm_head_loss, .free_shape = {"workspace"},
                 .derivatives = {{"lm_head_loss", lm_head_loss_chain}});

}  // namespace qeng::conformance
