#include "engine/autograd/expression_program.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace qeng {
namespace {

Shape shape_of(const View& view) { return Shape(view.shape, view.shape + view.rank); }
int64_t elements_of(const Shape& shape) {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return n;
}

// The view with as many dimensions as the space, the first ones 1.
View padded(const View& view, const View& space) {
  View result = view;
  result.rank = space.rank;
  for (int d = 0; d < space.rank; ++d) {
    const int from = d - (space.rank - view.rank);
    result.shape[d] = from < 0 ? 1 : view.shape[from];
  }
  return result;
}

// An expression as a program over its space, the shape of `root`.
class Compiler {
 public:
  Compiler(Tape& tape, const Shape& space) : tape_(tape), space_(space) {}

  PointwiseNodes program;
  std::vector<TensorPtr> leaves;  // input i

  uint16_t add(const Expression& e) {
    if (const auto found = done_.find(&e); found != done_.end()) return found->second;
    uint16_t node = make(e);
    // Gradients reach what it is made of by other ways alone: it was made without recording, or of a frozen leaf.
    const bool cuts = !e.records && tape_.recording() &&
                      (e.leaf ? e.leaf->needs_grad()
                              : std::any_of(e.args.begin(), e.args.end(), [](auto& arg) { return arg->records; }));
    if (cuts) stopped_.push_back(node = program.copy(node));
    return done_[&e] = node;
  }

  uint16_t add_root(const Expression& e) { return e.sums ? input(apart(tape_, e)) : make(e); }

  // Nodes that depend on a leaf with a gradient by nodes that record.
  std::vector<bool> wanted() const {
    std::vector<bool> wanted(program.nodes.size(), false);
    for (size_t i = 0; i < wanted.size(); ++i) {
      const PointwiseNode& node = program.nodes[i];
      const int operands = operands_of(node.fn);
      wanted[i] = node.fn == Fn::input ? leaves[node.a]->needs_grad()
                                       : (operands > 0 && wanted[node.a]) || (operands > 1 && wanted[node.b]) ||
                                             (operands > 2 && wanted[node.c]);
      const bool flat = is_comparison(node.fn) || node.fn == Fn::sign;  // no gradient, wherever there is one
      if (flat || std::find(stopped_.begin(), stopped_.end(), i) != stopped_.end()) wanted[i] = false;
    }
    return wanted;
  }

 private:
  uint16_t input(const TensorPtr& leaf) {
    const auto place = static_cast<size_t>(std::find(leaves.begin(), leaves.end(), leaf) - leaves.begin());
    if (place == leaves.size()) leaves.push_back(leaf);
    return program.input(static_cast<uint16_t>(place));
  }

  // Whether it has the values of a row function of this space, with nothing computed beside that.
  bool follows_rows(const Expression& e) {
    if (is_row_fn(e.fn)) return e.args[0]->shape == space_;
    if (const auto found = follows_.find(&e); found != follows_.end()) return found->second;
    return follows_[&e] =
               std::any_of(e.args.begin(), e.args.end(), [this](const auto& arg) { return follows_rows(*arg); });
  }

  uint16_t make(const Expression& e) {
    if (e.leaf) return input(e.leaf);
    if (e.fn == Fn::constant) return program.constant(e.value);
    if (e.sums || (is_row_fn(e.fn) && e.args[0]->shape != space_)) return input(apart(tape_, e));
    if (!is_row_fn(e.fn) && elements_of(e.shape) * 4 <= elements_of(space_) && !follows_rows(e))
      return input(apart(tape_, e));
    uint16_t operands[3] = {};
    for (size_t i = 0; i < e.args.size(); ++i) operands[i] = add(*e.args[i]);
    return program.add(e.fn, operands[0], operands[1], operands[2]);
  }

  Tape& tape_;
  const Shape& space_;
  std::map<const Expression*, uint16_t> done_;
  std::map<const Expression*, bool> follows_;
  std::vector<uint16_t> stopped_;
};

// to (+)= from, summed over the dimensions that `to` has 1 of; both of one rank.
void sum_to(Device& device, const View& from, const View& to, bool acc) {
  int last = from.rank - 1, end = 0;  // the last dimension that is not 1; the end of the last run that is summed over
  while (last > 0 && from.shape[last] == 1) --last;
  for (int d = 0; d <= last; ++d)
    if (to.shape[d] != from.shape[d]) end = d + 1;
  int begin = std::max(0, end - 1);
  while (begin > 0 && to.shape[begin - 1] != from.shape[begin - 1] && end <= last) --begin;
  View target = from;  // after this run
  for (int d = begin; d < end; ++d) target.shape[d] = 1;
  const bool done = target.same_shape(to);
  TensorPtr between;
  if (done) {
    target = to;
  } else {
    between = make_tensor(device, shape_of(target), DType::f32);
    target = between->view;
  }
  Pointwise op;
  op.space = from, op.space.data = nullptr, op.space.rank = last + 1;
  op.nodes = {{Fn::input}};
  if (end == last + 1) op.nodes.push_back({Fn::row_sum, 0});
  View in = from, out = target;
  in.rank = out.rank = last + 1;
  op.in = {in}, op.out = {{out, static_cast<uint16_t>(op.nodes.size() - 1), done && acc}};
  device.run(op);
  if (!done) sum_to(device, target, to, acc);
}

// Whether an output may have this shape: all of the space, a row's first element, or sums over a run of dimensions.
bool is_direct(const View& out, const View& space, bool of_row) {
  int first = -1, last = -1, missing = 0;
  for (int d = 0; d < space.rank; ++d)
    if (out.shape[d] != space.shape[d]) first = first < 0 ? d : first, last = d, ++missing;
  if (missing == 0) return true;
  if (last == space.rank - 1) return missing == 1 && of_row;
  return missing == last - first + 1;
}

}  // namespace

TensorPtr apart(Tape& tape, const Expression& e) {
  if (TensorPtr made = e.made.lock()) return made;
  if (TensorPtr inner = e.inner.lock()) return inner;
  const Tape::Recording recording(tape, e.records);
  const TensorPtr inner = make_tensor(tape.device(), e.shape, e.dtype == DType::u8 ? DType::u8 : DType::f32);
  compute(tape, e, inner);
  e.inner = inner;
  return inner;
}

void compute(Tape& tape, const Expression& root, const TensorPtr& y) {
  Device& device = tape.device();
  const Tape::Frozen thawed(tape, nullptr);  // what was frozen when a leaf was read is in the expression
  const Expression& body = root.sums ? *root.args[0] : root;
  // A row function at the root is of its operand's space.
  const Shape space_shape = is_row_fn(body.fn) && !body.leaf && !body.sums ? body.args[0]->shape : body.shape;
  if (elements_of(space_shape) == 0) {  // sums over nothing
    if (y->view.elements()) device.run(Fill{y->view, 0});
    if (root.records && tape.recording()) tape.record({y}, [] {});  // whose gradients are 0
    return;
  }
  Compiler compiler(tape, space_shape);
  const uint16_t out = compiler.add_root(body);
  Pointwise op;
  for (const int64_t size : space_shape) op.space.shape[op.space.rank++] = size;
  op.nodes = compiler.program.nodes;
  for (const TensorPtr& leaf : compiler.leaves) op.in.push_back(padded(leaf->view, op.space));
  const std::vector<bool> of_row = same_in_rows(op.nodes, op.in);
  op.out = {{padded(y->view, op.space), out}};
  device.run(op);

  const std::vector<bool> wanted = compiler.wanted();
  if (!tape.recording() || !wanted[out]) return;
  tape.record({y}, [=, &tape, &device, space = op.space, program = compiler.program, leaves = compiler.leaves] {
    PointwiseNodes nodes = program;
    Pointwise grad;
    grad.space = space;
    for (const TensorPtr& leaf : leaves) grad.in.push_back(padded(leaf->view, space));
    grad.in.push_back(padded(y->grad->view, space));
    const uint16_t dy = nodes.input(static_cast<uint16_t>(leaves.size()));
    const std::vector<int> gradients = append_gradients(nodes, out, dy, wanted, of_row);
    grad.nodes = nodes.nodes;
    const std::vector<bool> rows = same_in_rows(grad.nodes, grad.in);
    struct Later {
      TensorPtr whole;
      View to;
      bool acc;
    };
    std::vector<Later> later;
    int sums = -1;  // the output whose run of dimensions is summed over: another one has to wait
    for (size_t i = 0; i < program.nodes.size(); ++i) {
      if (program.nodes[i].fn != Fn::input || gradients[i] < 0) continue;
      const TensorPtr& leaf = leaves[program.nodes[i].a];
      if (!leaf->needs_grad()) continue;
      const Tape::Target target = tape.gradient_of(leaf);
      const View to = padded(target.view, space);
      const uint16_t node = static_cast<uint16_t>(gradients[i]);
      const bool is_sum = to.columns() == space.columns() && to.elements() != space.elements();
      bool direct = is_direct(to, space, rows[node]);
      if (direct && is_sum && sums >= 0) direct = to.same_shape(grad.out[static_cast<size_t>(sums)].view);
      if (direct) {
        if (is_sum) sums = static_cast<int>(grad.out.size());
        grad.out.push_back({to, node, target.acc});
        continue;
      }
      // Rows are summed already where the leaf has one element a row.
      View whole = space;
      if (to.columns() == 1) whole.shape[whole.rank - 1] = 1;
      later.push_back({make_tensor(device, shape_of(whole), DType::f32), to, target.acc});
      grad.out.push_back({later.back().whole->view, node, false});
    }
    if (grad.out.empty()) return;  // all of them are frozen
    device.run(grad);
    for (const Later& each : later) sum_to(device, each.whole->view, each.to, each.acc);
  });
}

// ---------------------------------------------------------------- nodes

uint16_t PointwiseNodes::find_or_add(const PointwiseNode& node) {
  for (size_t i = 0; i < nodes.size(); ++i) {
    const PointwiseNode& other = nodes[i];
    if (other.fn == node.fn && other.a == node.a && other.b == node.b && other.c == node.c &&
        std::memcmp(&other.value, &node.value, sizeof node.value) == 0)
      return static_cast<uint16_t>(i);
  }
  nodes.push_back(node);
  return static_cast<uint16_t>(nodes.size() - 1);
}
uint16_t PointwiseNodes::copy(uint16_t node) {
  nodes.push_back({Fn::max, node, node, 0, 1});  // no other node of max has a value
  return static_cast<uint16_t>(nodes.size() - 1);
}
uint16_t PointwiseNodes::constant(float value) { return find_or_add({Fn::constant, 0, 0, 0, value}); }
uint16_t PointwiseNodes::input(uint16_t index) { return find_or_add({Fn::input, index}); }

uint16_t PointwiseNodes::add(Fn fn, uint16_t a, uint16_t b, uint16_t c) {
  const auto number = [this](uint16_t node) { return nodes[node].fn == Fn::constant; };
  const bool both = operands_of(fn) == 2 && number(a) && number(b);
  const float x = nodes[a].value, y = nodes[b].value;
  switch (fn) {
    case Fn::add:
      if (is(a, 0)) return b;
      if (is(b, 0)) return a;
      if (both) return constant(x + y);
      break;
    case Fn::sub:
      if (is(b, 0)) return a;
      if (both) return constant(x - y);
      break;
    case Fn::mul:
      if (is(a, 1)) return b;
      if (is(b, 1)) return a;
      if (both) return constant(x * y);
      break;
    case Fn::div:
      if (is(b, 1)) return a;
      if (both) return constant(x / y);
      break;
    case Fn::pow:
      if (is(b, 1)) return a;
      if (is(b, 2)) return add(Fn::mul, a, a);
      if (is(b, 3)) return add(Fn::mul, a, add(Fn::mul, a, a));
      if (is(b, 0.5f)) return add(Fn::sqrt, a);
      if (is(b, -0.5f)) return add(Fn::rsqrt, a);
      if (is(b, -1)) return add(Fn::div, constant(1), a);
      break;
    case Fn::neg:
      if (number(a)) return constant(-x);
      break;
    default: break;
  }
  return find_or_add({fn, a, b, c});
}

std::vector<int> append_gradients(PointwiseNodes& p, uint16_t out, uint16_t gradient, const std::vector<bool>& wanted,
                                  const std::vector<bool>& of_row) {
  std::vector<int> found(wanted.size(), -1);
  found[out] = gradient;
  const auto one = [&] { return p.constant(1); };
  const auto times = [&](uint16_t a, uint16_t b) { return p.add(Fn::mul, a, b); };
  for (size_t i = wanted.size(); i-- > 0;) {
    if (found[i] < 0 || !wanted[i]) continue;
    const PointwiseNode node = p.nodes[i];
    const uint16_t g = static_cast<uint16_t>(found[i]), y = static_cast<uint16_t>(i), a = node.a, b = node.b;
    const auto give = [&](uint16_t to, auto make) {
      if (!wanted[to]) return;
      uint16_t part = make();
      if (of_row[to] && !of_row[i]) part = p.add(Fn::row_sum, part);
      found[to] = found[to] < 0 ? part : p.add(Fn::add, static_cast<uint16_t>(found[to]), part);
    };
    const auto gives = [&](auto make) { give(a, make); };
    switch (node.fn) {
      case Fn::input:
      case Fn::constant:
      case Fn::sign:
      case Fn::less:
      case Fn::less_equal:
      case Fn::equal:
      case Fn::not_equal: break;
      case Fn::neg: gives([&] { return p.add(Fn::neg, g); }); break;
      case Fn::abs: gives([&] { return times(g, p.add(Fn::sign, a)); }); break;
      case Fn::exp: gives([&] { return times(g, y); }); break;
      case Fn::expm1: gives([&] { return times(g, p.add(Fn::add, y, one())); }); break;
      case Fn::log: gives([&] { return p.add(Fn::div, g, a); }); break;
      case Fn::log1p: gives([&] { return p.add(Fn::div, g, p.add(Fn::add, a, one())); }); break;
      case Fn::sqrt: gives([&] { return p.add(Fn::div, times(g, p.constant(0.5f)), y); }); break;
      case Fn::rsqrt: gives([&] { return times(times(g, p.constant(-0.5f)), times(y, times(y, y))); }); break;
      case Fn::sin: gives([&] { return times(g, p.add(Fn::cos, a)); }); break;
      case Fn::cos: gives([&] { return p.add(Fn::neg, times(g, p.add(Fn::sin, a))); }); break;
      case Fn::tanh: gives([&] { return times(g, p.add(Fn::sub, one(), times(y, y))); }); break;
      case Fn::erf:
        gives([&] { return times(g, times(p.constant(1.1283791671f), p.add(Fn::exp, p.add(Fn::neg, times(a, a))))); });
        break;
      case Fn::sigmoid: gives([&] { return times(g, times(y, p.add(Fn::sub, one(), y))); }); break;
      case Fn::add: give(a, [&] { return g; }), give(b, [&] { return g; }); break;
      case Fn::sub: give(a, [&] { return g; }), give(b, [&] { return p.add(Fn::neg, g); }); break;
      case Fn::mul: give(a, [&] { return times(g, b); }), give(b, [&] { return times(g, a); }); break;
      case Fn::div:
        give(a, [&] { return p.add(Fn::div, g, b); });
        give(b, [&] { return p.add(Fn::neg, p.add(Fn::div, times(g, y), b)); });
        break;
      case Fn::pow:
        give(a, [&] {  // 0 where the exponent is 0
          const uint16_t slope = times(b, p.add(Fn::pow, a, p.add(Fn::sub, b, one())));
          const bool never = p.nodes[b].fn == Fn::constant && p.nodes[b].value != 0;
          return times(g, never ? slope : p.add(Fn::where, b, slope, p.constant(0)));
        });
        give(b, [&] {  // 0 where the base is 0
          const uint16_t slope = times(y, p.add(Fn::log, a));
          return times(g, p.add(Fn::where, a, slope, p.constant(0)));
        });
        break;
      case Fn::min:
      case Fn::max: {  // ties share
        const uint16_t first = p.add(Fn::less, node.fn == Fn::max ? b : a, node.fn == Fn::max ? a : b);
        const uint16_t share = p.add(Fn::add, first, times(p.constant(0.5f), p.add(Fn::equal, a, b)));
        give(a, [&] { return times(g, share); });
        give(b, [&] { return times(g, p.add(Fn::sub, one(), share)); });
        break;
      }
      case Fn::where:
        give(b, [&] { return p.add(Fn::where, a, g, p.constant(0)); });
        give(node.c, [&] { return p.add(Fn::where, a, p.constant(0), g); });
        break;
      case Fn::row_sum: gives([&] { return g; }); break;
      case Fn::row_max:
      case Fn::row_min:  // ties share
        gives([&] {
          const uint16_t best = p.add(Fn::equal, a, y);
          return p.add(Fn::div, times(g, best), p.add(Fn::row_sum, best));
        });
        break;
    }
  }
  return found;
}

}  // namespace qeng
