#include "engine/autograd/functions.h"

namespace qeng {

TensorPtr scale_columns(Tape& tape, const TensorPtr& x, const TensorPtr& scale, const TensorPtr& bias) {
  Device& device = tape.device();
  TensorPtr y = make_like(*x);
  device.run(ScaleColumns{x->view, scale->view, bias ? bias->view : View(), y->view});
  if (!tape.wants({x, scale, bias})) return y;
  tape.record({y}, [=, &tape, &device] {
    const View dy = y->grad->view;
    if (bias && bias->needs_grad()) {
      const Tape::Target db = tape.gradient_of(bias);
      device.run(BiasGrad{dy, db.view, db.acc});
    }
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

}  // namespace qeng
