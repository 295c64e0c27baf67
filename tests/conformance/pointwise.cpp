// Pointwise: random programs over spaces of one to four dimensions.
#include <algorithm>
#include <cmath>

#include "tests/conformance/table.h"

namespace qeng::conformance {
namespace {

// Draws nodes whose values stay where functions are tame: each has a bound of its size, and a comparison is of exact
// values alone, so that no rounding decides it.
class Program {
 public:
  Program(Draw& draw, Pointwise& op) : draw_(draw), op_(op) {}

  uint16_t add(Fn fn, uint16_t a = 0, uint16_t b = 0, uint16_t c = 0, float value = 0) {
    op_.nodes.push_back({fn, a, b, c, value});
    return static_cast<uint16_t>(op_.nodes.size() - 1);
  }
  uint16_t input(const View& view) {
    op_.in.push_back(view);
    exact_.push_back(add(Fn::input, static_cast<uint16_t>(op_.in.size() - 1)));
    return exact_.back();
  }
  uint16_t constant(float value) { return add(Fn::constant, 0, 0, 0, value); }
  uint16_t any() { return static_cast<uint16_t>(draw_.integer(0, static_cast<int64_t>(op_.nodes.size()) - 1)); }
  uint16_t exact() { return exact_[static_cast<size_t>(draw_.integer(0, static_cast<int64_t>(exact_.size()) - 1))]; }

  // A node's values brought to [-4, 4].
  uint16_t tame(uint16_t a) { return add(Fn::max, add(Fn::min, a, constant(4)), constant(-4)); }
  uint16_t positive(uint16_t a) { return add(Fn::add, add(Fn::abs, tame(a)), constant(0.5f)); }

  void step(bool rows) {
    const int kinds = static_cast<int>(Fn::row_min) + 1;
    const Fn fn =
        static_cast<Fn>(draw_.integer(static_cast<int>(Fn::neg), rows ? kinds - 1 : static_cast<int>(Fn::where)));
    switch (fn) {
      case Fn::log:
      case Fn::log1p:
      case Fn::sqrt:
      case Fn::rsqrt: add(fn, positive(any())); return;
      case Fn::div: add(fn, any(), positive(any())); return;
      case Fn::pow: add(fn, positive(any()), draw_.flip() ? constant(3) : tame(any())); return;
      case Fn::sign: add(fn, exact()); return;
      case Fn::less:
      case Fn::less_equal:
      case Fn::equal:
      case Fn::not_equal: exact_.push_back(add(fn, exact(), draw_.flip() ? exact() : constant(0))); return;
      case Fn::where: add(fn, exact(), any(), any()); return;
      default: break;
    }
    if (operands_of(fn) == 2)
      add(fn, any(), any());
    else
      add(fn, is_row_fn(fn) && fn != Fn::row_sum ? any() : tame(any()));
  }

 private:
  Draw& draw_;
  Pointwise& op_;
  std::vector<uint16_t> exact_;  // nodes of inputs, and of comparisons of them
};

// The space, or with dimensions of one element where `one` says so.
View shaped(Draw& draw, const View& space, DType dtype, const std::vector<bool>& one, bool poisoned) {
  int64_t shape[kMaxRank];
  for (int d = 0; d < kMaxRank; ++d) shape[d] = d >= space.rank || one[static_cast<size_t>(d)] ? 1 : space.shape[d];
  const auto make = [&](std::initializer_list<int64_t> dims) {
    return poisoned ? draw.empty(dtype, dims)
                    : draw.tensor(dtype, dims, dtype == DType::u8 ? 0.7 : 1.0, dtype == DType::u8 ? 0.4 : 0);
  };
  switch (space.rank) {
    case 1: return make({shape[0]});
    case 2: return make({shape[0], shape[1]});
    case 3: return make({shape[0], shape[1], shape[2]});
    default: return make({shape[0], shape[1], shape[2], shape[3]});
  }
}

bool same_in_row(const Pointwise& op, uint16_t i) {
  const PointwiseNode& node = op.nodes[i];
  if (node.fn == Fn::input) return op.in[node.a].columns() == 1;
  const int operands = operands_of(node.fn);
  return is_row_fn(node.fn) || ((operands < 1 || same_in_row(op, node.a)) &&
                                (operands < 2 || same_in_row(op, node.b)) && (operands < 3 || same_in_row(op, node.c)));
}

Op pointwise(Draw& draw) {
  draw.sometimes_misalign();
  Pointwise op;
  op.space.rank = static_cast<int>(draw.integer(1, 4));
  const bool long_rows = draw.integer(0, 2) == 0;  // others lie end to end on the CPU
  for (int d = 0; d < op.space.rank; ++d)
    op.space.shape[d] = draw.size(d == op.space.rank - 1 ? (long_rows ? 1500 : 60) : 10);
  const auto dtype = [&] {
    return draw.pick({DType::f32, DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8});
  };
  Program program(draw, op);
  for (int64_t i = draw.integer(1, 4); i > 0; --i) {
    std::vector<bool> one(kMaxRank);
    for (size_t d = 0; d < one.size(); ++d) one[d] = draw.integer(0, 3) == 0;
    program.input(shaped(draw, op.space, dtype(), one, false));
  }
  const bool rows = draw.flip();
  for (int64_t i = draw.integer(1, 10); i > 0; --i) program.step(rows);

  const int last = op.space.rank - 1;
  const int summed = last > 0 && draw.flip() ? static_cast<int>(draw.integer(0, last - 1)) : -1;  // from this dimension
  const int summed_end = summed < 0 ? -1 : static_cast<int>(draw.integer(summed, last - 1));
  for (int64_t i = draw.integer(1, 3); i > 0; --i) {
    PointwiseOutput out;
    out.node = program.tame(program.any());
    std::vector<bool> one(kMaxRank, false);
    DType type = draw.pick({DType::f32, DType::f32, DType::bf16, DType::f16});
    const bool row = draw.flip() && same_in_row(op, out.node);
    if (row)
      one[static_cast<size_t>(last)] = true;
    else if (summed >= 0 && draw.flip())
      for (int d = summed; d <= summed_end; ++d) one[static_cast<size_t>(d)] = true;
    out.acc = draw.integer(0, 2) == 0;
    if (!out.acc && draw.integer(0, 5) == 0 && std::find(one.begin(), one.end(), true) == one.end())
      type = DType::u8, out.node = program.add(Fn::less, program.exact(), program.constant(0.25f));
    out.view = shaped(draw, op.space, type, one, !out.acc);
    for (const View& in : op.in)  // in place
      if (!out.acc && i == 1 && in.same_shape(out.view) && in.elements() == op.space.elements() &&
          in.dtype == out.view.dtype && draw.flip()) {
        bool read_only = true;
        for (const PointwiseOutput& other : op.out) read_only = read_only && other.view.data != in.data;
        if (read_only) out.view = in;
        break;
      }
    op.out.push_back(out);
  }
  return op;
}

}  // namespace

template <class T>
void reference(const Pointwise& op, Sheet<T>& sheet) {
  using std::cos, std::erf, std::exp, std::expm1, std::fabs, std::fmax, std::fmin, std::log, std::log1p, std::pow,
      std::sin, std::sqrt, std::tanh;
  const View& space = op.space;
  const int64_t n = space.elements(), columns = space.columns();
  const auto index_in = [&](const View& view, int64_t at) {
    int64_t index = 0, stride = 1;
    for (int d = space.rank; d-- > 0; at /= space.shape[d]) {
      if (view.shape[d] != 1) index += at % space.shape[d] * stride;
      stride *= view.shape[d];
    }
    return index;
  };
  std::vector<std::vector<T>> nodes;
  for (const PointwiseNode& node : op.nodes) {
    std::vector<T> values(static_cast<size_t>(n));
    const Array<T> in = node.fn == Fn::input ? sheet.in(op.in[node.a]) : Array<T>();
    for (int64_t i = 0; i < n; ++i) {
      const size_t e = static_cast<size_t>(i);
      const int operands = operands_of(node.fn);
      const T a = operands > 0 ? nodes[node.a][e] : T(0), b = operands > 1 ? nodes[node.b][e] : T(0),
              c = operands > 2 ? nodes[node.c][e] : T(0);
      const double x = value_of(a), y = value_of(b);
      const auto over_row = [&](auto f) {
        const std::vector<T>& row = nodes[node.a];
        const size_t first = static_cast<size_t>(i / columns * columns);
        T all = row[first];
        for (size_t j = 1; j < static_cast<size_t>(columns); ++j) all = f(all, row[first + j]);
        return all;
      };
      values[e] = [&]() -> T {
        switch (node.fn) {
          case Fn::input: return in[index_in(op.in[node.a], i)];
          case Fn::constant: return T(static_cast<double>(node.value));
          case Fn::neg: return -a;
          case Fn::abs: return fabs(a);
          case Fn::sign: return T(x > 0 ? 1.0 : x < 0 ? -1.0 : 0.0);
          case Fn::exp: return exp(a);
          case Fn::expm1: return expm1(a);
          case Fn::log: return log(a);
          case Fn::log1p: return log1p(a);
          case Fn::sqrt: return sqrt(a);
          case Fn::rsqrt: return T(1) / sqrt(a);
          case Fn::sin: return sin(a);
          case Fn::cos: return cos(a);
          case Fn::tanh: return tanh(a);
          case Fn::erf: return erf(a);
          case Fn::sigmoid: return T(1) / (T(1) + exp(-a));
          case Fn::add: return a + b;
          case Fn::sub: return a - b;
          case Fn::mul: return a * b;
          case Fn::div: return a / b;
          case Fn::pow: return pow(a, b);
          case Fn::min: return fmin(a, b);
          case Fn::max: return fmax(a, b);
          case Fn::less: return T(x < y ? 1.0 : 0.0);
          case Fn::less_equal: return T(x <= y ? 1.0 : 0.0);
          case Fn::equal: return T(x == y ? 1.0 : 0.0);
          case Fn::not_equal: return T(x != y ? 1.0 : 0.0);
          case Fn::where: return x != 0 ? b : c;
          case Fn::row_sum: return over_row([](T p, T q) { return p + q; });
          case Fn::row_max: return over_row([](T p, T q) { return fmax(p, q); });
          case Fn::row_min: return over_row([](T p, T q) { return fmin(p, q); });
        }
        return T(0);
      }();
    }
    nodes.push_back(std::move(values));
  }
  for (const PointwiseOutput& out : op.out) {
    Array<T> total(out.view);
    std::vector<bool> seen(total.values.size(), false);
    const bool row = out.view.columns() == 1;
    for (int64_t i = 0; i < n; ++i) {
      if (row && i % columns != 0) continue;
      const int64_t at = index_in(out.view, i);
      const T value = nodes[out.node][static_cast<size_t>(i)];
      total[at] = seen[static_cast<size_t>(at)] ? total[at] + value : value;
      seen[static_cast<size_t>(at)] = true;
    }
    const bool is_mask = out.view.dtype == DType::u8;
    Array<T>& y = sheet.update(out.view, out.acc, is_mask ? Sheet<T>::Check::exact : Sheet<T>::Check::bounded);
    for (int64_t i = 0; i < y.size(); ++i) y[i] = out.acc ? y[i] + total[i] : total[i];
  }
}

QENG_CONFORMANCE(Pointwise, .make = pointwise, .free_shape = {"in", "out"}, .free_dtype = {"in", "out"});

}  // namespace qeng::conformance
