// Norm, activation, residual, dropout, transforms, casts and reshapes.
#include "engine/autograd/functions.h"

namespace qeng {

TensorPtr rmsnorm(Tape& tape, const TensorPtr& x, const TensorPtr& w, float eps, bool plus_one) {
  Device& device = tape.device();
  TensorPtr y = make_like(*x), rstd = make_tensor(device, {x->view.rows()}, DType::f32);
  device.run(RmsNorm{x->view, w->view, y->view, rstd->view, eps, plus_one});
  if (!tape.wants({x, w})) return y;
  tape.record({y}, [=, &tape, &device] {
    RmsNormGrad grad{.x = x->view, .w = w->view, .rstd = rstd->view, .dy = y->grad->view, .plus_one = plus_one};
    TensorPtr unwanted;  // the op always gives dx
    if (x->needs_grad()) {
      const Tape::Target dx = tape.gradient_of(x);
      grad.dx = dx.view;
      if (dx.acc) grad.dresidual = dx.view;
    } else {
      unwanted = make_like(*x);
      grad.dx = unwanted->view;
    }
    if (w->needs_grad()) {
      const Tape::Target dw = tape.gradient_of(w);
      grad.dw = dw.view, grad.acc_dw = dw.acc;
    }
    device.run(grad);
  });
  return y;
}

TensorPtr layer_norm(Tape& tape, const TensorPtr& x, const TensorPtr& w, const TensorPtr& b, float eps) {
  Device& device = tape.device();
  TensorPtr y = make_like(*x), mean = make_tensor(device, {x->view.rows()}, DType::f32),
            rstd = make_tensor(device, {x->view.rows()}, DType::f32);
  device.run(LayerNorm{x->view, w->view, b ? b->view : View(), y->view, mean->view, rstd->view, eps});
  if (!tape.wants({x, w, b})) return y;
  tape.record({y}, [=, &tape, &device] {
    LayerNormGrad grad{.x = x->view, .w = w->view, .mean = mean->view, .rstd = rstd->view, .dy = y->grad->view};
    const TensorPtr dx = make_like(*x);
    grad.dx = dx->view;
    // The op sets both sums or adds to both, and they may differ in that: so each gets memory of its own.
    TensorPtr dw, db;
    if (w->needs_grad()) grad.dw = (dw = make_tensor(device, {w->view.columns()}, DType::f32))->view;
    if (b && b->needs_grad()) grad.db = (db = make_tensor(device, {w->view.columns()}, DType::f32))->view;
    device.run(grad);
    if (x->needs_grad()) tape.pass(x, dx);
    if (dw) tape.pass(w, dw);
    if (db) tape.pass(b, db);
  });
  return y;
}

NormedSum add_rmsnorm(Tape& tape, const TensorPtr& a, const TensorPtr& b, const TensorPtr& w, float eps,
                      bool plus_one) {
  Device& device = tape.device();
  TensorPtr sum = make_like(*a), y = make_like(*a), rstd = make_tensor(device, {a->view.rows()}, DType::f32);
  device.run(AddRmsNorm{a->view, b->view, w->view, sum->view, y->view, rstd->view, eps, plus_one});
  if (!tape.wants({a, b, w})) return {sum, y};
  tape.record({sum, y}, [=, &tape, &device] {
    TensorPtr dsum = sum->grad;
    if (y->grad) {
      RmsNormGrad grad{.x = sum->view, .w = w->view, .rstd = rstd->view, .dy = y->grad->view, .plus_one = plus_one};
      if (dsum) grad.dresidual = dsum->view;
      TensorPtr dx = make_like(*sum);
      grad.dx = dx->view;
      if (w->needs_grad()) {
        const Tape::Target dw = tape.gradient_of(w);
        grad.dw = dw.view, grad.acc_dw = dw.acc;
      }
      device.run(grad);
      dsum = dx;
    }
    sum->grad.reset();
    if (a->needs_grad()) tape.pass(a, dsum);
    if (b->needs_grad()) tape.pass(b, dsum);
  });
  return {sum, y};
}

TensorPtr swiglu(Tape& tape, const TensorPtr& gate, const TensorPtr& up, bool gelu) {
  Device& device = tape.device();
  TensorPtr y = make_like(*gate);
  device.run(SwiGlu{gate->view, up->view, y->view, gelu});
  if (!tape.wants({gate, up})) return y;
  tape.record({y}, [=, &tape, &device] {
    TensorPtr dgate = make_like(*gate), dup = make_like(*up);
    device.run(SwiGluGrad{gate->view, up->view, y->grad->view, dgate->view, dup->view, gelu});
    if (gate->needs_grad()) tape.pass(gate, dgate);
    if (up->needs_grad()) tape.pass(up, dup);
  });
  return y;
}

void add_into(Tape& tape, const TensorPtr& a, const TensorPtr& b, const TensorPtr& y) {
  tape.device().run(Add{a->view, b->view, y->view});
  if (!tape.wants({a, b})) return;
  tape.record({y}, [=, &tape] {
    if (a->needs_grad()) tape.pass(a, y->grad);
    if (b->needs_grad()) tape.pass(b, y->grad);
  });
}
TensorPtr add(Tape& tape, const TensorPtr& a, const TensorPtr& b) {
  TensorPtr y = make_like(*a);
  add_into(tape, a, b, y);
  return y;
}

void scale_into(Tape& tape, const TensorPtr& x, float alpha, const TensorPtr& y) {
  Device& device = tape.device();
  device.run(Scale{x->view, y->view, alpha});
  if (!tape.wants({x})) return;
  tape.record({y}, [=, &tape, &device] {
    TensorPtr dx = make_like(*x);
    device.run(Scale{y->grad->view, dx->view, alpha});
    tape.pass(x, dx);
  });
}

TensorPtr cast(Tape& tape, const TensorPtr& x, DType dtype) {
  Device& device = tape.device();
  TensorPtr y = make_tensor(device, Shape(x->view.shape, x->view.shape + x->view.rank), dtype);
  copy_into(*y, *x);
  if (!is_float(dtype) || !tape.wants({x})) return y;
  tape.record({y}, [=, &tape, &device] {
    TensorPtr dx = make_like(*x);
    device.run(Cast{y->grad->view, dx->view});
    tape.pass(x, dx);
  });
  return y;
}

TensorPtr reshape(Tape& tape, const TensorPtr& x, const Shape& shape) {
  TensorPtr y = reshape_view(x, shape);
  if (!tape.wants({x})) return y;
  tape.record({y}, [=, &tape] {
    TensorPtr g = reshape_view(y->grad, Shape(x->view.shape, x->view.shape + x->view.rank));
    y->grad.reset();  // so that g is the only sharer, unless y's gradient came from pass()
    tape.pass(x, g);
  });
  return y;
}

TensorPtr hadamard(Tape& tape, const TensorPtr& x, const TensorPtr& signs, int block, bool inverse) {
  Device& device = tape.device();
  const View factors = signs ? signs->view : View();
  TensorPtr y = make_like(*x);
  device.run(Hadamard{x->view, factors, y->view, block, inverse});
  if (!tape.wants({x})) return y;
  tape.record({y}, [=, &tape, &device] {
    TensorPtr dx = make_like(*x);
    device.run(Hadamard{y->grad->view, signs ? signs->view : View(), dx->view, block, !inverse});
    tape.pass(x, dx);
  });
  return y;
}

TensorPtr dropout(Tape& tape, const TensorPtr& x, float p) {
  if (!(p >= 0 && p < 1)) fail("value", "dropout: p = ", p, " is not in [0, 1)");
  if (p == 0 || !tape.training()) return x;
  Device& device = tape.device();
  const uint32_t subsequence = tape.next_subsequence();
  TensorPtr y = make_like(*x);
  device.run(Dropout{x->view, y->view, tape.rng()->view, p, subsequence});
  if (!tape.wants({x})) return y;
  tape.record({y}, [=, &tape, &device] {
    TensorPtr dx = make_like(*x);
    device.run(Dropout{y->grad->view, dx->view, tape.rng()->view, p, subsequence});
    tape.pass(x, dx);
  });
  return y;
}

TensorPtr embedding_noise(Tape& tape, const TensorPtr& x, const TensorPtr& cu, float strength) {
  if (strength == 0 || !tape.training()) return x;
  TensorPtr y = make_like(*x);
  tape.device().run(EmbeddingNoise{x->view, cu->view, y->view, tape.rng()->view, strength, tape.next_subsequence()});
  if (tape.wants({x})) tape.record({y}, [=, &tape] { tape.pass(x, y->grad); });
  return y;
}

}  // namespace qeng
