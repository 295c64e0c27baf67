#include "engine/autograd/functions.h"

namespace qeng {

Rotated rope(Tape& tape, const TensorPtr& query, const TensorPtr& key, const TensorPtr& positions,
             const TensorPtr& inv_freq, float scale) {
  Device& device = tape.device();
  const Rotated rotated{make_like(*query), key ? make_like(*key) : nullptr};
  Rope op{.x = query->view,
          .positions = positions->view,
          .inv_freq = inv_freq->view,
          .y = rotated.query->view,
          .scale = scale};
  if (key) op.x2 = key->view, op.y2 = rotated.key->view;
  device.run(op);
  if (!tape.wants({query, key})) return rotated;
  std::vector<TensorPtr> outputs{rotated.query};
  if (key) outputs.push_back(rotated.key);
  tape.record(outputs, [=, &tape, &device] {
    struct Gradient {
      TensorPtr of, dy, dx;
    };
    std::vector<Gradient> gradients;
    if (query->needs_grad() && rotated.query->grad)
      gradients.push_back({query, rotated.query->grad, make_like(*query)});
    if (key && key->needs_grad() && rotated.key->grad) gradients.push_back({key, rotated.key->grad, make_like(*key)});
    if (gradients.empty()) return;
    Rope back{.positions = positions->view, .inv_freq = inv_freq->view, .scale = scale, .inverse = true};
    back.x = gradients[0].dy->view, back.y = gradients[0].dx->view;
    if (gradients.size() > 1) back.x2 = gradients[1].dy->view, back.y2 = gradients[1].dx->view;
    device.run(back);
    for (const Gradient& gradient : gradients) tape.pass(gradient.of, gradient.dx);
  });
  return rotated;
}

TensorPtr attention(Tape& tape, const TensorPtr& q, const TensorPtr& k, const TensorPtr& v, const Documents& documents,
                    float scale, int window) {
  if (q->view.rank != 3)
    fail("shape", "attention: query is ", shape_text(q->view), ", expected [tokens, heads, head_dim]");
  Device& device = tape.device();
  const View cu_q = documents.cu_q->view, cu_k = documents.cu_k->view;
  TensorPtr o = make_like(*q), lse = make_tensor(device, {q->view.shape[1], q->view.shape[0]}, DType::f32);
  device.run(Attention{q->view, k->view, v->view, cu_q, cu_k, o->view, lse->view, scale, window});
  if (!tape.wants({q, k, v})) return o;
  tape.record({o}, [=, &tape, &device, keep = documents] {
    TensorPtr dq = make_like(*q), dk = make_like(*k), dv = make_like(*v), delta = make_like(*lse);
    device.run(AttentionGrad{q->view, k->view, v->view, cu_q, cu_k, o->view, lse->view, o->grad->view, delta->view,
                             dq->view, dk->view, dv->view, scale, window});
    if (q->needs_grad()) tape.pass(q, dq);
    if (k->needs_grad()) tape.pass(k, dk);
    if (v->needs_grad()) tape.pass(v, dv);
  });
  return o;
}

}  // namespace qeng
