// Pointwise: a kernel is written for each program, for any sizes, and the driver compiles it.
//
// Without row functions and sums an item has an element. Otherwise a group has a row, or a block of rows that are
// summed, and goes over its columns once for each row function and once for the results, computing anew what it needs:
// items have the same columns each time. Blocks of summed rows leave partial sums, which are added in order.
#include <algorithm>
#include <iterator>

#include "kernels/math/bf16.h"
#include "kernels/opencl/opencl.h"

namespace qeng::opencl {

namespace {

constexpr int64_t kSummedRows = 64;  // of a partial sum

// As in pointwise.cl.
struct Space {
  int64_t shape[4], columns, rows, inner, summed, blocks;
};
struct PlaceStrides {
  int64_t of[4];
};

// In the order of QENG_POINTWISE; a, b and c are the operands.
constexpr const char* kExpressions[] = {
    "",
    "",
    "-$a",
    "fabs($a)",
    "$a > 0 ? 1.0f : $a < 0 ? -1.0f : $a",
    "exp($a)",
    "expm1($a)",
    "log($a)",
    "log1p($a)",
    "sqrt($a)",
    "1.0f / sqrt($a)",
    "sin($a)",
    "cos($a)",
    "tanh($a)",
    "erf($a)",
    "1.0f / (1.0f + exp(-$a))",
    "$a + $b",
    "$a - $b",
    "$a * $b",
    "$a / $b",
    "pow($a, $b)",
    "$a < $b || $a != $a ? $a : $b",
    "$a > $b || $a != $a ? $a : $b",
    "$a < $b ? 1.0f : 0.0f",
    "$a <= $b ? 1.0f : 0.0f",
    "$a == $b ? 1.0f : 0.0f",
    "$a != $b ? 1.0f : 0.0f",
    "$a != 0 ? $b : $c",
};
static_assert(std::size(kExpressions) == static_cast<size_t>(Fn::row_sum));

std::string number(int64_t value) { return std::to_string(value); }
std::string node_name(size_t i) { return "n" + number(static_cast<int64_t>(i)); }

class Writer {
 public:
  Writer(const Pointwise& op, const PointwiseSpace& space) : op_(op), space_(space) {
    for (const PointwiseOutput& out : op.out) needed_.push_back(out.node);
  }

  std::string elements() const {
    return head() + "  FOR_ITEM(i, s.rows * s.columns);\n  const long row = i / s.columns, column = i % s.columns;\n" +
           statements(needed_) + results() + "}\n";
  }
  std::string rows() const {
    std::string text = head() +
                       "  __local float exchange[LANES];\n"
                       "  const long unit = get_group_id(0), block = unit % s.blocks, kept = unit / s.blocks;\n"
                       "  const long begin = block * " +
                       number(kSummedRows) + ", end = min(begin + " + number(kSummedRows) +
                       ", s.summed);\n"
                       "  for (long r = begin; r < end; ++r) {\n"
                       "  const long row = summed_row(&s, kept, r);\n";
    const std::vector<bool> used = needed_nodes(op_.nodes, op_.out);
    for (size_t i = 0; i < op_.nodes.size(); ++i)
      if (used[i] && is_row_fn(op_.nodes[i].fn)) text += row_function(i);
    return text + kOverColumns + statements(needed_) + results() + "  }\n  }\n}\n";
  }

 private:
  static constexpr const char* kOverColumns =
      "  for (long column = get_local_id(0); column < s.columns; column += LANES) {\n";

  std::string head() const {
    std::string text = "__kernel void pointwise(";
    for (size_t i = 0; i < op_.in.size(); ++i)
      text += "__global const void* in" + number(i) + ", Strides of_in" + number(i) + ", ";
    for (size_t i = 0; i < op_.out.size(); ++i)
      text += "__global void* out" + number(i) + ", Strides of_out" + number(i) + ", __global float* partial" +
              number(i) + ", ";
    return text + "Space s) {\n";
  }

  std::string place(const PointwiseSpace::Place& of, const std::string& strides) const {
    return of.dense ? "row * s.columns + column" : "place(" + strides + ", &s, row, column)";
  }

  // The nodes that `wanted` need, in order; row functions are there already.
  std::string statements(const std::vector<uint16_t>& wanted) const {
    std::vector<bool> needs(op_.nodes.size(), false);
    for (const uint16_t node : wanted) needs[node] = true;
    for (size_t i = needs.size(); i-- > 0;)
      if (needs[i] && !is_row_fn(op_.nodes[i].fn))
        each_operand(op_.nodes[i], [&](uint16_t operand) { needs[operand] = true; });
    std::string text;
    for (size_t i = 0; i < needs.size(); ++i)
      if (needs[i] && !is_row_fn(op_.nodes[i].fn))
        text += "  const float " + node_name(i) + " = " + expression(op_.nodes[i]) + ";\n";
    return text;
  }

  std::string expression(const PointwiseNode& node) const {
    if (node.fn == Fn::constant) return "as_float(" + number(bits_of(node.value)) + "u)";
    if (node.fn == Fn::input)
      return "load(" + type_of(op_.in[node.a]) + ", in" + number(node.a) + ", " +
             place(space_.in[node.a], "of_in" + number(node.a)) + ")";
    std::string text;
    for (const char* at = kExpressions[static_cast<int>(node.fn)]; *at; ++at) {
      if (*at != '$') {
        text += *at;
        continue;
      }
      ++at;
      text += node_name(*at == 'a' ? node.a : *at == 'b' ? node.b : node.c);
    }
    return text;
  }

  std::string row_function(size_t i) const {
    const PointwiseNode& node = op_.nodes[i];
    const bool sum = node.fn == Fn::row_sum, most = node.fn == Fn::row_max;
    const std::string all = "all" + number(i), each = node_name(node.a);
    const std::string name = sum ? "sum" : most ? "max" : "min";
    return "  float " + all + " = " +
           (sum    ? "0"
            : most ? "-INFINITY"
                   : "INFINITY") +
           ";\n" + kOverColumns + statements({node.a}) + "  " + all + " = " +
           (sum ? all + " + " + each
                : each + (most ? " > " : " < ") + all + " || " + each + " != " + each + " ? " + each + " : " + all) +
           ";\n  }\n  const float " + node_name(i) + " = " + name + "_of_lanes(" + all + ", exchange);\n";
  }

  std::string results() const {
    std::string text;
    for (size_t i = 0; i < op_.out.size(); ++i) {
      const PointwiseOutput& out = op_.out[i];
      const std::string value = node_name(out.node), view = "out" + number(i), type = type_of(out.view);
      if (space_.is_sum[i]) {
        const std::string to = "partial" + number(i) + "[unit * s.columns + column]";
        text += "  " + to + " = r == begin ? " + value + " : " + to + " + " + value + ";\n";
        continue;
      }
      const std::string at = place(space_.out[i], "of_" + view);
      text += std::string("  ") + (space_.is_row[i] ? "if (column == 0) " : "") + "store(" + type + ", " + view + ", " +
              at + ", " + (out.acc ? "load(" + type + ", " + view + ", " + at + ") + " : "") + value + ");\n";
    }
    return text;
  }

  const Pointwise& op_;
  const PointwiseSpace& space_;
  std::vector<uint16_t> needed_;
};

PlaceStrides strides_of(const PointwiseSpace::Place& place) {
  PlaceStrides strides{};
  std::copy(std::begin(place.stride), std::end(place.stride), strides.of);
  return strides;
}

}  // namespace

void run(const Pointwise& op, Context& context) {
  const PointwiseSpace space = space_of(op);
  const bool sums = space.sum_end > space.sum_begin, by_rows = sums || space.reduces;
  Space s{{}, space.columns(), space.rows(), 1, 1, 1};
  std::copy(space.shape, space.shape + space.rank, s.shape);
  if (sums) {
    for (int d = space.sum_begin; d < space.sum_end; ++d) s.summed *= space.shape[d];
    for (int d = space.sum_end; d + 1 < space.rank; ++d) s.inner *= space.shape[d];
    s.blocks = ceil_div(s.summed, kSummedRows);
  }
  const int64_t kept = s.summed ? s.rows / s.summed : 0;
  const Writer writer(op, space);
  const Definitions rank = {{"RANK", number(space.rank)}};
  const cl_kernel kernel =
      context.programs->kernel("pointwise.cl", "pointwise", rank, by_rows ? writer.rows() : writer.elements());
  cl_uint index = 0;
  const auto argument = [&](const auto& value) { set_argument(context, kernel, index++, value); };
  for (size_t i = 0; i < op.in.size(); ++i) argument(op.in[i]), argument(strides_of(space.in[i]));
  std::vector<float*> partial(op.out.size());
  for (size_t i = 0; i < op.out.size(); ++i) {
    if (space.is_sum[i]) partial[i] = context.scratch.take<float>(kept * s.blocks * s.columns);
    argument(op.out[i].view), argument(strides_of(space.out[i])), argument(partial[i]);
  }
  argument(s);
  enqueue(context, kernel, by_rows ? groups(kept * s.blocks) : items(s.rows * s.columns));
  for (size_t i = 0; i < op.out.size(); ++i) {
    if (!space.is_sum[i]) continue;
    const View& y = op.out[i].view;
    launch(context, context.programs->kernel("pointwise.cl", "add_partial", {{"RANK", "1"}, {"Y", type_of(y)}}),
           items(y.elements()), partial[i], y, s.blocks, s.columns, int{op.out[i].acc}, y.elements());
  }
}

}  // namespace qeng::opencl
