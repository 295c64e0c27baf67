// What shapes and dtypes each operation asks for, the same on every backend, which calls this before anything else:
// Error("shape" | "dtype" | "value") with the operation's name and the view's, and no output touched.
#pragma once
#include "kernels/ops.h"

namespace qeng {

#define QENG_CHECK(Name) void check_shapes(const Name& op);
QENG_OPERATIONS(QENG_CHECK)
#undef QENG_CHECK
inline void check_shapes(const UseWeights&) {}

// The sizes of op(a) [m, k] and op(b) [k, n].
struct MatmulSizes {
  int64_t m, n, k;
};
inline MatmulSizes sizes_of(const Matmul& op) {
  return {op.trans_a ? op.a.columns() : op.a.rows(), op.trans_b ? op.b.rows() : op.b.columns(),
          op.trans_a ? op.a.rows() : op.a.columns()};
}

// The products of a sum, in their order: the first ones add to what is there, and the last one has the bias.
inline Matmul product_of(const MatmulSum& op, const MatmulSum::Sum& sum, size_t i) {
  return {.a = sum.a[i],
          .b = sum.b[i],
          .bias = i + 1 == sum.a.size() ? sum.bias : View(),
          .c = sum.c,
          .trans_a = op.trans_a,
          .trans_b = op.trans_b,
          .acc = sum.acc || i > 0};
}

// The matrices of an operand of BatchedMatmul: their number, and rows and columns of each, or of their transposes.
struct MatrixSizes {
  int64_t count, rows, columns;
};
inline MatrixSizes matrix_sizes(const View& x, bool transposed) {
  const int64_t rows = x.shape[x.rank - 2], columns = x.columns(), of_each = rows * columns;
  return {of_each ? x.elements() / of_each : 0, transposed ? columns : rows, transposed ? rows : columns};
}

}  // namespace qeng
