// Rope, KvStore, CopyPages.
#include "kernels/opencl/opencl.h"

namespace qeng::opencl {

namespace {

void rotate(const Rope& op, const View& x, const View& y, Context& context) {
  const int64_t heads = x.shape[1], dim = x.shape[2], half = op.inv_freq.elements();
  const int64_t count = x.shape[0] * heads * (dim - half);
  const cl_kernel kernel = context.programs->kernel("cache.cl", "rope", {{"X", type_of(x)}, {"POOL", "f32"}});
  launch(context, kernel, items(count), x, op.positions, op.inv_freq, y, heads, dim, half, op.scale, int{op.inverse},
         int{op.interleaved}, count);
}

void store(const View& x, const View& slots, const View& pool, Context& context) {
  const bool blocks = pool.dtype == DType::q8_0;
  const int64_t width = x.shape[1] * x.shape[2] / (blocks ? 32 : 1), count = x.shape[0] * width;
  const cl_kernel kernel = context.programs->kernel("cache.cl", blocks ? "store_blocks" : "store_rows",
                                                    {{"X", type_of(x)}, {"POOL", blocks ? "f32" : type_of(pool)}});
  launch(context, kernel, items(count), x, slots, pool, width, pool.shape[0], count, context.fault);
}

}  // namespace

void run(const Rope& op, Context& context) {
  rotate(op, op.x, op.y, context);
  if (op.x2) rotate(op, op.x2, op.y2, context);
}

void run(const KvStore& op, Context& context) {
  if (op.k_levels || op.v_levels)
    fail("unsupported", "opencl: ", op.name, " into pools of codes; take bf16, f16 or q8_0");
  store(op.k, op.slots, op.k_pool, context);
  if (op.v) store(op.v, op.slots, op.v_pool, context);
}

void run(const CopyPages& op, Context& context) {
  const int64_t rows = op.pool.shape[0], pages = rows / op.page_tokens;
  const int64_t bytes = pages ? static_cast<int64_t>(op.pool.bytes()) / rows * op.page_tokens : 0;
  const int64_t count = op.pairs.shape[0] * bytes;
  launch(context, context.programs->kernel("cache.cl", "copy_pages", {}), items(count), op.pool, op.pairs, bytes, pages,
         count, context.fault);
}

}  // namespace qeng::opencl
