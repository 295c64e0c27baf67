// Products of matrices, many at a time.
#include "engine/autograd/functions.h"
#include "kernels/view_text.h"

namespace qeng {
namespace {

// The space of a product's matrices, and where in it those of a, b and c lie.
struct Batches {
  Shape shape;  // of c but for the last two dimensions
  Strides a, b, c;
};

Shape batch_shape(const View& x) { return Shape(x.shape, x.shape + x.rank - 2); }

// Strides of matrices of shape `own`, whose dimensions of one matrix stand for all.
Strides strides_of(const Shape& own) {
  Strides strides;
  int64_t count = 1;
  for (size_t d = own.size(); d-- > 0; count *= own[d])
    if (own[d] != 1) strides.stride[d] = count;
  return strides;
}

Batches batches_of(const View& a, const View& b) {
  Batches result;
  Shape of_a = batch_shape(a), of_b = batch_shape(b);
  const size_t rank = std::max(of_a.size(), of_b.size());
  of_a.insert(of_a.begin(), rank - of_a.size(), 1), of_b.insert(of_b.begin(), rank - of_b.size(), 1);
  for (size_t d = 0; d < rank; ++d) {
    if (of_a[d] != of_b[d] && of_a[d] != 1 && of_b[d] != 1)
      fail("shape", "matmul of ", shape_text(a), " and ", shape_text(b), ": dimensions before the last two differ, ",
           of_a[d], " and ", of_b[d], "; they have to agree, or one of them to be 1");
    result.shape.push_back(of_a[d] == 1 ? of_b[d] : of_a[d]);
  }
  result.a = strides_of(of_a), result.b = strides_of(of_b), result.c = strides_of(result.shape);
  return result;
}

View space_of(const Shape& shape) {
  View space;
  for (const int64_t size : shape) space.shape[space.rank++] = size;
  return space;
}

// Adds to x's gradient the products `op`, which goes to matrices op.of_c of it. Where one of them stands for several of
// the batch, these follow each other.
void add_products(Tape& tape, const TensorPtr& x, BatchedMatmul op) {
  const Tape::Target target = tape.gradient_of(x);
  op.c = target.view, op.acc = target.acc;
  const View whole = op.batch;
  int64_t turns = 1;
  for (int d = 0; d < whole.rank; ++d)
    if (op.of_c.stride[d] == 0) turns *= whole.shape[d], op.batch.shape[d] = 1;
  const Strides of_a = op.of_a, of_b = op.of_b;
  for (int64_t turn = 0; turn < turns; ++turn) {
    op.of_a = of_a, op.of_b = of_b;
    int64_t rest = turn;
    for (int d = whole.rank - 1; d >= 0; --d) {
      if (op.of_c.stride[d] != 0) continue;
      op.of_a.first += rest % whole.shape[d] * of_a.stride[d], op.of_b.first += rest % whole.shape[d] * of_b.stride[d];
      rest /= whole.shape[d];
    }
    tape.device().run(op);
    op.acc = true;
  }
}

// A product without elements, or of zeros. The gradients are 0.
TensorPtr sums_of_nothing(Tape& tape, const TensorPtr& a, const TensorPtr& b, const Shape& shape) {
  TensorPtr c = make_zeros(tape.device(), shape, a->view.dtype);
  if (!tape.wants({a, b})) return c;
  tape.record({c}, [=, &tape] {
    for (const TensorPtr& x : {a, b}) {
      if (!x->needs_grad()) continue;
      const Tape::Target target = tape.gradient_of(x);
      if (!target.acc && target.view.elements()) tape.device().run(Fill{target.view, 0});
    }
  });
  return c;
}

// One matrix b for all of a's rows: a product of a's rows as one matrix.
TensorPtr rows_by_matrix(Tape& tape, const TensorPtr& a, const TensorPtr& b, bool trans_b) {
  const auto rows = [](const View& x) {
    int64_t count = 1;  // also where there are no columns
    for (int d = 0; d < x.rank - 1; ++d) count *= x.shape[d];
    return View(x.data, x.dtype, {count, x.columns()});
  };
  Shape shape(a->view.shape, a->view.shape + a->view.rank - 1);
  shape.push_back(b->view.shape[trans_b ? 0 : 1]);
  TensorPtr c = make_tensor(tape.device(), shape, a->view.dtype);
  tape.device().run(Matmul{rows(a->view), b->view, {}, rows(c->view), false, trans_b});
  if (!tape.wants({a, b})) return c;
  tape.record({c}, [=, &tape] {
    const View g = rows(c->grad->view);
    if (a->needs_grad()) {
      const Tape::Target target = tape.gradient_of(a);
      tape.device().run(Matmul{g, b->view, {}, rows(target.view), false, !trans_b, target.acc});
    }
    if (b->needs_grad()) {
      const Tape::Target target = tape.gradient_of(b);
      const View x = rows(a->view);
      tape.device().run(trans_b ? Matmul{g, x, {}, target.view, true, false, target.acc}
                                : Matmul{x, g, {}, target.view, true, false, target.acc});
    }
  });
  return c;
}

}  // namespace

TensorPtr matmul(Tape& tape, const TensorPtr& a, const TensorPtr& b, bool trans_a, bool trans_b) {
  Device& device = tape.device();
  if (a->view.rank < 2 || b->view.rank < 2)
    fail("shape", "matmul of ", shape_text(a->view), " and ", shape_text(b->view),
         ": both need two dimensions or more");
  if (a->view.dtype != b->view.dtype)
    fail("dtype", "matmul of ", shape_text(a->view), " and ", shape_text(b->view), ": dtypes differ; cast with :to()");
  const Batches batches = batches_of(a->view, b->view);
  Shape shape = batches.shape;
  shape.push_back(a->view.shape[a->view.rank - (trans_a ? 1 : 2)]);
  shape.push_back(b->view.shape[b->view.rank - (trans_b ? 2 : 1)]);
  const int64_t inner = a->view.shape[a->view.rank - (trans_a ? 2 : 1)];
  const bool fits = inner == b->view.shape[b->view.rank - (trans_b ? 1 : 2)];
  if (fits && (inner == 0 || space_of(shape).elements() == 0)) return sums_of_nothing(tape, a, b, shape);
  if (b->view.rank == 2 && !trans_a) return rows_by_matrix(tape, a, b, trans_b);
  TensorPtr c = make_tensor(device, shape, a->view.dtype);
  const auto product = [space = space_of(batches.shape)](const View& left, const Strides& of_left, bool trans_left,
                                                         const View& right, const Strides& of_right, bool trans_right) {
    BatchedMatmul op;
    op.a = left, op.b = right, op.batch = space, op.of_a = of_left, op.of_b = of_right;
    op.trans_a = trans_left, op.trans_b = trans_right;
    return op;
  };
  BatchedMatmul forward = product(a->view, batches.a, trans_a, b->view, batches.b, trans_b);
  forward.c = c->view, forward.of_c = batches.c;
  device.run(forward);
  if (!tape.wants({a, b})) return c;
  tape.record({c}, [=, &tape] {
    const View g = c->grad->view;
    if (a->needs_grad()) {
      BatchedMatmul op = trans_a ? product(b->view, batches.b, trans_b, g, batches.c, true)
                                 : product(g, batches.c, false, b->view, batches.b, !trans_b);
      op.of_c = batches.a;
      add_products(tape, a, op);
    }
    if (b->needs_grad()) {
      BatchedMatmul op = trans_b ? product(g, batches.c, true, a->view, batches.a, trans_a)
                                 : product(a->view, batches.a, !trans_a, g, batches.c, false);
      op.of_c = batches.b;
      add_products(tape, b, op);
    }
  });
  return c;
}

}  // namespace qeng
