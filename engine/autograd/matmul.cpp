// Products of matrices, many at a time.
#include "engine/autograd/functions.h"

namespace qeng {
namespace {

// The matrices of a product: those of a and of b that belong to each of c, all in order.
struct Batches {
  Shape shape;  // of c but for the last two dimensions
  std::vector<int64_t> a, b;
};

Shape batch_shape(const View& x) { return Shape(x.shape, x.shape + x.rank - 2); }

Batches batches_of(const View& a, const View& b) {
  Batches result;
  Shape of_a = batch_shape(a), of_b = batch_shape(b);
  const size_t rank = std::max(of_a.size(), of_b.size());
  of_a.insert(of_a.begin(), rank - of_a.size(), 1), of_b.insert(of_b.begin(), rank - of_b.size(), 1);
  int64_t count = 1;
  for (size_t d = 0; d < rank; ++d) {
    if (of_a[d] != of_b[d] && of_a[d] != 1 && of_b[d] != 1)
      fail("shape", "matmul of ", shape_text(a), " and ", shape_text(b), ": dimensions before the last two differ, ",
           of_a[d], " and ", of_b[d], "; they have to agree, or one of them to be 1");
    result.shape.push_back(of_a[d] == 1 ? of_b[d] : of_a[d]);
    count *= result.shape.back();
  }
  const auto place = [&](const Shape& own, int64_t i) {
    int64_t at = 0, stride = 1;
    for (size_t d = rank; d-- > 0; i /= result.shape[d]) {
      if (own[d] != 1) at += i % result.shape[d] * stride;
      stride *= own[d];
    }
    return at;
  };
  for (int64_t i = 0; i < count; ++i) result.a.push_back(place(of_a, i)), result.b.push_back(place(of_b, i));
  return result;
}

View matrix(const View& x, int64_t i) {
  const int64_t rows = x.shape[x.rank - 2], columns = x.columns();
  return View(x.as<char>() + static_cast<int64_t>(dtype_bytes(x.dtype, rows * columns)) * i, x.dtype, {rows, columns});
}

// Adds to x's gradient product(i)'s matrix, for each i, at place[i].
template <class Product>
void add_products(Tape& tape, const TensorPtr& x, const std::vector<int64_t>& place, Product product) {
  const Tape::Target target = tape.gradient_of(x);
  size_t count = 1;
  for (const int64_t size : batch_shape(x->view)) count *= static_cast<size_t>(size);
  std::vector<bool> reached(count, target.acc);
  if (place.empty() && !target.acc && target.view.elements()) tape.device().run(Fill{target.view, 0});
  for (size_t i = 0; i < place.size(); ++i) {
    Matmul op = product(i);
    op.c = matrix(target.view, place[i]);
    op.acc = reached[static_cast<size_t>(place[i])];
    reached[static_cast<size_t>(place[i])] = true;
    tape.device().run(op);
  }
}

}  // namespace

TensorPtr matmul(Tape& tape, const TensorPtr& a, const TensorPtr& b, bool trans_a, bool trans_b) {
  Device& device = tape.device();
  if (a->view.rank < 2 || b->view.rank < 2)
    fail("shape", "matmul of ", shape_text(a->view), " and ", shape_text(b->view),
         ": both need two dimensions or more");
  if (a->view.dtype != b->view.dtype)
    fail("dtype", "matmul of ", shape_text(a->view), " and ", shape_text(b->view), ": dtypes differ; cast with :to()");
  // One matrix b for all of a's rows: one product.
  const bool one = b->view.rank == 2 && !trans_a;
  const auto as_one = [](const View& x) { return View(x.data, x.dtype, {x.rows(), x.columns()}); };
  const Batches batches = one ? Batches{batch_shape(a->view), {0}, {0}} : batches_of(a->view, b->view);
  const auto of_a = [=](const View& x, size_t i) { return one ? as_one(x) : matrix(x, batches.a[i]); };
  const int64_t m = a->view.shape[a->view.rank - (trans_a ? 1 : 2)],
                n = b->view.shape[b->view.rank - (trans_b ? 2 : 1)];
  Shape shape = batches.shape;
  shape.push_back(m), shape.push_back(n);
  TensorPtr c = make_tensor(device, shape, a->view.dtype);
  const auto of_c = [=](const View& x, size_t i) { return one ? as_one(x) : matrix(x, static_cast<int64_t>(i)); };
  for (size_t i = 0; i < batches.a.size(); ++i)
    device.run(Matmul{of_a(a->view, i), matrix(b->view, batches.b[i]), {}, of_c(c->view, i), trans_a, trans_b});
  if (!tape.wants({a, b})) return c;
  tape.record({c}, [=, &tape] {
    const View g = c->grad->view;
    const auto product = [](const View& left, const View& right, bool trans_left, bool trans_right) {
      return Matmul{left, right, {}, {}, trans_left, trans_right};
    };
    if (a->needs_grad() && one) {
      const Tape::Target target = tape.gradient_of(a);
      Matmul op = product(as_one(g), b->view, false, !trans_b);
      op.c = as_one(target.view), op.acc = target.acc;
      tape.device().run(op);
    } else if (a->needs_grad()) {
      add_products(tape, a, batches.a, [&](size_t i) {
        const View right = matrix(b->view, batches.b[i]), from = of_c(g, i);
        return trans_a ? product(right, from, trans_b, true) : product(from, right, false, !trans_b);
      });
    }
    if (b->needs_grad())
      add_products(tape, b, batches.b, [&](size_t i) {
        const View left = of_a(a->view, i), from = of_c(g, i);
        return trans_b ? product(from, left, true, trans_a) : product(left, from, !trans_a, false);
      });
  });
  return c;
}

}  // namespace qeng
