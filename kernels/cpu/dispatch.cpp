// Dispatch and Combine.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu.h"

namespace qeng {
namespace {

void check_places(const char* op, const View& place) {
  const int64_t n = place.elements();
  for (int64_t i = 0; i < n; ++i) {
    const int32_t value = place.as<int32_t>()[i];
    if (value < 0 || value >= n) fail("value", op, ": index ", value, " at position ", i, " is outside [0, ", n, ")");
  }
}

}  // namespace

void run(const Dispatch& op, CpuContext& context) {
  const int64_t n = op.x.columns(), k = op.place.columns();
  if (op.y.elements() == 0) return;
  check_places(op.name, op.place);
  const isa::Table& isa = *context.isa;
  auto* wide = context.scratch.take<float>(op.dot ? context.threads * n : 0);
  parallel_for(context.threads, op.x.rows(), grain_rows(n * k), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const char* x = at(op.x, t * n);
      float* row = wide + team_rank() * n;
      if (op.dot) isa.scale(float_type(op.x), x, isa::Float::f32, row, 1.0f, n);
      for (int64_t i = t * k; i < (t + 1) * k; ++i) {
        const int64_t to = op.place.as<int32_t>()[i] * n;
        if (op.weight)
          isa.scale(float_type(op.x), x, float_type(op.y), at(op.y, to), op.weight.as<float>()[i], n);
        else
          std::memcpy(at(op.y, to), x, static_cast<size_t>(n) * dtype_size(op.x.dtype));
        if (op.dot) isa.gemv(row, float_type(op.rows), at(op.rows, to), op.dot.as<float>() + i, 1, n);
      }
    }
  });
}

void run(const Combine& op, CpuContext& context) {
  const int64_t n = op.x.columns(), k = op.place.columns();
  if (op.y.elements() == 0) return;
  check_places(op.name, op.place);
  const isa::Table& isa = *context.isa;
  auto* memory = context.scratch.take<float>(context.threads * 2 * n);
  parallel_for(context.threads, op.y.rows(), grain_rows(n * k), [&](int64_t begin, int64_t end) {
    float *sum = memory + team_rank() * 2 * n, *scaled = sum + n;
    for (int64_t t = begin; t < end; ++t) {
      std::fill(sum, sum + n, 0.0f);
      for (int64_t i = t * k; i < (t + 1) * k; ++i) {
        const char* x = at(op.x, op.place.as<int32_t>()[i] * n);
        if (op.weight) isa.scale(float_type(op.x), x, isa::Float::f32, scaled, op.weight.as<float>()[i], n);
        isa.accumulate(op.weight ? isa::Float::f32 : float_type(op.x), op.weight ? static_cast<void*>(scaled) : x, sum,
                       n);
      }
      isa.scale(isa::Float::f32, sum, float_type(op.y), at(op.y, t * n), 1.0f, n);
    }
  });
}

}  // namespace qeng
