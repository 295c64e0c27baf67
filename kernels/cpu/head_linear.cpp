#include "kernels/cpu/cpu.h"

namespace qeng {

void run(const HeadLinear& op, CpuContext& context) {
  const bool one = op.w.shape[0] == 1;  // then all rows are of one head, and are read as they follow each other
  const int64_t tokens = one ? op.x.shape[0] * op.x.shape[1] : op.x.shape[0], heads = one ? 1 : op.x.shape[1];
  const int64_t dim = op.x.shape[2], out = op.w.shape[2];
  const int64_t group = heads / op.w.shape[0];
  const bool fast = op.signs && dim <= isa::kMostTurned;
  // Rows of a head at a time: with a matrix of 128 x 128 64 fit the second cache; without one more are as much work.
  const int64_t each = fast ? 512 : 64;
  const int64_t runs = (tokens + each - 1) / each;
  const bool copied = op.x.dtype != DType::f32 && !fast;
  float* scratch = copied ? context.scratch.take<float>(context.threads * each * (dim + out)) : nullptr;
  const int threads = op.flops() < 4 * kGrainElements ? 1 : context.threads;
  parallel_each(threads, runs * heads, [&](int64_t item) {
    const int64_t first = item / heads * each, head = item % heads, rows = std::min(each, tokens - first);
    const int64_t base = head / group, stride = heads * dim, out_stride = heads * out;
    const float *w = op.w.as<float>() + base * dim * out, *bias = op.bias ? op.bias.as<float>() + base * out : nullptr;
    if (fast)
      return context.isa->turn_rows(float_type(op.x), at(op.x, first * stride + head * dim), stride, rows, dim,
                                    op.signs.as<float>(), bias, at(op.y, first * out_stride + head * out), out_stride);
    if (!copied)
      return context.isa->matrix_rows(op.x.as<float>() + first * stride + head * dim, stride, rows, dim, w, bias,
                                      op.y.as<float>() + first * out_stride + head * out, out_stride, out);
    float *x = scratch + team_rank() * each * (dim + out), *y = x + each * dim;
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
