#include "kernels/cpu/column_sums.h"

namespace qeng {

void run(const BiasGrad& op, CpuContext& context) {
  const int64_t n = op.dy.columns();
  column_sums(context, op.dy.rows(), n, op.db.as<float>(), op.acc, [&](int64_t begin, int64_t end, float* sum) {
    for (int64_t r = begin; r < end; ++r) context.isa->accumulate(float_type(op.dy), at(op.dy, r * n), sum, n);
  });
}

}  // namespace qeng
