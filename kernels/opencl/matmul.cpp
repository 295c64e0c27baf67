// Matmul, MatmulSum, LoraDown, LoraDownGrad, LoraUpGrad, BatchedMatmul, BiasGrad.
#include "kernels/opencl/opencl.h"

namespace qeng::opencl {

namespace {

// As in matmul.cl.
struct Shape {
  int64_t m, n, k, a_row, a_column, b_row, b_column, c_row;
  int64_t size[4] = {1, 1, 1, 1}, a_first = 0, b_first = 0, c_first = 0, of_a[4] = {}, of_b[4] = {}, of_c[4] = {};
  float alpha = 1;
  int acc = 0, scaled = 0;
};

struct Tile {
  int rows, columns, each_rows, wide;
};
constexpr Tile kSquare{8, 8, 8, 8};
constexpr Tile kFlat{1, 64, 16, 2};  // for a few rows: decoding

void launch_product(const View& a, const View& b, const View& factors, const View& bias, const View& c, bool round_a,
                    const Shape& shape, Context& context) {
  const Tile& tile = shape.m <= kFlat.each_rows ? kFlat : kSquare;
  const auto number = [](int value) { return std::to_string(value); };
  const cl_kernel kernel = context.programs->kernel("matmul.cl", "multiply",
                                                    {{"A", round_a ? "rounded" : type_of(a)},
                                                     {"B", type_of(b)},
                                                     {"BIAS", type_of(bias)},
                                                     {"C", type_of(c)},
                                                     {"ROWS_OF", number(tile.rows)},
                                                     {"COLUMNS_OF", number(tile.columns)},
                                                     {"EACH_ROWS", number(tile.each_rows)},
                                                     {"WIDE", number(tile.wide)}});
  Range range;
  range.local[0] = static_cast<size_t>(tile.columns), range.local[1] = static_cast<size_t>(tile.rows);
  range.global[0] = static_cast<size_t>(ceil_div(shape.n, tile.columns * tile.wide) * tile.columns);
  range.global[1] = static_cast<size_t>(ceil_div(shape.m, tile.rows * tile.each_rows) * tile.rows);
  range.global[2] = static_cast<size_t>(shape.size[0] * shape.size[1] * shape.size[2] * shape.size[3]);
  launch(context, kernel, range, a, b, factors, bias, c, shape);
}

// Of matrices as views have them: strides of op(a) and op(b).
Shape shape_of(int64_t m, int64_t n, int64_t k, bool trans_a, bool trans_b) {
  Shape shape{m, n, k, trans_a ? 1 : k, trans_a ? m : 1, trans_b ? 1 : n, trans_b ? k : 1, n};
  return shape;
}

}  // namespace

void multiply(const Product& p, Context& context) {
  Shape shape{p.m, p.n, p.k, p.a_row, p.a_column, p.b_row, p.b_column, p.c_row};
  shape.alpha = p.alpha, shape.acc = p.acc, shape.scaled = bool(p.scale);
  launch_product(p.a, p.b, p.scale, p.bias, p.c, p.round_a, shape, context);
}

void run(const Matmul& op, Context& context) {
  const MatmulSizes sizes = sizes_of(op);
  Shape shape = shape_of(sizes.m, sizes.n, sizes.k, op.trans_a, op.trans_b);
  shape.alpha = op.alpha, shape.acc = op.acc;
  launch_product(op.a, op.b, View(), op.bias, op.c, false, shape, context);
}

void run(const MatmulSum& op, Context& context) {
  for (const MatmulSum::Sum& sum : op.sums)
    for (size_t i = 0; i < sum.a.size(); ++i) run(product_of(op, sum, i), context);
}

void run(const LoraDown& op, Context& context) {
  for (size_t i = 0; i < op.a.size(); ++i)
    run(Matmul{.a = op.x, .b = op.a[i], .c = op.u[i], .trans_b = true, .alpha = op.alpha[i]}, context);
}

void run(const LoraDownGrad& op, Context& context) {
  for (size_t i = 0; i < op.du.size(); ++i)
    run(Matmul{.a = op.du[i], .b = op.x, .c = op.da[i], .trans_a = true, .acc = op.acc}, context);
}

void run(const LoraUpGrad& op, Context& context) {
  run(Matmul{.a = op.dy, .b = op.b, .c = op.du, .alpha = op.alpha}, context);
  if (op.db) run(Matmul{.a = op.dy, .b = op.u, .c = op.db, .trans_a = true, .acc = op.acc}, context);
}

void run(const BatchedMatmul& op, Context& context) {
  const MatrixSizes a = matrix_sizes(op.a, op.trans_a), c = matrix_sizes(op.c, false);
  const int64_t of_a = c.rows * a.columns, of_b = a.columns * c.columns, of_c = c.rows * c.columns;
  Shape shape = shape_of(c.rows, c.columns, a.columns, op.trans_a, op.trans_b);
  shape.acc = op.acc;
  shape.a_first = op.of_a.first * of_a, shape.b_first = op.of_b.first * of_b, shape.c_first = op.of_c.first * of_c;
  for (int d = 0; d < op.batch.rank; ++d) {
    shape.size[d] = op.batch.shape[d];
    shape.of_a[d] = op.of_a.stride[d] * of_a, shape.of_b[d] = op.of_b.stride[d] * of_b;
    shape.of_c[d] = op.of_c.stride[d] * of_c;
  }
  launch_product(op.a, op.b, View(), View(), op.c, false, shape, context);
}

void run(const BiasGrad& op, Context& context) {
  const int64_t n = op.dy.columns();
  launch(context, context.programs->kernel("matmul.cl", "bias_grad", {{"X", type_of(op.dy)}}), items(n), op.dy, op.db,
         op.dy.rows(), n, int{op.acc});
}

}  // namespace qeng::opencl
