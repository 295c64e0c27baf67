#include "engine/autograd/functions.h"

namespace qeng {

TensorPtr rope(Tape& tape, const TensorPtr& x, const TensorPtr& positions, const TensorPtr& inv_freq, float scale) {
  Device& device = tape.device();
  TensorPtr y = make_like(*x);
  device.run(Rope{x->view, positions->view, inv_freq->view, y->view, scale, false});
  if (!tape.wants({x})) return y;
  tape.record({y}, [=, &tape, &device] {
    TensorPtr dx = make_like(*x);
    device.run(Rope{y->grad->view, positions->view, inv_freq->view, dx->view, scale, true});
    tape.pass(x, dx);
  });
  return y;
}

TensorPtr attention(Tape& tape, const TensorPtr& q, const TensorPtr& k, const TensorPtr& v, const Documents& documents,
                    float scale, int window) {
  if (q->view.rank != 3) fail("shape", "attention: query is ", shape_text(q->view), ", expected [tokens, heads, head_dim]");
  Device& device = tape.device();
  const View cu_q = documents.cu_q->view, cu_k = documents.cu_k->view;
  TensorPtr o = make_like(*q), lse = make_tensor(device, {q->view.shape[1], q->view.shape[0]}, DType::f32);
  device.run(Attention{q->view, k->view, v->view, cu_q, cu_k, o->view, lse->view, scale, window});
  if (!tape.wants({q, k, v})) return o;
  tape.record({o}, [=, &tape, &device, keep = documents] {
    TensorPtr dq = make_like(*q), dk = make_like(*k), dv = make_like(*v), delta = make_like(*lse);
    device.run(AttentionGrad{q->view, k->view, v->view, cu_q, cu_k, o->view, lse->view, o->grad->view, delta->view, dq->view,
                             dk->view, dv->view, scale, window});
    if (q->needs_grad()) tape.pass(q, dq);
    if (k->needs_grad()) tape.pass(k, dk);
    if (v->needs_grad()) tape.pass(v, dv);
  });
  return o;
}

}  // namespace qeng
