#include "kernels/check_places.h"
#include "kernels/check_shapes.h"
#include "kernels/view_text.h"

namespace qeng {

void check_shapes(const Matmul& op) {
  const Check check{op.name};
  check.is_float("a", op.a);
  check.is_weight("b", op.b, op.a.dtype);
  check.dtype("c", op.c, {op.a.dtype, DType::f32});
  const auto [m, n, k] = sizes_of(op);
  const int64_t depth = op.trans_b ? op.b.columns() : op.b.rows();
  const auto sides = [&] {
    return "a is " + shape_text(op.a) + (op.trans_a ? " transposed" : "") + ", b is " + shape_text(op.b) +
           (op.trans_b ? " transposed" : "");
  };
  check.that(k == depth, [&] {
    return sides() + ": inner dimensions differ, " + std::to_string(k) + " and " + std::to_string(depth);
  });
  check.that(op.c.rows() == m && op.c.columns() == n, [&] {
    return "c is " + shape_text(op.c) + ", expected [" + std::to_string(m) + ", " + std::to_string(n) + "]; " + sides();
  });
  if (op.bias) {
    check.dtype("bias", op.bias, {op.a.dtype, DType::f32});
    check.count("bias", op.bias, op.bias.dtype, n);
  }
  check.that(m == 0 || n == 0 || k > 0, [&] { return sides() + ": the inner dimension is 0"; });
}

void check_shapes(const MatmulSum& op) {
  const Check check{op.name};
  check.that(!op.sums.empty(), "there are no sums");
  for (const MatmulSum::Sum& sum : op.sums) {
    check.that(!sum.a.empty() && sum.a.size() == sum.b.size(), [&] {
      return std::to_string(sum.a.size()) + " first sides and " + std::to_string(sum.b.size()) +
             " second ones; expected as many of both, one at least";
    });
    for (size_t i = 0; i < sum.a.size(); ++i) {
      check.dtype("a", sum.a[i], {op.sums[0].a[0].dtype});
      check_shapes(product_of(op, sum, i));
    }
  }
}

void check_shapes(const LoraDown& op) {
  const Check check{op.name};
  check.is_float("x", op.x);
  check.that(!op.a.empty() && op.a.size() == op.u.size() && op.a.size() == op.alpha.size(), [&] {
    return std::to_string(op.a.size()) + " matrices a, " + std::to_string(op.u.size()) + " results and " +
           std::to_string(op.alpha.size()) + " factors; expected as many of each, one at least";
  });
  for (size_t i = 0; i < op.a.size(); ++i) {
    check.is("a", op.a[i], op.x.dtype, {op.a[i].rows(), op.x.columns()});
    check.is("u", op.u[i], op.x.dtype, {op.x.rows(), op.a[i].rows()});
  }
}

void check_shapes(const LoraDownGrad& op) {
  const Check check{op.name};
  check.is_float("x", op.x);
  check.that(!op.du.empty() && op.du.size() == op.da.size(), [&] {
    return std::to_string(op.du.size()) + " matrices du and " + std::to_string(op.da.size()) +
           " results; expected as many of both, one at least";
  });
  for (size_t i = 0; i < op.du.size(); ++i) {
    check.is("du", op.du[i], op.x.dtype, {op.x.rows(), op.du[i].columns()});
    check.dtype("da", op.da[i], {op.x.dtype, DType::f32});
    check.is("da", op.da[i], op.da[i].dtype, {op.du[i].columns(), op.x.columns()});
  }
}

void check_shapes(const LoraUpGrad& op) {
  const Check check{op.name};
  check.is_float("dy", op.dy);
  const int64_t rank = op.b.columns();
  check.is("b", op.b, op.dy.dtype, {op.dy.columns(), rank});
  check.is("u", op.u, op.dy.dtype, {op.dy.rows(), rank});
  check.is("du", op.du, op.dy.dtype, {op.dy.rows(), rank});
  if (!op.db) return;
  check.dtype("db", op.db, {op.dy.dtype, DType::f32});
  check.is("db", op.db, op.db.dtype, {op.dy.columns(), rank});
}

void check_shapes(const Fp8Round& op) {
  const Check check{op.name};
  check.is_float("x", op.x);
  if (op.y) check.is("y", op.y, DType::u8, {op.x.rows(), op.x.columns()});
  if (op.yt) check.is("yt", op.yt, DType::u8, {op.x.columns(), op.x.rows()});
  check.is("scale", op.scale, DType::f32, {1});
}

void check_shapes(const Fp8Matmul& op) {
  const Check check{op.name};
  check.dtype("a", op.a, {DType::u8});
  check.is("b", op.b, DType::u8, {op.b.rows(), op.a.columns()});
  check.is("scale_a", op.scale_a, DType::f32, {1});
  check.is("scale_b", op.scale_b, DType::f32, {1});
  check.is_float("c", op.c);
  check.that(op.c.rows() == op.a.rows() && op.c.columns() == op.b.rows(), [&] {
    return "c is " + shape_text(op.c) + ", a is " + shape_text(op.a) + ", b is " + shape_text(op.b) +
           "; c has to be [rows of a, rows of b]";
  });
  if (op.bias) {
    check.dtype("bias", op.bias, {op.c.dtype, DType::f32});
    check.count("bias", op.bias, op.bias.dtype, op.c.columns());
  }
  check.that(op.c.elements() == 0 || op.a.columns() > 0, "a has no columns");
}

void check_shapes(const BatchedMatmul& op) {
  const Check check{op.name};
  check.is_float("a", op.a);
  check.dtype("b", op.b, {op.a.dtype});
  check.dtype("c", op.c, {op.a.dtype});
  check.that(op.a.rank >= 2 && op.b.rank >= 2 && op.c.rank >= 2, [&] {
    return "a is " + shape_text(op.a) + ", b is " + shape_text(op.b) + ", c is " + shape_text(op.c) +
           "; expected matrices of each";
  });
  const MatrixSizes a = matrix_sizes(op.a, op.trans_a), b = matrix_sizes(op.b, op.trans_b),
                    c = matrix_sizes(op.c, false);
  check.that(a.columns == b.rows && c.rows == a.rows && c.columns == b.columns && a.columns > 0, [&] {
    return "a is " + shape_text(op.a) + (op.trans_a ? " transposed" : "") + ", b is " + shape_text(op.b) +
           (op.trans_b ? " transposed" : "") + ", c is " + shape_text(op.c) + ", which do not fit";
  });
  check_inside(check, "a", op.a, a.count, op.batch, op.of_a);
  check_inside(check, "b", op.b, b.count, op.batch, op.of_b);
  check_inside(check, "c", op.c, c.count, op.batch, op.of_c);
  check_apart(check, "c", op.c, op.batch, op.of_c);
}

void check_shapes(const BiasGrad& op) {
  const Check check{op.name};
  check.is_float("dy", op.dy);
  check.is("db", op.db, DType::f32, {op.dy.columns()});
}

void check_shapes(const RowLinear& op) {
  const Check check{op.name};
  check.is_float("x", op.x);
  check.that(!op.w.empty() && op.y.size() == op.w.size() && (op.bias.empty() || op.bias.size() == op.w.size()) &&
                 (op.scale.empty() || op.scale.size() == op.w.size()),
             [&] {
               return std::to_string(op.w.size()) + " weights, " + std::to_string(op.scale.size()) + " scales, " +
                      std::to_string(op.bias.size()) + " biases and " + std::to_string(op.y.size()) +
                      " outputs; expected as many outputs as weights, and as many scales and biases or none";
             });
  for (size_t i = 0; i < op.w.size(); ++i) {
    check.is_stored("w", op.w[i]);
    check.that(op.w[i].rank == 2 && op.w[i].columns() == op.x.columns(), [&] {
      return "w is " + shape_text(op.w[i]) + ", x is " + shape_text(op.x) + "; w has to be [n, " +
             std::to_string(op.x.columns()) + "]";
    });
    check.dtype("y", op.y[i], {op.x.dtype, DType::f32});
    check.count("y", op.y[i], op.y[i].dtype, op.x.rows() * op.w[i].shape[0]);
    if (!op.scale.empty() && op.scale[i]) check.is("scale", op.scale[i], DType::f32, {op.w[i].shape[0]});
    if (!op.bias.empty() && op.bias[i]) {
      check.dtype("bias", op.bias[i], {op.x.dtype, DType::f32});
      check.count("bias", op.bias[i], op.bias[i].dtype, op.w[i].shape[0]);
    }
  }
}

void check_shapes(const Hadamard& op) {
  const Check check{op.name};
  check.is_float("x", op.x);
  check.like("y", op.y, "x", op.x);
  if (op.signs) check.is("signs", op.signs, DType::f32, {op.x.columns()});
  check.that(op.block > 0 && (op.block & (op.block - 1)) == 0 && op.x.columns() % op.block == 0, [&] {
    return "block is " + std::to_string(op.block) + ", x is " + shape_text(op.x) +
           "; expected a power of two that divides the columns";
  });
}

void check_shapes(const GroupedMatmul& op) {
  const Check check{op.name};
  check.is_float("x", op.x);
  check.is_weight("w", op.w, op.x.dtype);
  check.that(op.w.rank == 3 && op.w.shape[op.tall ? 1 : 2] == op.x.columns(), [&] {
    return "x is " + shape_text(op.x) + ", w is " + shape_text(op.w) + "; w has to be [experts, " +
           (op.tall ? std::to_string(op.x.columns()) + ", n]" : "n, " + std::to_string(op.x.columns()) + "]");
  });
  check.that(!(op.tall && op.apart), "tall weights have no rows for products apart: transpose them first");
  const int64_t experts = op.w.shape[0], n = op.w.shape[op.tall ? 2 : 1];
  check.is("first", op.first, DType::i32, {experts + 1});
  check.dtype("y", op.y, {op.x.dtype, DType::f32});
  check.that(op.y.rows() == op.x.rows() && op.y.columns() == n, [&] {
    return "y is " + shape_text(op.y) + ", expected [" + std::to_string(op.x.rows()) + ", " + std::to_string(n) + "]";
  });
  if (op.bias) {
    check.dtype("bias", op.bias, {op.x.dtype, DType::f32});
    check.is("bias", op.bias, op.bias.dtype, {experts, n});
  }
  check.that(op.y.elements() == 0 || op.x.columns() > 0, [&] { return "w is " + shape_text(op.w) + ": k is 0"; });
}

void check_shapes(const GroupedMatmulGrad& op) {
  const Check check{op.name};
  check.is_float("dy", op.dy);
  check.dtype("x", op.x, {op.dy.dtype});
  check.that(op.x.rows() == op.dy.rows(),
             [&] { return "dy is " + shape_text(op.dy) + ", x is " + shape_text(op.x) + ": rows differ"; });
  check.dtype("first", op.first, {DType::i32});
  const int64_t experts = op.first.elements() - 1;
  check.that(op.first.rank == 1 && experts >= 1,
             [&] { return "first is " + shape_text(op.first) + ", expected [experts + 1]"; });
  if (op.dw) check.is("dw", op.dw, DType::f32, {experts, op.dy.columns(), op.x.columns()});
  if (op.dbias) check.is("dbias", op.dbias, DType::f32, {experts, op.dy.columns()});
}

void check_shapes(const Route& op) {
  const Check check{op.name};
  const int64_t tokens = op.scores.rows(), experts = op.scores.columns(), k = op.choice.columns();
  check.is("scores", op.scores, DType::f32, {tokens, experts});
  if (op.bias) check.is("bias", op.bias, DType::f32, {experts});
  check.is("choice", op.choice, DType::i32, {tokens, k});
  check.that(k >= 1 && k <= experts, [&] {
    return "choice is " + shape_text(op.choice) + ", scores is " + shape_text(op.scores) + "; a token has from 1 to " +
           std::to_string(experts) + " experts";
  });
  check.is("order", op.order, DType::i32, {tokens * k});
  check.is("first", op.first, DType::i32, {experts + 1});
  check.is("place", op.place, DType::i32, {tokens, k});
}

void check_shapes(const Dispatch& op) {
  const Check check{op.name};
  const int64_t tokens = op.x.rows(), k = op.place.columns();
  check.is_float("x", op.x);
  check.is("x", op.x, op.x.dtype, {tokens, op.x.columns()});
  check.is("place", op.place, DType::i32, {tokens, k});
  check.is("y", op.y, op.x.dtype, {tokens * k, op.x.columns()});
  if (op.weight) check.is("weight", op.weight, DType::f32, {tokens, k});
  check.that(static_cast<bool>(op.rows) == static_cast<bool>(op.dot), "rows and dot are there both or neither");
  if (!op.dot) return;
  check.like("rows", op.rows, "y", op.y);
  check.is("dot", op.dot, DType::f32, {tokens, k});
}

void check_shapes(const Combine& op) {
  const Check check{op.name};
  const int64_t tokens = op.place.rows(), k = op.place.columns();
  check.is("place", op.place, DType::i32, {tokens, k});
  check.is_float("x", op.x);
  check.is("x", op.x, op.x.dtype, {tokens * k, op.x.columns()});
  check.is("y", op.y, op.x.dtype, {tokens, op.x.columns()});
  if (op.weight) check.is("weight", op.weight, DType::f32, {tokens, k});
}

}  // namespace qeng
