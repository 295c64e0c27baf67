// BatchedMatmul: products that are large each by all threads, one after the other; small ones by a thread each.
#include <atomic>

#include "kernels/cpu/matmul.h"

namespace qeng {

namespace {

// Multiplications of a product that all threads share: if there are few of them, or in any case. The number of threads
// does not count, as it must not change the sums.
constexpr int64_t kFew = 16, kLarge = int64_t{1} << 22, kHuge = int64_t{1} << 28;

char* matrix_at(const View& x, int64_t i) { return at(x, i * x.shape[x.rank - 2] * x.columns()); }

// The matrices of product i, counted over `batch`.
struct Places {
  int64_t a, b, c;
};
Places places_of(const BatchedMatmul& op, int64_t i) {
  Places places{op.of_a.first, op.of_b.first, op.of_c.first};
  for (int d = op.batch.rank - 1; d >= 0; i /= op.batch.shape[d--]) {
    const int64_t at = i % op.batch.shape[d];
    places.a += at * op.of_a.stride[d], places.b += at * op.of_b.stride[d], places.c += at * op.of_c.stride[d];
  }
  return places;
}

// Elements of the matrices in f32: where they lie, or in `copy`.
float* widened(const View& x, int64_t i, float* copy, const CpuContext& context) {
  if (x.dtype == DType::f32) return reinterpret_cast<float*>(matrix_at(x, i));
  context.isa->scale(float_type(x), matrix_at(x, i), isa::Float::f32, copy, 1.0f, x.shape[x.rank - 2] * x.columns());
  return copy;
}

}  // namespace

void run(const BatchedMatmul& op, CpuContext& context) {
  const int64_t count = op.batch.elements();
  if (count == 0 || op.c.elements() == 0) return;
  const auto [a_count, m, k] = matrix_sizes(op.a, op.trans_a);
  const int64_t n = op.c.columns(), work = m * n * k;
  if (work >= (count < kFew ? kLarge : kHuge) || count == 1) {
    GemmShape shape;
    shape.m = m, shape.n = n, shape.k = k;
    shape.in = op.a.dtype, shape.out = op.c.dtype;
    shape.trans_a = op.trans_a, shape.trans_b = op.trans_b, shape.acc = op.acc;
    for (int64_t i = 0; i < count; ++i) {
      const Places place = places_of(op, i);
      const ScratchFrame frame(context.scratch);
      multiply(shape, matrix_at(op.a, place.a), matrix_at(op.b, place.b), nullptr, matrix_at(op.c, place.c), context);
    }
    return;
  }
  const bool wide = op.a.dtype == DType::f32;
  const int64_t copies = wide ? 0 : m * k + k * n + m * n;
  float* scratch = wide ? nullptr : context.scratch.take<float>(context.threads * copies);
  std::atomic<bool> complete = true;
  parallel_for(context.threads, count, std::max<int64_t>(1, kGrainElements / work), [&](int64_t begin, int64_t end) {
    float* own = wide ? nullptr : scratch + team_rank() * copies;
    for (int64_t i = begin; i < end; ++i) {
      const Places place = places_of(op, i);
      Tile tile;
      tile.a = widened(op.a, place.a, own, context), tile.lda = op.a.columns(), tile.trans_a = op.trans_a;
      tile.b = widened(op.b, place.b, own + m * k, context), tile.ldb = op.b.columns(), tile.trans_b = op.trans_b;
      float* sum = wide ? reinterpret_cast<float*>(matrix_at(op.c, place.c)) : own + m * k + k * n;
      if (op.acc) widened(op.c, place.c, sum, context);
      tile.c = sum, tile.ldc = n, tile.m = m, tile.n = n, tile.k = k, tile.acc = op.acc;
      if (!multiply_tile(tile, context)) complete = false;
      if (!wide) context.isa->scale(isa::Float::f32, sum, float_type(op.c), matrix_at(op.c, place.c), 1.0f, m * n);
    }
  });
  if (!complete) fail("memory", op.name, ": oneDNN is out of memory (m ", m, ", n ", n, ", k ", k, ")");
}

}  // namespace qeng
