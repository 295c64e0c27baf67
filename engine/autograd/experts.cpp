// What mixtures of experts are made of.
#include "engine/autograd/functions.h"
#include "kernels/view_text.h"

namespace qeng {
namespace {

void check(const TensorPtr& x, const TensorPtr& w, const Grouped& options, bool wanted) {
  if (x->view.rank != 2 || w->view.rank != 3 || x->view.columns() != w->view.columns())
    fail("shape", "grouped_linear: x is ", shape_text(x->view), ", w is ", shape_text(w->view),
         "; expected [rows, in] and [experts, out, in]");
  if (w->learner) fail("unsupported", "grouped_linear: weights of experts have no learner");
  if (options.apart && wanted)
    fail("value", "grouped_linear: products apart have no gradient: call it in q.no_grad, or without `apart`");
  if (!options.lora) return;
  const View &a = options.lora.a->view, &b = options.lora.b->view;
  if (a.rank != 3 || b.rank != 3 || a.shape[1] != b.shape[2])
    fail("shape", "grouped_linear: lora.a is ", shape_text(a), ", lora.b is ", shape_text(b),
         "; expected [experts, rank, in] and [experts, out, rank]");
}

// Adds dy_e^T x_e to the gradient of w, and the sums of dy_e to that of the bias, which may be null as w may be.
void add_gradients(Tape& tape, const TensorPtr& w, const TensorPtr& bias, const View& dy, const View& x,
                   const View& first) {
  const auto wanted = [](const TensorPtr& t) { return t && t->needs_grad(); };
  const auto add = [&](const TensorPtr& t, View GroupedMatmulGrad::*result) {
    GroupedMatmulGrad op{.dy = dy, .x = x, .first = first};
    if (t->requires_grad || t->view.dtype == DType::f32) {
      const Tape::Target target = tape.gradient_of(t);
      op.*result = target.view, op.acc = target.acc;
      return tape.device().run(op);
    }
    const Shape shape(t->view.shape, t->view.shape + t->view.rank);  // a gradient that is rounded to t's dtype
    const TensorPtr wide = make_tensor(tape.device(), shape, DType::f32), g = make_like(*t);
    op.*result = wide->view;
    tape.device().run(op);
    tape.device().run(Cast{wide->view, g->view});
    tape.pass(t, g);
  };
  if (wanted(w)) add(w, &GroupedMatmulGrad::dw);
  if (wanted(bias)) add(bias, &GroupedMatmulGrad::dbias);
}

}  // namespace

TensorPtr grouped_linear(Tape& tape, const TensorPtr& x, const TensorPtr& w, const TensorPtr& first,
                         const Grouped& options) {
  Device& device = tape.device();
  const Lora lora = options.lora;
  const TensorPtr bias = options.bias;
  const bool wanted = tape.wants({x, w, bias, lora.a, lora.b}), apart = options.apart;
  check(x, w, options, wanted);
  const int64_t rows = x->view.rows(), rank = lora ? lora.a->view.shape[1] : 0;
  const Shape shape{rows, w->view.shape[1]};
  const TensorPtr y = make_tensor(device, shape, options.out);

  const bool dropped = lora && lora.dropout > 0 && tape.training();
  const uint32_t subsequence = dropped ? tape.next_subsequence() : 0;
  const auto adapter_input = [&tape, &device, x, dropped, subsequence, p = lora.dropout] {
    if (!dropped) return x;
    TensorPtr xd = make_like(*x);
    device.run(Dropout{x->view, xd->view, tape.rng()->view, p, subsequence});
    return xd;
  };
  TensorPtr u;  // lora.scale x a_e^T, [rows, rank]
  if (lora) {
    u = make_tensor(device, {rows, rank}, x->view.dtype);
    const TensorPtr input = adapter_input();
    device.run(GroupedMatmul{.x = input->view, .w = lora.a->view, .first = first->view, .y = u->view, .apart = apart});
    device.run(Scale{u->view, u->view, lora.scale});
    device.run(GroupedMatmul{.x = u->view, .w = lora.b->view, .first = first->view, .y = y->view, .apart = apart});
  }
  device.run(GroupedMatmul{.x = x->view,
                           .w = w->view,
                           .bias = bias ? bias->view : View(),
                           .first = first->view,
                           .y = y->view,
                           .apart = apart,
                           .acc = static_cast<bool>(lora)});
  if (!wanted) return y;

  tape.record({y}, [=, &tape, &device] {
    TensorPtr dy_tensor = y->grad;
    if (dy_tensor->view.dtype != x->view.dtype) {  // y was asked for in another dtype
      dy_tensor = make_tensor(device, shape, x->view.dtype);
      device.run(Cast{y->grad->view, dy_tensor->view});
    }
    const View dy = dy_tensor->view, starts = first->view;
    add_gradients(tape, w, bias, dy, x->view, starts);
    TensorPtr du;
    if (lora) {
      du = make_tensor(device, {rows, rank}, x->view.dtype);
      device.run(GroupedMatmul{.x = dy, .w = lora.b->view, .first = starts, .y = du->view, .tall = true});
      device.run(Scale{du->view, du->view, lora.scale});
      add_gradients(tape, lora.b, nullptr, dy, u->view, starts);
      if (lora.a->needs_grad()) add_gradients(tape, lora.a, nullptr, du->view, adapter_input()->view, starts);
    }
    if (!x->needs_grad()) return;
    Tape::Target dx = tape.gradient_of(x);
    const auto back = [&](const View& of, const TensorPtr& weight, const View& to, bool acc) {
      device.run(GroupedMatmul{.x = of, .w = weight->view, .first = starts, .y = to, .tall = true, .acc = acc});
    };
    if (lora && dropped && dx.acc) {
      const TensorPtr through = make_like(*x);
      back(du->view, lora.a, through->view, false);
      device.run(Dropout{through->view, through->view, tape.rng()->view, lora.dropout, subsequence});
      tape.pass(x, through);
      dx = tape.gradient_of(x);  // which may lie elsewhere now
    } else if (lora) {
      back(du->view, lora.a, dx.view, dx.acc);
      if (dropped) device.run(Dropout{dx.view, dx.view, tape.rng()->view, lora.dropout, subsequence});
    }
    back(dy, w, dx.view, dx.acc || lora);
  });
  return y;
}

Routed route(Device& device, const TensorPtr& scores, int64_t k, const TensorPtr& bias) {
  if (scores->view.rank != 2)
    fail("shape", "route: scores is ", shape_text(scores->view), ", expected [tokens, experts]");
  const int64_t tokens = scores->view.shape[0], experts = scores->view.shape[1];
  if (k < 1 || k > experts) fail("value", "route: ", k, " of ", experts, " experts; expected 1 to ", experts);
  const auto made = [&](const Shape& shape) { return make_tensor(device, shape, DType::i32); };
  Routed to{made({tokens, k}), made({tokens * k}), made({experts + 1}), made({tokens, k})};
  device.run(
      Route{scores->view, bias ? bias->view : View(), to.choice->view, to.order->view, to.first->view, to.place->view});
  return to;
}

TensorPtr dispatch(Tape& tape, const TensorPtr& x, const TensorPtr& place) {
  const TensorPtr y = make_tensor(tape.device(), {place->view.elements(), x->view.columns()}, x->view.dtype);
  tape.device().run(Dispatch{.x = x->view, .place = place->view, .y = y->view});
  if (!tape.wants({x})) return y;
  tape.record({y}, [=, &tape] {
    const TensorPtr dx = make_like(*x);
    tape.device().run(Combine{.x = y->grad->view, .place = place->view, .y = dx->view});
    tape.pass(x, dx);
  });
  return y;
}

TensorPtr combine(Tape& tape, const TensorPtr& rows, const TensorPtr& place, const TensorPtr& weight) {
  Device& device = tape.device();
  const TensorPtr y = make_tensor(device, {place->view.rows(), rows->view.columns()}, rows->view.dtype);
  const View factors = weight ? weight->view : View();
  device.run(Combine{rows->view, place->view, factors, y->view});
  if (!tape.wants({rows, weight})) return y;
  tape.record({y}, [=, &tape, &device] {
    const TensorPtr drows = make_like(*rows);
    Dispatch op{.x = y->grad->view, .place = place->view, .weight = factors, .y = drows->view};
    const bool weighs = weight && weight->needs_grad();
    const TensorPtr dweight = weighs ? make_like(*weight) : nullptr;
    if (weighs) op.rows = rows->view, op.dot = dweight->view;
    device.run(op);
    if (rows->needs_grad()) tape.pass(rows, drows);
    if (weighs) tape.pass(weight, dweight);
  });
  return y;
}

}  // namespace qeng
