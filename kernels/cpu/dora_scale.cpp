// DoraScale. Columns of `cross` are read in tiles, front to back, each with a sum of its own.
#include <cmath>

#include "kernels/cpu/cpu.h"
#include "kernels/math/bf16.h"

namespace qeng {
namespace {

constexpr int64_t kTile = 64;  // sums that stay in registers or the L1 cache

template <class T>
void scale_tile(const DoraScale& op, const T* b, int64_t first, int64_t count) {
  const int64_t out = op.b.shape[0], rank = op.b.shape[1];
  const float *squares = op.squares.as<float>(), *magnitude = op.magnitude.as<float>(), *cross = op.cross.as<float>();
  float sum[kTile] = {};
  for (int64_t k = 0; k < rank; ++k)
    for (int64_t i = 0; i < count; ++i) sum[i] += to_f32(b[(first + i) * rank + k]) * cross[k * out + first + i];
  for (int64_t i = 0; i < count; ++i) {
    const float length = squares[first + i] + sum[i];
    const float inverse = length > 0 ? 1.0f / std::sqrt(length) : 0.0f;
    op.inverse.as<float>()[first + i] = inverse;
    op.scale.as<float>()[first + i] = magnitude[first + i] * inverse;
  }
}

}  // namespace

void run(const DoraScale& op, CpuContext& context) {
  const int64_t out = op.b.shape[0], rank = op.b.shape[1];
  const int64_t grain = std::max<int64_t>(kTile, kGrainElements / std::max<int64_t>(1, rank) / kTile * kTile);
  parallel_for(context.threads, out, grain, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += kTile) {
      const int64_t count = std::min(kTile, end - first);
      if (op.b.dtype == DType::f32)
        scale_tile(op, op.b.as<float>(), first, count);
      else
        scale_tile(op, op.b.as<bf16>(), first, count);
    }
  });
}

}  // namespace qeng
