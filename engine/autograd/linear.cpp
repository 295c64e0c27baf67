#include "engine/autograd/functions.h"
#include "engine/autograd/learner.h"

namespace qeng {

TensorPtr linear(Tape& tape, const TensorPtr& x, const TensorPtr& w, const TensorPtr& bias, const Lora& lora,
                 DType out) {
  if (x->view.rank < 1 || w->view.rank != 2 || x->view.columns() != w->view.shape[1])
    fail("shape", "linear: x is ", shape_text(x->view), ", w is ", shape_text(w->view), "; w has to be [out, ",
         x->view.columns(), "]");
  Device& device = tape.device();
  const int64_t rows = x->view.rows(), rank = lora ? lora.a->view.shape[0] : 0;
  Shape shape(x->view.shape, x->view.shape + x->view.rank);
  shape.back() = w->view.shape[0];
  TensorPtr y = make_tensor(device, shape, out);

  const bool dropped = lora && lora.dropout > 0 && tape.training();
  const uint32_t subsequence = dropped ? tape.next_subsequence() : 0;
  TensorPtr u;  // x a^T, [rows, rank]
  const auto dropped_x = [&tape, &device, x, subsequence, p = lora.dropout] {
    TensorPtr xd = make_like(*x);
    device.run(Dropout{x->view, xd->view, tape.rng()->view, p, subsequence});
    return xd;
  };
  // The adapter's share comes first and the large product adds to it: it reads y while it computes, so that y is moved
  // twice and not three times, and is rounded last.
  if (lora) {
    u = make_tensor(device, {rows, rank}, x->view.dtype);
    const TensorPtr input = dropped ? dropped_x() : x;
    device.run(Matmul{.a = input->view, .b = lora.a->view, .c = u->view, .trans_b = true});
    device.run(Matmul{.a = u->view, .b = lora.b->view, .c = y->view, .trans_b = true, .alpha = lora.scale});
  }
  Matmul product{.a = x->view, .b = w->view, .bias = bias ? bias->view : View(), .c = y->view, .trans_b = true};
  product.acc = static_cast<bool>(lora);
  device.run(product);
  if (!tape.wants({x, w, bias, lora.a, lora.b}) && !(w->learner && tape.recording())) return y;

  tape.record({y}, [=, &tape, &device] {
    TensorPtr dy_tensor = y->grad;
    if (dy_tensor->view.dtype != x->view.dtype) {  // y was asked for in another dtype
      dy_tensor = make_tensor(device, shape, x->view.dtype);
      device.run(Cast{y->grad->view, dy_tensor->view});
    }
    const View dy = dy_tensor->view;
    if (bias && bias->needs_grad()) {
      const Tape::Target db = tape.gradient_of(bias);
      device.run(BiasGrad{dy, db.view, db.acc});
    }
    if (w->needs_grad() && !w->learner) {
      const Tape::Target dw = tape.gradient_of(w);
      device.run(Matmul{.a = dy, .b = x->view, .c = dw.view, .trans_a = true, .acc = dw.acc});
    }
    TensorPtr du;
    if (lora) {
      du = make_tensor(device, {rows, rank}, x->view.dtype);
      device.run(Matmul{.a = dy, .b = lora.b->view, .c = du->view, .alpha = lora.scale});
      if (lora.b->needs_grad()) {
        const Tape::Target db = tape.gradient_of(lora.b);
        device.run(Matmul{.a = dy, .b = u->view, .c = db.view, .trans_a = true, .acc = db.acc, .alpha = lora.scale});
      }
      if (lora.a->needs_grad()) {
        const TensorPtr input = dropped ? dropped_x() : x;
        const Tape::Target da = tape.gradient_of(lora.a);
        device.run(Matmul{.a = du->view, .b = input->view, .c = da.view, .trans_a = true, .acc = da.acc});
      }
    }
    const auto learn = [&] {
      if (w->learner) w->learner->learn(tape, dy, x->view);
    };
    if (!x->needs_grad()) return learn();
    Tape::Target dx = tape.gradient_of(x);
    if (lora && dropped && dx.acc) {
      TensorPtr through = make_like(*x);
      device.run(Matmul{.a = du->view, .b = lora.a->view, .c = through->view});
      device.run(Dropout{through->view, through->view, tape.rng()->view, lora.dropout, subsequence});
      tape.pass(x, through);
      dx = tape.gradient_of(x);  // which may lie elsewhere now
    } else if (lora) {
      device.run(Matmul{.a = du->view, .b = lora.a->view, .c = dx.view, .acc = dx.acc});
      if (dropped) device.run(Dropout{dx.view, dx.view, tape.rng()->view, lora.dropout, subsequence});
    }
    device.run(Matmul{.a = dy, .b = w->view, .c = dx.view, .acc = dx.acc || lora});
    learn();
  });
  return y;
}

TensorPtr merge_lora(const TensorPtr& w, const Lora& lora) {
  Device& device = w->device();
  const Shape shape(w->view.shape, w->view.shape + w->view.rank);
  const auto f32_of = [&](const TensorPtr& x) {
    TensorPtr y = make_tensor(device, Shape(x->view.shape, x->view.shape + x->view.rank), DType::f32, "workspace");
    copy_into(*y, *x);
    return y;
  };
  const TensorPtr sum = f32_of(w), a = f32_of(lora.a), b = f32_of(lora.b);
  device.run(Matmul{.a = b->view, .b = a->view, .c = sum->view, .acc = true, .alpha = lora.scale});
  const bool stored = w->view.dtype != lora.a->view.dtype;  // not of the dtype that the model computes in
  TensorPtr merged = make_tensor(device, shape, stored ? DType::f32 : w->view.dtype, "weights");
  copy_into(*merged, *sum);
  return merged;
}

}  // namespace qeng
