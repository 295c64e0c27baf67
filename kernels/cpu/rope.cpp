// Rope: the angles of each token once, then all its heads.
#include <cmath>

#include "kernels/cpu/cpu.h"

namespace qeng {

void run(const Rope& op, CpuContext& context) {
  const Check check{op.name};
  check.is_float("x", op.x);
  check.that(op.x.rank == 3, "x is " + shape_text(op.x) + ", expected [tokens, heads, head_dim]");
  check.like("y", op.y, "x", op.x);
  const int64_t tokens = op.x.shape[0], heads = op.x.shape[1], dim = op.x.shape[2];
  check.is("positions", op.positions, DType::i32, {tokens});
  check.dtype("inv_freq", op.inv_freq, {DType::f32});
  const int64_t half = op.inv_freq.elements();
  check.that(
      op.inv_freq.rank == 1 && 2 * half <= dim,
      "inv_freq is " + shape_text(op.inv_freq) + ", expected [rotary/2] of a head_dim of " + std::to_string(dim));
  float* angles = context.scratch.take<float>(context.threads * 2 * half);
  parallel_for(context.threads, tokens, grain_rows(heads * dim), [&](int64_t begin, int64_t end) {
    float *cosines = angles + team_rank() * 2 * half, *sines = cosines + half;
    for (int64_t t = begin; t < end; ++t) {
      const auto position = static_cast<float>(op.positions.as<int32_t>()[t]);
      for (int64_t i = 0; i < half; ++i) {
        const float angle = position * op.inv_freq.as<float>()[i];
        cosines[i] = op.scale * std::cos(angle);
        sines[i] = op.scale * std::sin(op.inverse ? -angle : angle);
      }
      context.isa->rope(float_type(op.x), at(op.x, t * heads * dim), at(op.y, t * heads * dim), cosines, sines, heads,
                        dim, half);
    }
  });
}

}  // namespace qeng
