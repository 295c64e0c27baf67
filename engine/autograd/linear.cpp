// Linear layers, with and without adapters.
#include <algorithm>
#include <utility>

#include "engine/autograd/functions.h"
#include "engine/autograd/learner.h"
#include "kernels/check_shapes.h"
#include "kernels/view_text.h"

namespace qeng {

namespace {

// The layers of one call, as forward leaves them to backward. Everything that is a list has an entry for each layer.
struct Linears {
  TensorPtr x;
  std::vector<LinearLayer> layers;
  std::vector<TensorPtr> y = {}, u = {};  // u: lora.scale dropout(x) a^T, [rows, rank], where there is an adapter
  std::vector<uint32_t> subsequence = {};
  bool dropped = false;  // in some adapter: each then reads an x of its own

  size_t count() const { return layers.size(); }
  int64_t rows() const { return x->view.rows(); }
  const Lora& lora(size_t i) const { return layers[i].lora; }
  View w(size_t i) const { return layers[i].w->view; }
};

void check_shapes_of(const TensorPtr& x, const std::vector<LinearLayer>& layers) {
  if (layers.empty()) fail("value", "linear: no layers");
  for (const LinearLayer& layer : layers) {
    const View& w = layer.w->view;
    if (x->view.rank < 1 || w.rank != 2 || x->view.columns() != w.shape[1])
      fail("shape", "linear: x is ", shape_text(x->view), ", w is ", shape_text(w), "; w has to be [out, ",
           x->view.columns(), "]");
    if (layer.fp8 && w.dtype != DType::f32 && w.dtype != DType::bf16)
      fail("dtype", "linear: fp8 rounds weights of f32 or bf16, and w is ", shape_text(w));
    if (layer.fp8 && layer.w->learner) fail("unsupported", "linear: a weight that learns on its own has no fp8");
  }
}

// The x that an adapter reads.
TensorPtr dropped_x(Tape& tape, const Linears& l, size_t i) {
  if (l.lora(i).dropout <= 0) return l.x;
  TensorPtr x = make_like(*l.x);
  tape.device().run(Dropout{l.x->view, x->view, tape.rng()->view, l.lora(i).dropout, l.subsequence[i]});
  return x;
}

// u of all adapters, at once where they read the same.
void down(Tape& tape, Linears& l) {
  LoraDown together{.x = l.x->view, .a = {}, .u = {}, .alpha = {}};
  for (size_t i = 0; i < l.count(); ++i) {
    const Lora& lora = l.lora(i);
    if (!lora) continue;
    for (size_t before = 0; before < i && !l.dropped; ++before)
      if (l.lora(before).a == lora.a && l.lora(before).scale == lora.scale) l.u[i] = l.u[before];
    if (l.u[i]) continue;
    l.u[i] = make_tensor(tape.device(), {l.rows(), lora.a->view.shape[0]}, l.x->view.dtype);
    if (l.dropped) {
      const TensorPtr input = dropped_x(tape, l, i);
      tape.device().run(LoraDown{input->view, {lora.a->view}, {l.u[i]->view}, {lora.scale}});
    } else {
      together.a.push_back(lora.a->view), together.u.push_back(l.u[i]->view), together.alpha.push_back(lora.scale);
    }
  }
  if (!together.a.empty()) tape.device().run(together);
}

// A matrix in E4M3: as it lies, for products over its columns, and turned, for those over its rows.
struct Fp8 {
  TensorPtr lying, turned, scale;
};
Fp8 rounded(Tape& tape, const View& x, bool lying, bool turned) {
  Device& device = tape.device();
  Fp8 result{.scale = make_tensor(device, {1}, DType::f32)};
  if (lying) result.lying = make_tensor(device, {x.rows(), x.columns()}, DType::u8);
  if (turned) result.turned = make_tensor(device, {x.columns(), x.rows()}, DType::u8);
  const auto view = [](const TensorPtr& tensor) { return tensor ? tensor->view : View(); };
  device.run(Fp8Round{x, view(result.lying), view(result.turned), result.scale->view});
  return result;
}

// A sum of one product is that product.
void run_sums(Tape& tape, const MatmulSum& op) {
  if (op.sums.size() == 1 && op.sums[0].a.size() == 1)
    tape.device().run(product_of(op, op.sums[0], 0));
  else if (!op.sums.empty())
    tape.device().run(op);
}

// y of all layers. The adapter's share comes first, so that the large product is rounded last where each is.
void forward(Tape& tape, Linears& l, DType out) {
  Device& device = tape.device();
  MatmulSum products{.sums = {}, .trans_b = true};
  Fp8 x8;
  for (size_t i = 0; i < l.count(); ++i) {
    const LinearLayer& layer = l.layers[i];
    Shape shape(l.x->view.shape, l.x->view.shape + l.x->view.rank);
    shape.back() = layer.w->view.shape[0];
    l.y[i] = make_tensor(device, shape, out);
    const View y = l.y[i]->view, bias = layer.bias ? layer.bias->view : View();
    if (layer.fp8) {
      if (layer.lora) device.run(Matmul{.a = l.u[i]->view, .b = layer.lora.b->view, .c = y, .trans_b = true});
      if (!x8.lying) x8 = rounded(tape, l.x->view, true, false);
      const Fp8 w8 = rounded(tape, l.w(i), true, false);
      device.run(Fp8Matmul{x8.lying->view, w8.lying->view, x8.scale->view, w8.scale->view, bias, y, bool(layer.lora)});
      continue;
    }
    MatmulSum::Sum sum{.a = {}, .b = {}, .bias = bias, .c = y};
    if (layer.lora) sum.a.push_back(l.u[i]->view), sum.b.push_back(layer.lora.b->view);
    sum.a.push_back(l.x->view), sum.b.push_back(layer.w->view);
    products.sums.push_back(sum);
  }
  run_sums(tape, products);
}

// The gradient of y, or null where nothing needs it; where y was asked for in another dtype than x's, in x's.
TensorPtr gradient_of_y(Tape& tape, const Linears& l, size_t i) {
  const TensorPtr& y = l.y[i];
  if (!y->grad || y->grad->view.dtype == l.x->view.dtype) return y->grad;
  TensorPtr dy = make_tensor(tape.device(), Shape(y->view.shape, y->view.shape + y->view.rank), l.x->view.dtype);
  tape.device().run(Cast{y->grad->view, dy->view});
  return dy;
}

bool learns(const LinearLayer& layer) { return layer.w->needs_grad() && !layer.w->learner; }

// dy in E4M3 of the layers that multiply it so; the others' are empty.
std::vector<Fp8> rounded_gradients(Tape& tape, const Linears& l, const std::vector<TensorPtr>& dy) {
  std::vector<Fp8> dy8(l.count());
  for (size_t i = 0; i < l.count(); ++i)
    if (dy[i] && l.layers[i].fp8) dy8[i] = rounded(tape, dy[i]->view, l.x->needs_grad(), learns(l.layers[i]));
  return dy8;
}

void weights_back(Tape& tape, const Linears& l, const std::vector<TensorPtr>& dy, const std::vector<Fp8>& dy8) {
  Device& device = tape.device();
  Fp8 x8;
  MatmulSum products{.sums = {}, .trans_a = true};
  for (size_t i = l.count(); i-- > 0;) {
    const LinearLayer& layer = l.layers[i];
    if (!dy[i]) continue;
    bias_back(tape, dy[i]->view, layer.bias);
    if (!learns(layer)) continue;
    const Tape::Target dw = tape.gradient_of(layer.w);
    const auto same = [&](const MatmulSum::Sum& other) { return other.c.data == dw.view.data; };
    if (std::any_of(products.sums.begin(), products.sums.end(), same))  // several layers share the weight
      run_sums(tape, std::exchange(products, {.sums = {}, .trans_a = true}));
    if (!layer.fp8) {
      products.sums.push_back({.a = {dy[i]->view}, .b = {l.x->view}, .bias = {}, .c = dw.view, .acc = dw.acc});
      continue;
    }
    if (!x8.turned) x8 = rounded(tape, l.x->view, false, true);
    device.run(
        Fp8Matmul{dy8[i].turned->view, x8.turned->view, dy8[i].scale->view, x8.scale->view, {}, dw.view, dw.acc});
  }
  run_sums(tape, products);
}

// Of the adapters a and b; du: the gradients of x a^T, [rows, rank]. Those of a come from one reading of x, but for one
// that several layers share.
void adapters_back(Tape& tape, const Linears& l, const std::vector<TensorPtr>& dy, std::vector<TensorPtr>& du) {
  std::vector<TensorPtr> together;
  LoraDownGrad inner{.x = l.x->view, .du = {}, .da = {}};
  for (size_t i = l.count(); i-- > 0;) {
    const Lora& lora = l.lora(i);
    if (!lora || !dy[i]) continue;
    du[i] = make_like(*l.u[i]);
    LoraUpGrad outer{dy[i]->view, lora.b->view, l.u[i]->view, du[i]->view, {}, false, lora.scale};
    if (lora.b->needs_grad()) {
      const Tape::Target db = tape.gradient_of(lora.b);
      outer.db = db.view, outer.acc = db.acc;
    }
    tape.device().run(outer);
    if (!lora.a->needs_grad()) continue;
    const Tape::Target da = tape.gradient_of(lora.a);
    const bool first = together.empty(), again = std::find(together.begin(), together.end(), lora.a) != together.end();
    if (l.dropped || again || (!first && da.acc != inner.acc)) {
      const TensorPtr input = l.dropped ? dropped_x(tape, l, i) : l.x;
      tape.device().run(LoraDownGrad{input->view, {du[i]->view}, {da.view}, da.acc});
    } else {
      together.push_back(lora.a), inner.acc = da.acc;
      inner.du.push_back(du[i]->view), inner.da.push_back(da.view);
    }
  }
  if (!together.empty()) tape.device().run(inner);
}

// dx (+)= dy w of a layer in E4M3.
void add_fp8(Tape& tape, const Linears& l, size_t i, const Fp8& dy8, const View& dx, bool acc) {
  const Fp8 w8 = rounded(tape, l.w(i), false, true);
  tape.device().run(Fp8Matmul{dy8.lying->view, w8.turned->view, dy8.scale->view, w8.scale->view, {}, dx, acc});
}

// dx, the sum of what all layers hand back.
void input_back(Tape& tape, const Linears& l, const std::vector<TensorPtr>& dy, const std::vector<Fp8>& dy8,
                const std::vector<TensorPtr>& du) {
  MatmulSum::Sum sum;
  for (size_t i = l.count(); i-- > 0;) {
    if (!dy[i]) continue;
    if (du[i]) sum.a.push_back(du[i]->view), sum.b.push_back(l.lora(i).a->view);
    if (!l.layers[i].fp8) sum.a.push_back(dy[i]->view), sum.b.push_back(l.w(i));
  }
  const Tape::Target dx = tape.gradient_of(l.x);
  sum.c = dx.view, sum.acc = dx.acc;
  if (!sum.a.empty()) run_sums(tape, {.sums = {sum}});
  bool acc = dx.acc || !sum.a.empty();
  for (size_t i = l.count(); i-- > 0;)
    if (dy[i] && l.layers[i].fp8) add_fp8(tape, l, i, dy8[i], dx.view, acc), acc = true;
}

// The same where adapters read an x of their own: what comes through them is masked before it is added.
void dropped_input_back(Tape& tape, const Linears& l, const std::vector<TensorPtr>& dy, const std::vector<Fp8>& dy8,
                        const std::vector<TensorPtr>& du) {
  Device& device = tape.device();
  for (size_t i = l.count(); i-- > 0;) {
    if (!dy[i]) continue;
    if (du[i]) {
      TensorPtr through = make_like(*l.x);
      device.run(Matmul{.a = du[i]->view, .b = l.lora(i).a->view, .c = through->view});
      const float p = l.lora(i).dropout;
      if (p > 0) device.run(Dropout{through->view, through->view, tape.rng()->view, p, l.subsequence[i]});
      tape.pass(l.x, through);
    }
    const Tape::Target dx = tape.gradient_of(l.x);
    if (l.layers[i].fp8)
      add_fp8(tape, l, i, dy8[i], dx.view, dx.acc);
    else
      device.run(Matmul{.a = dy[i]->view, .b = l.w(i), .c = dx.view, .acc = dx.acc});
  }
}

void backward(Tape& tape, const Linears& l) {
  std::vector<TensorPtr> dy, du(l.count());
  for (size_t i = 0; i < l.count(); ++i) dy.push_back(gradient_of_y(tape, l, i));
  const std::vector<Fp8> dy8 = rounded_gradients(tape, l, dy);
  weights_back(tape, l, dy, dy8);
  adapters_back(tape, l, dy, du);
  if (l.x->needs_grad()) l.dropped ? dropped_input_back(tape, l, dy, dy8, du) : input_back(tape, l, dy, dy8, du);
  for (size_t i = l.count(); i-- > 0;)
    if (dy[i] && l.layers[i].w->learner) l.layers[i].w->learner->learn(tape, dy[i]->view, l.x->view);
}

}  // namespace

std::vector<TensorPtr> linears(Tape& tape, const TensorPtr& x, const std::vector<LinearLayer>& layers, DType out) {
  check_shapes_of(x, layers);
  const size_t count = layers.size();
  Linears l{.x = x, .layers = layers, .y = std::vector<TensorPtr>(count), .u = std::vector<TensorPtr>(count)};
  l.subsequence.resize(count);
  for (size_t i = 0; i < count && tape.training(); ++i) {
    if (!layers[i].lora || layers[i].lora.dropout <= 0) continue;
    l.dropped = true, l.subsequence[i] = tape.next_subsequence();
  }
  down(tape, l);
  forward(tape, l, out);
  std::vector<TensorPtr> tracked;
  for (size_t i = 0; i < count; ++i) {
    const auto& [w, bias, lora, fp8] = layers[i];
    if (tape.wants({x, w, bias, lora.a, lora.b}) || (w->learner && tape.recording())) tracked.push_back(l.y[i]);
  }
  if (!tracked.empty()) tape.record(tracked, [l, &tape] { backward(tape, l); });
  return l.y;
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
