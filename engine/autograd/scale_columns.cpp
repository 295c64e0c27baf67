#include "engine/autograd/functions.h"

namespace qeng {

TensorPtr scale_columns(Tape& tape, const TensorPtr& x, const TensorPtr& scale, const TensorPtr& bias) {
  Device& device = tape.device();
  TensorPtr y = make_like(*x);
  device.run(ScaleColumns{x->view, scale->view, bias ? bias->view : View(), y->view});
  if (!tape.wants({x, scale, bias})) return y;
  tape.record({y}, [=, &tape, &device] {
    const View dy = y->grad->view;
    bias_back(tape, dy, bias);
    ScaleColumnsGrad gradient{x->view, scale->view, dy, {}, {}};
    if (scale->needs_grad()) {
      const Tape::Target target = tape.gradient_of(scale);
      gradient.dscale = target.view, gradient.acc = target.acc;
    }
    const TensorPtr dx = make_like(*x);
    gradient.dx = dx->view;
    device.run(gradient);
    if (x->needs_grad()) tape.pass(x, dx);
  });
  return y;
}

void bias_back(Tape& tape, const View& dy, const TensorPtr& bias) {
  if (!bias || !bias->needs_grad()) return;
  if (bias->requires_grad || bias->view.dtype == DType::f32) {
    const Tape::Target db = tape.gradient_of(bias);
    return tape.device().run(BiasGrad{dy, db.view, db.acc});
  }
  // A part of a parameter, as GPT-2's bias of queries: its gradient is of its own dtype, and the sum is f32.
  const TensorPtr sum = make_tensor(tape.device(), {dy.columns()}, DType::f32), db = make_like(*bias);
  tape.device().run(BiasGrad{dy, sum->view, false});
  tape.device().run(Cast{sum->view, db->view});
  tape.pass(bias, db);
}

}  // namespace qeng
