#include "engine/autograd/functions.h"
#include "kernels/view_text.h"

namespace qeng {

Rotated rope(Tape& tape, const TensorPtr& query, const TensorPtr& key, const TensorPtr& positions,
             const TensorPtr& inv_freq, float scale, bool interleaved) {
  Device& device = tape.device();
  const Rotated rotated{make_like(*query), key ? make_like(*key) : nullptr};
  Rope op{.x = query->view,
          .positions = positions->view,
          .inv_freq = inv_freq->view,
          .y = rotated.query->view,
          .scale = scale,
          .interleaved = interleaved};
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
    Rope back{.positions = positions->view, .inv_freq = inv_freq->view, .scale = scale};
    back.inverse = true, back.interleaved = interleaved;
    back.x = gradients[0].dy->view, back.y = gradients[0].dx->view;
    if (gradients.size() > 1) back.x2 = gradients[1].dy->view, back.y2 = gradients[1].dx->view;
    device.run(back);
    for (const Gradient& gradient : gradients) tape.pass(gradient.of, gradient.dx);
  });
  return rotated;
}

TensorPtr attention(Tape& tape, const TensorPtr& q, const TensorPtr& k, const TensorPtr& v, const Documents& documents,
                    const AttentionOptions& options) {
  if (q->view.rank != 3 || v->view.rank != 3)
    fail("shape", "attention: query is ", shape_text(q->view), ", value is ", shape_text(v->view),
         "; expected [tokens, heads, head_dim] and [tokens, kv_heads, value_dim]");
  Device& device = tape.device();
  const TensorPtr sinks = options.sinks;
  const View cu_q = documents.cu_q->view, cu_k = documents.cu_k->view, of_sinks = sinks ? sinks->view : View();
  const int64_t tokens = q->view.shape[0], heads = q->view.shape[1];
  TensorPtr o = make_tensor(device, {tokens, heads, v->view.shape[2]}, q->view.dtype);
  TensorPtr lse = make_tensor(device, {heads, tokens}, DType::f32);
  device.run(Attention{q->view, k->view, v->view, cu_q, cu_k, o->view, lse->view, options.scale, options.window,
                       of_sinks, options.softcap});
  if (!tape.wants({q, k, v, sinks})) return o;
  tape.record({o}, [=, &tape, &device, keep = documents] {
    TensorPtr dq = make_like(*q), dk = make_like(*k), dv = make_like(*v), delta = make_like(*lse);
    const TensorPtr dsinks = sinks && sinks->needs_grad() ? make_like(*sinks) : nullptr;
    AttentionGrad back{q->view,  k->view,   v->view,       cu_q,           cu_k,
                       o->view,  lse->view, o->grad->view, delta->view,    dq->view,
                       dk->view, dv->view,  options.scale, options.window, of_sinks};
    back.softcap = options.softcap;
    if (dsinks) back.dsinks = dsinks->view;
    device.run(back);
    if (q->needs_grad()) tape.pass(q, dq);
    if (k->needs_grad()) tape.pass(k, dk);
    if (v->needs_grad()) tape.pass(v, dv);
    if (dsinks) tape.pass(sinks, dsinks);
  });
  return o;
}

}  // namespace qeng
