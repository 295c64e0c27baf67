// Tensors in another order: slices, transposes, parts put together, elements by index.
#include <numeric>

#include "engine/autograd/expression.h"
#include "engine/autograd/functions.h"
#include "kernels/view_text.h"

namespace qeng {
namespace {

Shape shape_of(const TensorPtr& x) { return Shape(x->view.shape, x->view.shape + x->view.rank); }
View space_of(const Shape& shape) {
  View space;
  for (const int64_t size : shape) space.shape[space.rank++] = size;
  return space;
}
int64_t product(const Shape& shape, size_t begin, size_t end) {
  int64_t n = 1;
  for (size_t d = begin; d < end; ++d) n *= shape[d];
  return n;
}
// Of a tensor of this shape as it lies.
Strides dense(const Shape& shape) {
  Strides places;
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0; stride *= shape[d]) places.stride[d] = stride;
  return places;
}

// Adds g at `from` to x's gradient at `to`, for every index of the space.
void add_gradient(Tape& tape, const TensorPtr& x, const TensorPtr& g, const View& space, const Strides& from,
                  const Strides& to) {
  if (!x->needs_grad()) return;
  Device& device = tape.device();
  const bool mixed = x->requires_grad && x->grad->view.dtype != g->view.dtype;  // a parameter's is f32
  const TensorPtr apart = mixed ? make_like(*x) : nullptr;
  const Tape::Target target = mixed ? Tape::Target{apart->view, false} : tape.gradient_of(x);
  Rearrange op{g->view, target.view, space, from, to, target.acc};
  if (!op.acc && !op.fills() && target.view.elements()) device.run(Fill{target.view, 0});
  device.run(op);
  if (mixed) tape.pass(x, apart);
}

// A copy of x at `from` in the shape, and its gradient.
TensorPtr rearranged(Tape& tape, const TensorPtr& x, const Shape& shape, const Strides& from) {
  TensorPtr y = make_tensor(tape.device(), shape, x->view.dtype);
  const View space = space_of(shape);
  const Strides to = dense(shape);
  tape.device().run(Rearrange{x->view, y->view, space, from, to});
  if (!tape.wants({x})) return y;
  tape.record({y}, [=, &tape] { add_gradient(tape, x, y->grad, space, to, from); });
  return y;
}

// x, index and result of Gather as [outer, n, inner].
struct Gathered {
  View x, index, y;
  Shape shape;  // of the result
};
Gathered gathered(const char* name, const TensorPtr& x, const TensorPtr& index, int dim) {
  const auto d = static_cast<size_t>(dim);
  const Shape shape = shape_of(x), its = shape_of(index);
  const auto refuse = [&] {
    fail("shape", name, " of ", shape_text(x->view), " along dimension ", dim + 1, " by ", shape_text(index->view),
         ": the index has to have one dimension, or those of the tensor, where those before dimension ", dim + 1,
         " may all be 1, and those behind it");
  };
  const auto all = [&](size_t begin, size_t end, auto fits) {
    for (size_t i = begin; i < end; ++i)
      if (!fits(i)) return false;
    return true;
  };
  Gathered result;
  result.shape = shape, result.shape[d] = its.size() == 1 ? its[0] : its.size() == shape.size() ? its[d] : 0;
  const int64_t outer = product(shape, 0, d), inner = product(shape, d + 1, shape.size()), m = result.shape[d];
  int64_t index_outer = 1, index_inner = 1;
  if (its.size() != 1 || shape.size() == 1) {
    if (its.size() != shape.size()) refuse();
    const auto same = [&](size_t i) { return its[i] == shape[i]; };
    const auto one = [&](size_t i) { return its[i] == 1; };
    if (!all(0, d, one)) all(0, d, same) ? void(index_outer = outer) : refuse();
    if (!all(d + 1, its.size(), one)) all(d + 1, its.size(), same) ? void(index_inner = inner) : refuse();
  }
  result.x = View(x->view.data, x->view.dtype, {outer, shape[d], inner});
  result.index = View(index->view.data, index->view.dtype, {index_outer, m, index_inner});
  result.y = View(nullptr, x->view.dtype, {outer, m, inner});
  return result;
}

// x in f32, to be added to.
TensorPtr wide_copy(const TensorPtr& x) {
  TensorPtr wide = make_tensor(x->device(), shape_of(x), DType::f32);
  copy_into(*wide, *x);
  return wide;
}
TensorPtr narrowed(const TensorPtr& wide, DType dtype) {
  if (dtype == DType::f32) return wide;
  TensorPtr narrow = make_tensor(wide->device(), shape_of(wide), dtype);
  copy_into(*narrow, *wide);
  return narrow;
}

}  // namespace

TensorPtr permute(Tape& tape, const TensorPtr& x, const std::vector<int>& dims) {
  const Strides own = dense(shape_of(x));
  Shape shape;
  Strides from;
  for (const int d : dims) {
    from.stride[shape.size()] = own.stride[d];
    shape.push_back(x->view.shape[d]);
  }
  int64_t before = -1;  // dimensions of more than one element stay in order: nothing moves
  bool ordered = true;
  for (size_t d = 0; d < dims.size(); ++d)
    if (shape[d] != 1) ordered = ordered && dims[d] > before, before = dims[d];
  return ordered ? reshape(tape, x, shape) : rearranged(tape, x, shape, from);
}

TensorPtr slice(Tape& tape, const TensorPtr& x, int dim, int64_t first, int64_t step, int64_t count) {
  Shape shape = shape_of(x);
  const auto d = static_cast<size_t>(dim);
  Strides from = dense(shape);
  const int64_t stride = from.stride[d];
  from.first = first * stride, from.stride[d] = step * stride;
  const bool dense_part = step == 1 && product(shape, 0, d) == 1;
  shape[d] = count;
  if (!dense_part || is_block(x->view.dtype) || x->view.interleaved) return rearranged(tape, x, shape, from);
  const TensorPtr y = new_tensor(x->device());
  y->buffer = x->buffer, y->view = x->view;
  y->view.shape[d] = count;
  y->view.data = x->view.as<char>() + from.first * static_cast<int64_t>(dtype_size(x->view.dtype));
  if (!tape.wants({x})) return y;
  const View space = space_of(shape);
  tape.record({y}, [=, &tape] { add_gradient(tape, x, y->grad, space, dense(shape), from); });
  return y;
}

TensorPtr expand(Tape& tape, const TensorPtr& x, const Shape& shape) {
  Shape own = shape_of(x);
  const bool fits = own.size() <= shape.size();
  if (fits) own.insert(own.begin(), shape.size() - own.size(), 1);
  Strides from = fits ? dense(own) : Strides();
  std::vector<int> repeated;
  for (size_t d = 0; fits && d < shape.size(); ++d) {
    if (own[d] == shape[d]) continue;
    if (own[d] != 1) fail("shape", "expand of ", shape_text(x->view), ": dimension ", d + 1, " is ", own[d], ", not 1");
    from.stride[d] = 0, repeated.push_back(static_cast<int>(d));
  }
  if (!fits) fail("shape", "expand of ", shape_text(x->view), " to ", shape.size(), " dimensions, which are fewer");
  if (repeated.empty()) return reshape(tape, x, shape);
  TensorPtr y = make_tensor(tape.device(), shape, x->view.dtype);
  tape.device().run(Rearrange{x->view, y->view, space_of(shape), from, dense(shape)});
  if (!tape.wants({x})) return y;
  tape.record({y}, [=, &tape] {
    const TensorPtr g = reshape_view(settled(sum(tape, y->grad, repeated)), shape_of(x));
    tape.pass(x, g);
  });
  return y;
}

TensorPtr concat(Tape& tape, const std::vector<TensorPtr>& parts, int dim) {
  const auto d = static_cast<size_t>(dim);
  Shape shape = shape_of(parts.at(0));
  shape[d] = 0;
  for (const TensorPtr& part : parts) {
    Shape its = shape_of(part);
    bool fits = its.size() == shape.size() && part->view.dtype == parts[0]->view.dtype;
    for (size_t i = 0; fits && i < its.size(); ++i) fits = i == d || its[i] == shape[i];
    if (!fits)
      fail("shape", "concat along dimension ", dim + 1, " of ", shape_text(parts[0]->view), " and ",
           shape_text(part->view), ": dtypes and the other dimensions have to agree");
    shape[d] += its[d];
  }
  TensorPtr y = make_tensor(tape.device(), shape, parts[0]->view.dtype);
  int64_t first = 0;
  std::vector<Strides> places;
  bool wanted = false;
  for (const TensorPtr& part : parts) {
    Strides to = dense(shape);
    to.first = first * to.stride[d], first += part->view.shape[d];
    places.push_back(to);
    if (part->view.elements())
      tape.device().run(Rearrange{part->view, y->view, space_of(shape_of(part)), dense(shape_of(part)), to});
    wanted = wanted || tape.wants({part});
  }
  if (!wanted) return y;
  tape.record({y}, [=, &tape] {
    for (size_t i = 0; i < parts.size(); ++i) {
      if (!parts[i]->needs_grad() || parts[i]->view.elements() == 0) continue;
      const Shape its = shape_of(parts[i]);
      add_gradient(tape, parts[i], y->grad, space_of(its), places[i], dense(its));
    }
  });
  return y;
}

TensorPtr gather(Tape& tape, const TensorPtr& x, const TensorPtr& index, int dim) {
  Device& device = tape.device();
  Gathered op = gathered("gather", x, index, dim);
  TensorPtr y = make_tensor(device, op.shape, x->view.dtype);
  op.y.data = y->view.data;
  device.run(Gather{op.x, op.index, op.y});
  if (!tape.wants({x})) return y;
  tape.record({y}, [=, &tape, &device, kept = index] {  // op has views of it alone
    const TensorPtr dx = make_zeros(device, shape_of(x), DType::f32);
    View g = op.y, to = op.x;
    g.data = y->grad->view.data, to.data = dx->view.data, to.dtype = DType::f32;
    device.run(ScatterAdd{g, op.index, to});
    tape.pass(x, narrowed(dx, x->view.dtype));
  });
  return y;
}

TensorPtr scatter_add(Tape& tape, const TensorPtr& x, int dim, const TensorPtr& index, const TensorPtr& source) {
  Device& device = tape.device();
  const Gathered op = gathered("scatter_add", x, index, dim);
  if (shape_of(source) != op.shape)
    fail("shape", "scatter_add to ", shape_text(x->view), " by ", shape_text(index->view), ": the values are ",
         shape_text(source->view), ", expected ", shape_text(space_of(op.shape)));
  const TensorPtr wide = wide_copy(x);
  View from = op.y, to = op.x;
  from.data = source->view.data, from.dtype = source->view.dtype, to.data = wide->view.data, to.dtype = DType::f32;
  device.run(ScatterAdd{from, op.index, to});
  TensorPtr y = narrowed(wide, x->view.dtype);
  if (!tape.wants({x, source})) return y;
  tape.record({y}, [=, &tape, &device, kept = index] {
    if (source->needs_grad()) {
      TensorPtr g = make_tensor(device, op.shape, y->view.dtype);
      View all = op.x, some = op.y;
      all.data = y->grad->view.data, some.data = g->view.data;
      device.run(Gather{all, op.index, some});
      if (!source->requires_grad && g->view.dtype != source->view.dtype) {
        const TensorPtr other = make_like(*source);
        copy_into(*other, *g);
        g = other;
      }
      tape.pass(source, g);
    }
    if (x->needs_grad()) tape.pass(x, y->grad);
  });
  return y;
}

Sorted sort(Tape& tape, const TensorPtr& x, int64_t k, bool descending) {
  Device& device = tape.device();
  const Shape own = shape_of(x);
  Shape shape = own;
  shape.back() = k;
  const int64_t n = own.back(), rows = n ? x->view.elements() / n : 0;
  Sorted result{make_tensor(device, shape, x->view.dtype), make_tensor(device, shape, DType::i32)};
  const auto as_rows = [&](const TensorPtr& t, int64_t columns) {
    return View(t->view.data, t->view.dtype, {rows, columns});
  };
  device.run(Sort{as_rows(x, n), as_rows(result.values, k), as_rows(result.index, k), descending});
  if (!tape.wants({x})) return result;
  tape.record({result.values}, [=, &tape, &device] {
    const TensorPtr dx = make_zeros(device, own, DType::f32), g = result.values->grad;
    device.run(ScatterAdd{View(g->view.data, g->view.dtype, {rows, k, 1}),
                          View(result.index->view.data, DType::i32, {rows, k, 1}),
                          View(dx->view.data, DType::f32, {rows, n, 1})});
    tape.pass(x, narrowed(dx, x->view.dtype));
  });
  return result;
}

TensorPtr cumulative_sum(Tape& tape, const TensorPtr& x, bool reverse) {
  Device& device = tape.device();
  TensorPtr y = make_like(*x);
  const auto as_rows = [](const TensorPtr& t) {
    return View(t->view.data, t->view.dtype, {t->view.rows(), t->view.columns()});
  };
  device.run(CumulativeSum{as_rows(x), as_rows(y), reverse});
  if (!tape.wants({x})) return y;
  tape.record({y}, [=, &tape, &device] {
    TensorPtr dx = make_like(*x);
    device.run(CumulativeSum{as_rows(y->grad), as_rows(dx), !reverse});
    tape.pass(x, dx);
  });
  return y;
}

}  // namespace qeng
