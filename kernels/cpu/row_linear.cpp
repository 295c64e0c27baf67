#include "kernels/cpu/cpu.h"

namespace qeng {

// Each row by the dot products of decoding, whose order of sums depends on k alone.
void run(const RowLinear& op, CpuContext& context) {
  const int64_t rows = op.x.rows(), k = op.x.columns();
  for (size_t i = 0; i < op.w.size(); ++i) {
    const View &w = op.w[i], &y = op.y[i];
    const View bias = op.bias.empty() ? View() : op.bias[i];
    if (is_block(w.dtype))
      fail("unsupported", op.name, ": ", dtype_name(w.dtype), " is not supported by the cpu backend");
    const ScratchFrame frame(context.scratch);
    const int64_t n = w.shape[0];
    float *a = context.scratch.take<float>(k), *dots = context.scratch.take<float>(n);
    for (int64_t r = 0; r < rows; ++r) {
      context.isa->scale(float_type(op.x), at(op.x, r * k), isa::Float::f32, a, op.alpha, k);
      parallel_for(context.threads, n, grain_rows(k), [&](int64_t begin, int64_t end) {
        context.isa->gemv(a, float_type(w), at(w, begin * k), dots + begin, end - begin, k);
        if (bias) context.isa->accumulate(float_type(bias), at(bias, begin), dots + begin, end - begin);
        if (op.acc) context.isa->accumulate(float_type(y), at(y, r * n + begin), dots + begin, end - begin);
        context.isa->scale(isa::Float::f32, dots + begin, float_type(y), at(y, r * n + begin), 1.0f, end - begin);
      });
    }
  }
}

}  // namespace qeng
