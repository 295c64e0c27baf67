#include <cmath>

#include "engine/autograd/functions.h"
#include "kernels/view_text.h"

namespace qeng {
namespace {

TensorPtr f32_of(const TensorPtr& x) {
  TensorPtr y = make_tensor(x->device(), Shape(x->view.shape, x->view.shape + x->view.rank), DType::f32, "workspace");
  copy_into(*y, *x);
  return y;
}

double square_of(const float* row, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(row[i]) * row[i];
  return sum;
}

}  // namespace

TensorPtr row_squares(const TensorPtr& w) {
  if (w->view.rank != 2) fail("shape", "row_squares: w is ", shape_text(w->view), ", expected [out, in]");
  const std::vector<float> values = to_host_f32(*f32_of(w));
  const int64_t out = w->view.shape[0], in = w->view.shape[1];
  std::vector<double> squares(static_cast<size_t>(out));
  for (int64_t i = 0; i < out; ++i) squares[static_cast<size_t>(i)] = square_of(values.data() + i * in, in);
  TensorPtr result = make_tensor(w->device(), {out}, DType::f32, "adapters");
  from_host(*result, squares.data(), squares.size());
  return result;
}

TensorPtr dora_scale(Tape& tape, const TensorPtr& w, const Lora& lora, const TensorPtr& magnitude,
                     const TensorPtr& squares) {
  Device& device = tape.device();
  const int64_t rank = lora.a->view.shape[0], out = w->view.rows();
  // cross = 2 s A W^T + s^2 (A A^T) B^T costs the layer what `rank` more tokens would.
  const TensorPtr cross = make_tensor(device, {rank, out}, DType::f32),
                  gram = make_tensor(device, {rank, rank}, DType::f32);
  device.run(Matmul{.a = lora.a->view, .b = w->view, .c = cross->view, .trans_b = true, .alpha = 2 * lora.scale});
  device.run(
      Matmul{.a = lora.a->view, .b = lora.a->view, .c = gram->view, .trans_b = true, .alpha = lora.scale * lora.scale});
  TensorPtr b = lora.b;
  if (b->view.dtype != DType::f32) {
    b = make_tensor(device, {out, rank}, DType::f32);
    device.run(Cast{lora.b->view, b->view});
  }
  device.run(Matmul{.a = gram->view, .b = b->view, .c = cross->view, .trans_b = true, .acc = true});
  TensorPtr scale = make_tensor(device, {out}, DType::f32), inverse = make_tensor(device, {out}, DType::f32);
  device.run(DoraScale{squares->view, magnitude->view, b->view, cross->view, inverse->view, scale->view});
  if (!tape.wants({magnitude})) return scale;
  tape.record({scale}, [=, &tape, &device] {
    if (!magnitude->needs_grad()) return;
    const View dscale = scale->grad->view;
    const Tape::Target target = tape.gradient_of(magnitude);
    const TensorPtr sum = target.acc ? make_tensor(device, {out}, DType::f32) : nullptr;
    device.run(ScaleColumns{dscale, inverse->view, View(), sum ? sum->view : target.view});
    if (sum) device.run(Add{target.view, sum->view, target.view});
  });
  return scale;
}

TensorPtr merge_dora(const TensorPtr& w, const Lora& lora, const TensorPtr& magnitude) {
  const bool stored = w->view.dtype != lora.a->view.dtype;
  const TensorPtr sum = merge_lora(f32_of(w), {f32_of(lora.a), f32_of(lora.b), lora.scale, 0});
  std::vector<float> values = to_host_f32(*sum);
  const std::vector<float> wanted = to_host_f32(*magnitude);
  const int64_t out = w->view.shape[0], in = w->view.shape[1];
  for (int64_t i = 0; i < out; ++i) {
    float* row = values.data() + i * in;
    const double square = square_of(row, in);
    const double factor = square > 0 ? wanted[static_cast<size_t>(i)] / std::sqrt(square) : 0;
    for (int64_t j = 0; j < in; ++j) row[j] = static_cast<float>(factor * row[j]);
  }
  write_bytes(*sum, values.data());
  TensorPtr merged = make_tensor(w->device(), {out, in}, stored ? DType::f32 : w->view.dtype, "weights");
  copy_into(*merged, *sum);
  return merged;
}

}  // namespace qeng
