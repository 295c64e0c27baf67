#include "engine/autograd/functions.h"

namespace qeng {

TensorPtr causal_conv(Tape& tape, const TensorPtr& x, const TensorPtr& w, const TensorPtr& bias, const TensorPtr& cu,
                      const ConvPages& kept) {
  Device& device = tape.device();
  const auto view = [](const TensorPtr& tensor) { return tensor ? tensor->view : View(); };
  const bool records = tape.wants({x, w, bias});
  if (records && kept.state)
    fail("unsupported", "causal_conv: a state is of inference, and no gradient passes it: use q.no_grad");
  TensorPtr y = make_like(*x);
  device.run(CausalConv{.x = x->view,
                        .w = w->view,
                        .bias = view(bias),
                        .cu = cu->view,
                        .state = view(kept.state),
                        .pages = view(kept.pages),
                        .lengths = view(kept.lengths),
                        .y = y->view,
                        .page_tokens = kept.page_tokens});
  if (!records) return y;
  tape.record({y}, [=, &tape, &device] {
    CausalConvGrad grad{.x = x->view, .w = w->view, .cu = cu->view, .dy = y->grad->view};
    TensorPtr dx, dw, db;
    if (x->needs_grad()) grad.dx = (dx = make_like(*x))->view;
    if (w->needs_grad()) grad.dw = (dw = make_tensor(device, {w->view.shape[0], w->view.shape[1]}, DType::f32))->view;
    if (bias && bias->needs_grad()) grad.dbias = (db = make_tensor(device, {x->view.columns()}, DType::f32))->view;
    device.run(grad);
    if (dx) tape.pass(x, dx);
    if (dw) tape.pass(w, dw);
    if (db) tape.pass(bias, db);
  });
  return y;
}

}  // namespace qeng
