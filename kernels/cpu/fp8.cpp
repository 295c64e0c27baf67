// Fp8Round and Fp8Matmul. No processor multiplies E4M3: numbers are widened to bf16, which holds them exactly.
#include <algorithm>
#include <atomic>

#include "kernels/cpu/matmul.h"
#include "kernels/math/e4m3.h"

namespace qeng {

namespace {

constexpr int64_t kRows = 64;  // of a block whose codes are turned: a cache line of yt

// The largest magnitude, by its bits, which are in the order of magnitudes; a NaN's are above all.
uint32_t largest_of(const View& x, const CpuContext& context) {
  std::atomic<uint32_t> largest = 0;
  const int64_t columns = x.columns();
  parallel_for(context.threads, x.rows(), grain_rows(columns), [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(columns));
    uint32_t most = 0;
    for (int64_t r = begin; r < end; ++r) {
      context.isa->scale(float_type(x), at(x, r * columns), isa::Float::f32, row.data(), 1.0f, columns);
      for (const float value : row) most = std::max(most, bits_of(value) & 0x7fffffffu);
    }
    uint32_t known = largest;
    while (known < most && !largest.compare_exchange_weak(known, most)) {
    }
  });
  return largest;
}

// E4M3 times a power of two as bf16: exact, where that does not go below what bf16 has.
const bf16* widened(const View& codes, const View& scale, CpuContext& context) {
  bf16 values[256];
  for (int code = 0; code < 256; ++code)
    values[code] = to_bf16(from_e4m3(static_cast<uint8_t>(code)) * *scale.as<float>());
  const int64_t n = codes.elements();
  auto* wide = context.scratch.take<bf16>(n);
  const auto* from = codes.as<uint8_t>();
  parallel_for(context.threads, n, kGrainElements, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) wide[i] = values[from[i]];
  });
  return wide;
}

}  // namespace

void run(const Fp8Round& op, CpuContext& context) {
  const int64_t rows = op.x.rows(), columns = op.x.columns();
  const float scale = e4m3_scale(largest_of(op.x, context)), inverse = e4m3_inverse(scale);
  *op.scale.as<float>() = scale;
  parallel_for(context.threads, (rows + kRows - 1) / kRows, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(columns));
    std::vector<uint8_t> block(static_cast<size_t>(columns * kRows));
    for (int64_t first = begin * kRows; first < std::min(rows, end * kRows); first += kRows) {
      const int64_t count = std::min(kRows, rows - first);
      for (int64_t r = 0; r < count; ++r) {
        context.isa->scale(float_type(op.x), at(op.x, (first + r) * columns), isa::Float::f32, row.data(), inverse,
                           columns);
        for (int64_t j = 0; j < columns; ++j) block[r * columns + j] = to_e4m3(row[j]);
      }
      if (op.y) std::copy_n(block.data(), count * columns, op.y.as<uint8_t>() + first * columns);
      for (int64_t j = 0; op.yt && j < columns; ++j)
        for (int64_t r = 0; r < count; ++r) op.yt.as<uint8_t>()[j * rows + first + r] = block[r * columns + j];
    }
  });
}

void run(const Fp8Matmul& op, CpuContext& context) {
  GemmShape shape;
  shape.m = op.c.rows(), shape.n = op.c.columns(), shape.k = op.a.columns();
  shape.in = DType::bf16, shape.out = op.c.dtype;
  shape.trans_b = true, shape.acc = op.acc, shape.has_bias = static_cast<bool>(op.bias);
  if (op.bias) shape.bias = op.bias.dtype;
  if (shape.m == 0 || shape.n == 0) return;
  const bf16 *a = widened(op.a, op.scale_a, context), *b = widened(op.b, op.scale_b, context);
  multiply(shape, a, b, op.bias.data, op.c.data, context);
}

}  // namespace qeng
