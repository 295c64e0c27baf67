// Add, Scale, Cast, Copy, Fill, SwiGlu, SwiGluGrad, Dropout, EmbeddingNoise, ScaleColumns.
#include "kernels/math/bf16.h"
#include "kernels/opencl/opencl.h"

namespace qeng::opencl {

namespace {

constexpr const char* kFile = "elementwise.cl";

void scale_by(const View& x, const View& y, float alpha, Context& context) {
  const cl_kernel kernel = context.programs->kernel(kFile, "scale_by", {{"FROM", type_of(x)}, {"TO", type_of(y)}});
  launch(context, kernel, items(x.elements()), x, y, alpha, x.elements());
}

template <class T>
void fill_with(const Fill& op, T value, Context& context) {
  context.fill(op.y.data, &value, sizeof value, op.y.bytes());
}

}  // namespace

void run(const Add& op, Context& context) {
  const int64_t count = op.y.elements();
  launch(context, context.programs->kernel(kFile, "add", {{"X", type_of(op.a)}}), items(count), op.a, op.b, op.y,
         count);
}

void run(const Scale& op, Context& context) { scale_by(op.x, op.y, op.alpha, context); }
void run(const Cast& op, Context& context) {
  op.x.dtype == op.y.dtype ? context.copy(op.y.data, op.x.data, op.x.bytes(), false)
                           : scale_by(op.x, op.y, 1.0f, context);
}
void run(const Copy& op, Context& context) { context.copy(op.y.data, op.x.data, op.x.bytes(), false); }

void run(const Fill& op, Context& context) {
  switch (op.y.dtype) {
    case DType::f32: return fill_with(op, op.value, context);
    case DType::bf16: return fill_with(op, to_bf16(op.value), context);
    case DType::f16: return fill_with(op, to_f16(op.value), context);
    case DType::i32: return fill_with(op, static_cast<int32_t>(op.value), context);
    case DType::i64: return fill_with(op, static_cast<int64_t>(op.value), context);
    case DType::u8: return fill_with(op, static_cast<uint8_t>(op.value), context);
    default: return fill_with(op, uint8_t{0}, context);  // a block format, whose zero bytes are zeros
  }
}

void run(const SwiGlu& op, Context& context) {
  const int64_t count = op.gate.elements();
  launch(context, context.programs->kernel(kFile, "swiglu", {{"X", type_of(op.gate)}}), items(count), op.gate, op.up,
         op.y, int{op.gelu}, count);
}

void run(const SwiGluGrad& op, Context& context) {
  const int64_t count = op.gate.elements();
  launch(context, context.programs->kernel(kFile, "swiglu_grad", {{"X", type_of(op.gate)}}), items(count), op.gate,
         op.up, op.dy, op.dgate, op.dup, int{op.gelu}, count);
}

void run(const Dropout& op, Context& context) {
  const int64_t count = op.x.elements();
  launch(context, context.programs->kernel(kFile, "dropout", {{"X", type_of(op.x)}}), items(count), op.x, op.y, op.rng,
         op.p, 1 / (1 - op.p), op.subsequence, count);
}

void run(const EmbeddingNoise& op, Context& context) {
  const int64_t rows = op.x.rows(), n = op.x.columns();
  launch(context, context.programs->kernel(kFile, "embedding_noise", {{"X", type_of(op.x)}}), items(rows * n), op.x,
         op.cu, op.y, op.rng, op.strength, op.subsequence, static_cast<int>(op.cu.elements() - 1), rows, n);
}

void run(const ScaleColumns& op, Context& context) {
  const int64_t count = op.x.elements();
  const cl_kernel kernel =
      context.programs->kernel(kFile, "scale_columns", {{"X", type_of(op.x)}, {"BIAS", type_of(op.bias)}});
  launch(context, kernel, items(count), op.x, op.scale, op.bias, op.y, op.x.columns(), count);
}

}  // namespace qeng::opencl
