// Attention, AttentionGrad, PagedAttention.
#include <algorithm>

#include "kernels/opencl/opencl.h"

namespace qeng::opencl {

namespace {

// As in attention.cl.
struct Shape {
  int64_t tq, tk, documents, heads, kv_heads, dim, value_dim, window, most, page_tokens;
  float scale, softcap;
  int has_sinks, acc;
};

template <class AnyAttention>
Shape shape_of(const AnyAttention& op) {
  return {.tq = op.q.shape[0],
          .tk = op.k.shape[0],
          .documents = op.cu_q.elements() - 1,
          .heads = op.q.shape[1],
          .kv_heads = op.k.shape[1],
          .dim = op.q.shape[2],
          .value_dim = op.v.shape[2],
          .window = op.window,
          .most = 0,
          .page_tokens = 1,
          .scale = op.scale,
          .softcap = op.softcap,
          .has_sinks = bool(op.sinks),
          .acc = 0};
}

std::string width_of(const Shape& shape) {
  return std::to_string(ceil_div(std::max(shape.dim, shape.value_dim), kLanes) * kLanes);
}

cl_kernel kernel_of(Context& context, const char* name, const View& q, const Shape& shape) {
  return context.programs->kernel(
      "attention.cl", name, {{"Q", type_of(q)}, {"K", type_of(q)}, {"V", type_of(q)}, {"WIDTH", width_of(shape)}});
}

void check_bounds(const View& cu, int64_t rows, FaultKind kind, Context& context) {
  launch(context, context.programs->kernel("attention.cl", "check_bounds", {}), items(cu.elements()), cu, rows,
         cu.elements(), static_cast<int>(kind), context.fault);
}

template <class AnyAttention>
void check_bounds(const AnyAttention& op, Context& context) {
  check_bounds(op.cu_q, op.q.shape[0], FaultKind::bounds, context);
  check_bounds(op.cu_k, op.k.shape[0], FaultKind::bounds, context);
}

}  // namespace

void run(const Attention& op, Context& context) {
  const Shape shape = shape_of(op);
  check_bounds(op, context);
  launch(context, kernel_of(context, "attend", op.q, shape), groups(shape.tq, shape.heads), op.q, op.k, op.v, op.cu_q,
         op.cu_k, op.cu_k, op.sinks, op.o, op.lse, shape, context.fault);
}

void run(const AttentionGrad& op, Context& context) {
  Shape shape = shape_of(op);
  shape.acc = op.acc_sinks;
  check_bounds(op, context);
  launch(context, kernel_of(context, "attention_delta", op.q, shape), items(shape.heads * shape.tq), op.o, op.dout,
         op.delta, shape);
  if (op.dsinks)
    launch(context, kernel_of(context, "attention_dsinks", op.q, shape), groups(shape.heads), op.sinks, op.lse,
           op.delta, op.dsinks, shape);
  launch(context, kernel_of(context, "attention_dq", op.q, shape), groups(shape.tq, shape.heads), op.q, op.k, op.v,
         op.cu_q, op.cu_k, op.lse, op.dout, op.delta, op.dq, shape, context.fault);
  launch(context, kernel_of(context, "attention_dkv", op.q, shape), groups(shape.tk, shape.kv_heads), op.q, op.k, op.v,
         op.cu_q, op.cu_k, op.lse, op.dout, op.delta, op.dk, op.dv, shape);
}

void run(const PagedAttention& op, Context& context) {
  if (op.k_levels || op.v_levels)
    fail("unsupported", "opencl: ", op.name, " over pools of codes; take bf16, f16 or q8_0");
  const Shape shape{.tq = op.q.shape[0],
                    .tk = op.k_pool.shape[0],
                    .documents = op.cu_q.elements() - 1,
                    .heads = op.q.shape[1],
                    .kv_heads = op.k_pool.shape[1],
                    .dim = op.q.shape[2],
                    .value_dim = op.o.shape[2],
                    .window = op.window,
                    .most = op.pages.columns(),
                    .page_tokens = op.page_tokens,
                    .scale = op.scale,
                    .softcap = op.softcap,
                    .has_sinks = bool(op.sinks),
                    .acc = 0};
  check_bounds(op.cu_q, op.q.shape[0], FaultKind::queries, context);
  const cl_kernel kernel = context.programs->kernel("attention.cl", "attend",
                                                    {{"Q", type_of(op.q)},
                                                     {"K", type_of(op.k_pool)},
                                                     {"V", type_of(op.v_pool)},
                                                     {"WIDTH", width_of(shape)},
                                                     {"PAGED", "1"}});
  launch(context, kernel, groups(shape.tq, shape.heads), op.q, op.k_pool, op.v_pool, op.cu_q, op.lengths, op.pages,
         op.sinks, op.o, View(), shape, context.fault);
}

}  // namespace qeng::opencl
