#include "kernels/cpu/cpu.h"

namespace qeng {

void run(const HeadLinear& op, CpuContext& context) {
  const bool one = op.w.shape[0] == 1;  // then all rows are of one head, and are read as they follow each other
  const int64_t tokens = one ? op.x.shape[0] * op.x.shape[1] : op.x.shape[0], heads = one ? 1 : op.x.shape[1];
  const int64_t dim = op.x.shape[2], out = op.w.shape[2];
  const int64_t group = heads / op.w.shape[0];
  constexpr int64_t kRows = 64;  // of a head at a time: with a matrix of 128 x 128 they fit the second cache
  const int64_t runs = (tokens + kRows - 1) / kRows;
  const bool copied = op.x.dtype != DType::f32;
  float* scratch = copied ? context.scratch.take<float>(context.threads * kRows * (dim + out)) : nullptr;
  const int64_t work = 2 * tokens * heads * dim * out;
  const int threads = work < 4 * kGrainElements ? 1 : context.threads;
  parallel_each(threads, runs * heads, [&](int64_t item) {
    const int64_t first = item / heads * kRows, head = item % heads, rows = std::min(kRows, tokens - first);
    const int64_t base = head / group, stride = heads * dim, out_stride = heads * out;
    const float *w = op.w.as<float>() + base * dim * out, *bias = op.bias ? op.bias.as<float>() + base * out : nullptr;
    if (!copied)
      return context.isa->matrix_rows(op.x.as<float>() + first * stride + head * dim, stride, rows, dim, w, bias,
                                      op.y.as<float>() + first * out_stride + head * out, out_stride, out);
    float *x = scratch + team_rank() * kRows * (dim + out), *y = x + kRows * dim;
    for (int64_t r = 0; r < rows; ++r)
      context.isa->scale(float_type(op.x), at(op.x, (first + r) * stride + head * dim), isa::Float::f32, x + r * dim,
                         1.0f, dim);
    context.isa->matrix_rows(x, dim, rows, dim, w, bias, y, out, out);
    for (int64_t r = 0; r < rows; ++r)
      context.isa->scale(isa::Float::f32, y + r * out, float_type(op.y),
                         at(op.y, (first + r) * out_stride + head * out), 1.0f, out);
  });
}

}  // namespace qeng
