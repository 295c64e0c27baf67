#include "engine/autograd/functions.h"

namespace qeng {

TensorPtr gated_delta(Tape& tape, const TensorPtr& x, const TensorPtr& g, const TensorPtr& beta, const TensorPtr& cu,
                      const DeltaShape& shape, const DeltaPages& kept) {
  Device& device = tape.device();
  const auto view = [](const TensorPtr& tensor) { return tensor ? tensor->view : View(); };
  const bool records = tape.wants({x, g, beta});
  if (records && kept.state)
    fail("unsupported", "gated_delta: a state is of inference, and no gradient passes it: use q.no_grad");
  TensorPtr o = make_tensor(device, {x->view.rows(), shape.value_heads * shape.value_dim}, x->view.dtype);
  device.run(GatedDelta{.x = x->view,
                        .g = g->view,
                        .beta = beta->view,
                        .cu = cu->view,
                        .o = o->view,
                        .state = view(kept.state),
                        .rows = view(kept.rows),
                        .pages = view(kept.pages),
                        .lengths = view(kept.lengths),
                        .shape = shape,
                        .page_tokens = kept.page_tokens});
  if (!records) return o;
  tape.record({o}, [=, &tape, &device] {
    const TensorPtr dx = make_like(*x), dg = make_like(*g), dbeta = make_like(*beta);
    device.run(GatedDeltaGrad{.x = x->view,
                              .g = g->view,
                              .beta = beta->view,
                              .cu = cu->view,
                              .dout = o->grad->view,
                              .dx = dx->view,
                              .dg = dg->view,
                              .dbeta = dbeta->view,
                              .shape = shape});
    tape.pass(x, dx);
    tape.pass(g, dg);
    tape.pass(beta, dbeta);
  });
  return o;
}

}  // namespace qeng
