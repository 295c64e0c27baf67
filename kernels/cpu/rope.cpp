// Rope: the angles of each token once, then all its heads.
#include <cmath>

#include "kernels/cpu/cpu.h"

namespace qeng {

void run(const Rope& op, CpuContext& context) {
  const int64_t tokens = op.x.shape[0], dim = op.x.shape[2], half = op.inv_freq.elements();
  const int64_t heads = op.x.shape[1], heads2 = op.x2 ? op.x2.shape[1] : 0;
  float* angles = context.scratch.take<float>(context.threads * 2 * half);
  parallel_for(context.threads, tokens, grain_rows((heads + heads2) * dim), [&](int64_t begin, int64_t end) {
    float *cosines = angles + team_rank() * 2 * half, *sines = cosines + half;
    for (int64_t t = begin; t < end; ++t) {
      const auto position = static_cast<float>(op.positions.as<int32_t>()[t]);
      for (int64_t i = 0; i < half; ++i) {
        const float angle = position * op.inv_freq.as<float>()[i];
        cosines[i] = op.scale * std::cos(angle);
        sines[i] = op.scale * std::sin(op.inverse ? -angle : angle);
      }
      const auto rotate = [&](const View& x, const View& y, int64_t count) {
        const int64_t start = t * count * dim;
        context.isa->rope(float_type(x), at(x, start), at(y, start), cosines, sines, count, dim, half, op.interleaved);
      };
      rotate(op.x, op.y, heads);
      if (op.x2) rotate(op.x2, op.y2, heads2);
    }
  });
}

}  // namespace qeng
