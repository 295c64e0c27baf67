#include "engine/autograd/expression.h"

#include <algorithm>
#include <cmath>

#include "engine/autograd/expression_program.h"
#include "engine/autograd/functions.h"
#include "kernels/view_text.h"

namespace qeng {
namespace {

constexpr int kMostNodes = 40;
constexpr size_t kMostInputs = 8;  // of an expression: its gradient has several times as many

Shape shape_of(const Tensor& x) { return Shape(x.view.shape, x.view.shape + x.view.rank); }

std::string text_of(const Operand& operand) {
  return operand.tensor ? shape_text(operand.tensor->view) : std::to_string(operand.number);
}

Shape broadcast(Fn fn, const std::vector<Operand>& operands) {
  Shape shape{1};
  for (const Operand& operand : operands) {
    if (!operand.tensor) continue;
    const Shape other = shape_of(*operand.tensor);
    if (other.size() > shape.size()) shape.insert(shape.begin(), other.size() - shape.size(), 1);
    for (size_t d = 0; d < other.size(); ++d) {
      int64_t& size = shape[shape.size() - 1 - d];
      const int64_t its = other[other.size() - 1 - d];
      if (size != its && size != 1 && its != 1) {
        std::string all;
        for (const Operand& each : operands) all += (all.empty() ? "" : ", ") + text_of(each);
        fail("shape", fn_name(fn), " of ", all, ": dimensions differ, ", size, " and ", its,
             "; from the last one on they have to agree, or one of them to be 1");
      }
      if (size == 1) size = its;
    }
  }
  return shape;
}

DType result_of(Fn fn, const std::vector<Operand>& operands) {
  if (is_comparison(fn)) return DType::u8;
  DType found = DType::u8;  // none yet
  for (size_t i = fn == Fn::where ? 1 : 0; i < operands.size(); ++i) {
    if (!operands[i].tensor) continue;
    const DType dtype = operands[i].tensor->view.dtype;
    if (!is_float(dtype)) continue;
    found = found == DType::u8 || found == dtype ? dtype : DType::f32;
  }
  return found == DType::u8 ? DType::f32 : found;
}

ExpressionPtr leaf_of(const TensorPtr& x) {
  auto leaf = std::make_shared<Expression>();
  leaf->leaf = x, leaf->shape = shape_of(*x), leaf->dtype = x->view.dtype, leaf->leaves = {x.get()};
  leaf->records = x->needs_grad();
  return leaf;
}

void check_fresh(const Tensor& x) {
  if (x.pending && x.pending->stale)
    fail("state", "this tensor, ", shape_text(x.view),
         ", was a step of another expression, and one of its operands has been written to since: compute it before, "
         "with :compute()");
}

ExpressionPtr expression_of(const Operand& operand) {
  if (operand.tensor) {
    if (!operand.tensor->pending) return leaf_of(operand.tensor);
    operand.tensor->pending->used = true;
    return operand.tensor->pending;
  }
  auto constant = std::make_shared<Expression>();
  constant->fn = Fn::constant, constant->value = operand.number, constant->shape = {1};
  return constant;
}

void add_leaf(const Tensor* leaf, std::vector<const Tensor*>& leaves) {
  if (std::find(leaves.begin(), leaves.end(), leaf) == leaves.end()) leaves.push_back(leaf);
}

// How many nodes an expression has with those that are there already, each counted once.
int count_nodes(const Expression& e, std::vector<const Expression*>& there) {
  if (std::find(there.begin(), there.end(), &e) != there.end()) return 0;
  there.push_back(&e);
  int count = 1;
  for (const ExpressionPtr& arg : e.args) count += count_nodes(*arg, there);
  return count;
}

// Whether a leaf of the expression lies in this memory.
bool reads(const Expression& expression, const View& memory) {
  return std::any_of(expression.leaves.begin(), expression.leaves.end(),
                     [&](const Tensor* leaf) { return overlap(leaf->view, memory); });
}

TensorPtr pending_tensor(Tape& tape, std::shared_ptr<Expression> expression) {
  auto tensor = std::make_shared<Tensor>();
  tensor->view.dtype = expression->dtype;
  for (const int64_t size : expression->shape) tensor->view.shape[tensor->view.rank++] = size;
  tensor->pending_on = &tape.device(), expression->tape = &tape;
  expression->captured = tape.device().capturing();
  tensor->pending = std::move(expression);
  for (const Tensor* leaf : tensor->pending->leaves) tape.pending().add(tensor, *leaf);
  tape.device().set_pending(true);
  return tensor;
}

// Expressions that a kernel of its own computes as well, whose gradient is nothing but a copy: a + b of one shape, and
// a number's multiple.
bool by_kernel(Tape& tape, const Expression& root, const TensorPtr& y) {
  if (root.sums || root.args.size() != 2 || !(root.dtype == DType::f32 || root.dtype == DType::bf16)) return false;
  const Expression &a = *root.args[0], &b = *root.args[1];
  const auto fits = [&](const Expression& e) {
    return e.leaf && e.shape == root.shape && e.dtype == root.dtype &&
           (!tape.recording() || e.records == e.leaf->needs_grad());
  };
  if (root.fn == Fn::add && fits(a) && fits(b)) return add_into(tape, a.leaf, b.leaf, y), true;
  if (root.fn != Fn::mul || !(fits(a) ? b : a).args.empty() || (fits(a) ? b : a).leaf || !fits(fits(a) ? a : b))
    return false;
  return scale_into(tape, (fits(a) ? a : b).leaf, (fits(a) ? b : a).value, y), true;
}

void settle(const TensorPtr& x) {
  check_fresh(*x);
  const ExpressionPtr root = x->pending;
  Device& device = *x->pending_on;
  if (!device.runtime()) fail("closed", "the runtime of a pending tensor is gone");
  Tape& tape = *root->tape;
  const TensorPtr made = root->made.lock();
  const TensorPtr memory = made ? made : make_tensor(device, root->shape, root->dtype);
  const Tape::Recording recording(tape, root->records);
  x->buffer = memory->buffer, x->view = memory->view, x->pending = nullptr;
  if (device.capturing()) device.captured()->tensors.push_back(x);
  if (!made) {
    try {
      if (!by_kernel(tape, *root, x)) compute(tape, *root, x);
    } catch (...) {
      x->buffer = nullptr, x->view.data = nullptr, x->pending = root;
      throw;
    }
    root->made = x;
  } else if (tape.wants({made})) {
    tape.record({x}, [=, &tape] {
      const TensorPtr g = std::move(x->grad);
      tape.pass(made, g);
    });
  }
}

}  // namespace

TensorPtr pointwise(Tape& tape, Fn fn, const std::vector<Operand>& given) {
  std::vector<Operand> operands = given;
  for (const Operand& operand : operands) {
    if (!operand.tensor) continue;
    check_fresh(*operand.tensor);
    if (is_block(operand.tensor->view.dtype))
      fail("dtype", fn_name(fn), " of ", shape_text(operand.tensor->view), ": decode it first, with :to('f32')");
  }
  auto made = std::make_shared<Expression>();
  made->fn = fn, made->shape = broadcast(fn, operands), made->dtype = result_of(fn, operands);
  if (made->shape.size() > kMaxRank) fail("shape", fn_name(fn), ": more than ", kMaxRank, " dimensions");
  if (is_row_fn(fn)) {
    if (made->shape.back() == 0 && fn != Fn::row_sum)
      fail("shape", fn_name(fn), " of ", text_of(operands[0]), ": there is nothing to reduce");
    made->shape.back() = 1;
  }
  // Large expressions are computed by parts, the largest first.
  const auto fits = [&] {
    made->nodes = 1, made->leaves.clear();
    for (const Operand& operand : operands) {
      const Expression* part = operand.tensor ? operand.tensor->pending.get() : nullptr;
      made->nodes += part ? part->nodes : 1;
      if (!part && operand.tensor) add_leaf(operand.tensor.get(), made->leaves);
      for (size_t i = 0; part && i < part->leaves.size(); ++i) add_leaf(part->leaves[i], made->leaves);
    }
    if (made->nodes > kMostNodes) {  // what it has several times was counted several times
      std::vector<const Expression*> there;
      made->nodes = 1;
      for (const Operand& operand : operands)
        made->nodes += operand.tensor && operand.tensor->pending ? count_nodes(*operand.tensor->pending, there) : 1;
    }
    return made->nodes <= kMostNodes && made->leaves.size() <= kMostInputs;
  };
  while (!fits()) {
    TensorPtr* largest = nullptr;
    for (Operand& operand : operands)
      if (operand.tensor && operand.tensor->pending &&
          (!largest || operand.tensor->pending->nodes > (*largest)->pending->nodes))
        largest = &operand.tensor;
    (*largest)->pending->used = true;
    *largest = apart(tape, *(*largest)->pending);
  }
  for (const Operand& operand : operands) {
    made->args.push_back(expression_of(operand));
    made->records = made->records || made->args.back()->records;
  }
  made->records = made->records && tape.recording() && !is_comparison(fn);
  return pending_tensor(tape, std::move(made));
}

TensorPtr sum(Tape& tape, const TensorPtr& given, const std::vector<int>& dims) {
  check_fresh(*given);
  TensorPtr x = given;
  Shape kept = shape_of(*x), shape = kept;  // of the result; of x
  std::vector<bool> gone(shape.size(), false);
  for (const int d : dims) gone.at(static_cast<size_t>(d)) = true, kept[static_cast<size_t>(d)] = 1;
  while (true) {
    size_t last = shape.size();  // what lies behind is 1
    while (last > 1 && shape[last - 1] == 1) --last;
    size_t end = last;  // of the last run of dimensions that are to go
    while (end > 0 && !(gone[end - 1] && shape[end - 1] != 1)) --end;
    if (end == 0) break;
    if (last < shape.size()) shape.resize(last), x = reshape(tape, settled(x), shape);
    if (end == last) {
      x = pointwise(tape, Fn::row_sum, {{x}});
      shape.back() = 1;
      continue;
    }
    auto made = std::make_shared<Expression>();
    made->sums = true, made->args = {expression_of({x})};
    made->dtype = is_float(made->args[0]->dtype) ? made->args[0]->dtype : DType::f32;
    made->nodes = made->args[0]->nodes, made->leaves = made->args[0]->leaves;
    made->records = made->args[0]->records && tape.recording();
    for (size_t d = end; d > 0 && gone[d - 1]; --d) shape[d - 1] = 1;
    made->shape = shape;
    x = pending_tensor(tape, std::move(made));
  }
  return kept == shape_of(*x) ? x : reshape(tape, settled(x), kept);
}

const TensorPtr& settled(const TensorPtr& x) {
  if (x && x->pending) settle(x);
  return x;
}

bool settle_into(const TensorPtr& pending, const TensorPtr& x) {
  const ExpressionPtr root = pending->pending;
  if (!root || root->records || root->stale || !root->made.expired() || root->dtype != x->view.dtype ||
      &root->tape->device() != &x->device() || x->buffer->home)
    return false;
  const Expression& body = root->sums ? *root->args[0] : *root;
  bool each_for_itself = true;
  for (const Tensor* leaf : root->leaves) {
    if (!overlap(leaf->view, x->view)) continue;
    const bool same =
        leaf->view.data == x->view.data && leaf->view.same_shape(x->view) && leaf->view.dtype == root->dtype;
    each_for_itself = each_for_itself && same && !root->sums && !is_row_fn(body.fn);
  }
  if (!each_for_itself) return false;
  Tape& tape = *root->tape;
  const Tape::Recording off(tape, false);
  pending->pending = nullptr;  // what reads x is computed before x is written to
  try {
    if (!by_kernel(tape, *root, x)) compute(tape, *root, x);
  } catch (...) {
    pending->pending = root;
    throw;
  }
  auto values = std::make_shared<Expression>();
  values->tape = &tape, values->fn = Fn::max, values->args = {leaf_of(x), leaf_of(x)};  // and no gradient
  values->shape = root->shape, values->dtype = root->dtype, values->nodes = 3, values->leaves = {x.get()};
  values->used = true;  // it may have been a temporary
  values->captured = tape.device().capturing();
  pending->pending = std::move(values);
  tape.pending().add(pending, *x);
  tape.device().set_pending(true);
  return true;
}

void settle_pending(Tape& tape) {
  for (const TensorPtr& each : tape.pending().all()) settled(each);
}

void settle_readers(Tape& tape, const View* written) {
  std::vector<TensorPtr> readers;
  for (const TensorPtr& each : written ? tape.pending().near(*written) : tape.pending().all()) {
    if (!each->pending || (written && !reads(*each->pending, *written))) continue;
    if (each->pending->used)
      each->pending->stale = written || each->pending->captured;
    else
      readers.push_back(each);
  }
  for (const TensorPtr& reader : readers) settled(reader);
  if (tape.pending().empty()) tape.device().set_pending(false);
}

}  // namespace qeng
