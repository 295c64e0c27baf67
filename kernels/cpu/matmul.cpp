#include "kernels/cpu/matmul.h"

namespace qeng {

void finish_row(const Matmul& op, int64_t r, int64_t first, int64_t n, float* dots, const CpuContext& context) {
  char* c = at(op.c, r * op.c.columns() + first);
  if (op.bias) context.isa->accumulate(float_type(op.bias), at(op.bias, first), dots, n);
  if (op.acc) context.isa->accumulate(float_type(op.c), c, dots, n);
  context.isa->scale(isa::Float::f32, dots, float_type(op.c), c, 1.0f, n);
}

namespace {

// One row times a transposed matrix, as in decoding: every element of b is used once, so the time is that of reading b,
// and oneDNN, which copies b into tiles first, takes twice as long.
void run_row(const Matmul& op, int64_t n, int64_t k, CpuContext& context) {
  constexpr int64_t kDecoded = 4;  // rows at a time, as many as gemv takes together
  float *a = context.scratch.take<float>(k), *dots = context.scratch.take<float>(n), *decoded = nullptr;
  if (is_block(op.b.dtype)) decoded = context.scratch.take<float>(context.threads * kDecoded * k);
  context.isa->scale(float_type(op.a), op.a.data, isa::Float::f32, a, op.alpha, k);
  parallel_for(context.threads, n, grain_rows(k), [&](int64_t begin, int64_t end) {
    if (decoded) {
      float* rows = decoded + team_rank() * kDecoded * k;
      for (int64_t j = begin; j < end; j += kDecoded) {
        const int64_t count = std::min(kDecoded, end - j);
        for (int64_t r = 0; r < count; ++r) decode_row(op.b, j + r, 0, k, rows + r * k, context);
        context.isa->gemv(a, isa::Float::f32, rows, dots + j, count, k);
      }
    } else {
      context.isa->gemv(a, float_type(op.b), at(op.b, begin * k), dots + begin, end - begin, k);
    }
    finish_row(op, 0, begin, end - begin, dots + begin, context);
  });
}

}  // namespace

void run(const Matmul& op, CpuContext& context) {
  const auto [m, n, k] = sizes_of(op);
  GemmShape shape;
  shape.m = m, shape.n = n, shape.k = k;
  shape.in = op.a.dtype, shape.out = op.c.dtype;
  if (op.b.dtype != op.a.dtype) shape.stored = op.b.dtype, shape.interleaved = op.b.interleaved;
  shape.trans_a = op.trans_a, shape.trans_b = op.trans_b, shape.acc = op.acc;
  shape.has_bias = static_cast<bool>(op.bias);
  if (op.bias) shape.bias = op.bias.dtype;
  shape.alpha = op.alpha;
  if (m == 0 || n == 0) return;
  if (m == 1 && op.trans_b) return run_row(op, n, k, context);
  const bool by_tiles = op.a.dtype == DType::bf16 && context.gemm.multiplies_bf16_by_tiles();
  if (op.b.dtype == DType::one_bit && !by_tiles) return multiply_signs(op, context);
  multiply(shape, op.a.data, op.b.data, op.bias.data, op.c.data, context);
}

}  // namespace qeng
