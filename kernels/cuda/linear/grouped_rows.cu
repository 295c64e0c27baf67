#include "kernels/cuda/linear/grouped_rows.h"

namespace qeng {

void grouped_rows(const GroupedMatmul& op, const Experts& experts, CudaContext& context) {
  GroupedProducts g{};
  g.experts = experts;
  const int64_t n = op.y.columns(), k = op.x.columns();
  const auto row_bytes = static_cast<int64_t>(dtype_bytes(op.w.dtype, k));
  g.expert_bytes = n * row_bytes;
  g.p.weight[g.p.count++] = {op.w.data,
                             op.bias.data,
                             nullptr,
                             op.y.data,
                             n,
                             0,
                             op.bias.dtype == DType::f32,
                             op.y.dtype == DType::f32,
                             n % 8 == 0 && aligned(op.y.data, 16)};
  g.p.rows = op.x.rows(), g.p.k = k, g.p.alpha = 1, g.p.acc = op.acc;
  g.p.x = op.x.data, g.p.x_f32 = op.x.dtype == DType::f32;
  g.p.vectors = row_bytes % 16 == 0 && aligned(op.w.data, 16);
  if (!is_block(op.w.dtype)) return grouped_dense(op.name, g, op.w.dtype, context);
  const RoundedRows rounded = round_rows(op.name, op.x, rounding_of(op.w.dtype), context);
  g.p.codes = rounded.codes, g.p.scales = rounded.scales, g.p.sums = rounded.sums;
  grouped_blocks(op.name, g, op.w.dtype, context);
}

}  // namespace qeng
