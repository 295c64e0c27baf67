#include "kernels/cuda/attention/paged_sides.h"
#include "kernels/kv_pools.h"

namespace qeng {

namespace {

Stored stored_of(const View& rows) {
  switch (rows.dtype) {
    case DType::bf16: return Stored::bf16;
    case DType::f16: return Stored::f16;
    case DType::q8_0: return Stored::q8_0;
    default: return Stored::f32;
  }
}

PagedSide side_of(const PagedAttention& op, const View& pool, const View& levels, const View& exact, int64_t dim) {
  PagedSide side{};
  side.dim = static_cast<int>(dim), side.runs = side.dim / kv_codes::kRun;
  if (levels) {
    side.codes = pool.as<char>(), side.levels = levels.as<float>();
    side.shape = code_shape(pool, levels, dim);
    side.wide_runs = side.shape.wide / kv_codes::kRun, side.tile_words = kv_codes::tile_words(side.shape);
    side.wide_set = (1u << side.wide_runs) - 1, side.narrow_set = (1u << side.runs) - 1 - side.wide_set;
  }
  const View& rows = levels ? exact : pool;
  if (!rows) return side;
  side.rows = rows.data, side.stored = stored_of(rows);
  side.vectors = rows.dtype != DType::q8_0 && dim % 8 == 0 && aligned(rows.data, 16);
  side.row_pages = (levels ? op.exact : op.pages).as<int32_t>();
  side.row_pool_pages = static_cast<int>(rows.shape[0] / op.page_tokens);
  return side;
}

}  // namespace

PagedSides paged_sides(const PagedAttention& op, const PagedOutput& out, CudaContext& context) {
  PagedSides sides{};
  sides.q = op.q.data, sides.q_f32 = op.q.dtype == DType::f32;
  sides.scale = op.scale * kLog2e, sides.softcap = op.softcap * kLog2e;
  sides.inverse_cap = op.softcap > 0 ? 1 / sides.softcap : 0;
  sides.keys = side_of(op, op.k_pool, op.k_levels, op.k_exact, op.q.shape[2]);
  sides.values = side_of(op, op.v_pool, op.v_levels, op.v_exact, op.o.shape[2]);
  sides.pages = op.pages.as<int32_t>();
  sides.exact_first = op.exact_first, sides.exact_last = op.exact_last;
  sides.out = out, sides.fault = context.fault;
  return sides;
}

}  // namespace qeng
