// RowLinear.
#include "kernels/math/blocks/activations.h"
#include "kernels/opencl/opencl.h"

namespace qeng::opencl {

namespace {

// As in row_linear.cl.
struct Shape {
  int64_t rows, n, k, groups;
  int group;
  float alpha;
  int acc, scaled;
};

struct RoundedRows {
  char* codes;
  float* scales;
};

RoundedRows round_rows(const View& x, int group, Context& context) {
  const int64_t rows = x.rows(), k = x.columns(), groups = ceil_div(k, group);
  const RoundedRows rounded{context.scratch.take<char>(rows * k), context.scratch.take<float>(rows * groups)};
  launch(context,
         context.programs->kernel("row_linear.cl", "round_rows", {{"X", type_of(x)}, {"Y", "f32"}, {"BIAS", "absent"}}),
         items(rows * groups), x, rounded.codes, rounded.scales, k, group, groups, rows * groups);
  return rounded;
}

}  // namespace

void run(const RowLinear& op, Context& context) {
  const int64_t rows = op.x.rows(), k = op.x.columns();
  RoundedRows rounded[2] = {};  // by groups of 32 and of 256
  for (size_t i = 0; i < op.w.size(); ++i) {
    const View &w = op.w[i], scale = op.scale.empty() ? View() : op.scale[i],
               bias = op.bias.empty() ? View() : op.bias[i];
    const int64_t n = w.shape[0];
    if (!is_block(w.dtype)) {
      Product product{op.x, w, bias, op.y[i], scale, rows, n, k, k, 1, 1, k, n, op.alpha, op.acc};
      product.round_a = w.dtype == DType::bf16 && op.x.dtype == DType::f32;
      multiply(product, context);
      continue;
    }
    const bool signs = w.dtype == DType::one_bit || w.dtype == DType::ternary;
    const int group = signs ? blocks::kSignGroup : blocks::group_elements(dtype_info(w.dtype).elements);
    RoundedRows& x = rounded[group == blocks::kLargeGroup];
    if (!x.codes) x = round_rows(op.x, group, context);
    const int rows_at_once = rows == 1 ? 1 : 4;  // the fewer, the less is computed in vain
    const cl_kernel kernel = context.programs->kernel("row_linear.cl", "multiply_codes",
                                                      {{"X", "f32"},
                                                       {"W", type_of(w)},
                                                       {"Y", type_of(op.y[i])},
                                                       {"BIAS", type_of(bias)},
                                                       {"ROWS", std::to_string(rows_at_once)}});
    const Shape shape{rows, n, k, ceil_div(k, group), group, op.alpha, op.acc, bool(scale)};
    launch(context, kernel, groups(ceil_div(n, kLanes), ceil_div(rows, rows_at_once)), x.codes, x.scales, w, scale,
           bias, op.y[i], shape);
  }
}

}  // namespace qeng::opencl
