#include "kernels/cpu/cpu.h"

namespace qeng {

void run(const Hadamard& op, CpuContext& context) {
  const int64_t columns = op.x.columns(), block = op.block, rows = op.x.rows();
  const float* signs = op.signs.as<float>();
  float* scratch = context.scratch.take<float>(context.threads * columns);
  parallel_for(context.threads, rows, grain_rows(columns), [&](int64_t begin, int64_t end) {
    float* row = scratch + team_rank() * columns;
    for (int64_t r = begin; r < end; ++r) {
      context.isa->scale(float_type(op.x), at(op.x, r * columns), isa::Float::f32, row, 1.0f, columns);
      if (signs && !op.inverse) context.isa->multiply(row, signs, columns);
      for (int64_t i = 0; i < columns; i += block) context.isa->hadamard(row + i, block);
      if (signs && op.inverse) context.isa->multiply(row, signs, columns);
      context.isa->scale(isa::Float::f32, row, float_type(op.y), at(op.y, r * columns), 1.0f, columns);
    }
  });
}

}  // namespace qeng
