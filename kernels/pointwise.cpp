#include "kernels/pointwise.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/check_shapes.h"
#include "kernels/view_text.h"

namespace qeng {

const char* fn_name(Fn fn) {
  constexpr const char* kNames[] = {
#define QENG_NAME(name, operands) #name,
      QENG_POINTWISE(QENG_NAME)
#undef QENG_NAME
  };
  return kNames[static_cast<int>(fn)];
}

namespace {

// Whether the view has one element along a dimension that the space has more of.
bool lacks(const View& view, const View& space, int d) { return view.shape[d] == 1 && space.shape[d] != 1; }

// The nodes that outputs need: the inputs, then the others in order, each in a register that nobody reads any more.
void assign_registers(const Pointwise& op, PointwisePlan& plan) {
  const size_t count = op.nodes.size();
  const std::vector<bool> needed = needed_nodes(op.nodes, op.out);
  std::vector<size_t> last(count, 0);  // who reads it last; count: it stays
  for (size_t i = 0; i < count; ++i)
    if (needed[i]) each_operand(op.nodes[i], [&](uint16_t operand) { last[operand] = i; });
  for (const PointwiseOutput& out : op.out) last[out.node] = count;
  std::vector<uint8_t> place(count, 0), spare;
  const auto take = [&] {
    if (spare.empty()) {
      if (plan.registers == 255) fail("unsupported", op.name, ": the program needs more than 255 registers");
      return static_cast<uint8_t>(plan.registers++);
    }
    const uint8_t last_freed = spare.back();
    spare.pop_back();
    return last_freed;
  };
  for (size_t i = 0; i < count; ++i)
    if (needed[i] && op.nodes[i].fn == Fn::input) {
      place[i] = take();
      plan.loads.push_back({static_cast<uint8_t>(op.nodes[i].a), place[i]});
    }
  for (size_t i = 0; i < count; ++i) {
    const PointwiseNode& node = op.nodes[i];
    if (!needed[i] || node.fn == Fn::input) continue;
    // What nobody reads after this node is free for it: functions write where they have read.
    each_operand(node, [&](uint16_t operand) {
      if (last[operand] == i) spare.push_back(place[operand]), last[operand] = count;
    });
    place[i] = take();
    plan.steps.push_back({node.fn, place[i], place[node.a], place[node.b], place[node.c], node.value});
  }
  for (const PointwiseOutput& out : op.out) plan.results.push_back(place[out.node]);
}

// Joins neighbouring dimensions that each view has both of, or neither; leaves out those of one element.
void collapse(const Pointwise& op, PointwiseSpace& plan) {
  const View& space = op.space;
  const std::vector<bool> needed = needed_nodes(op.nodes, op.out);
  for (size_t i = 0; i < op.nodes.size(); ++i) plan.reduces = plan.reduces || (needed[i] && is_row_fn(op.nodes[i].fn));
  bool keep_last = plan.reduces;  // rows stay rows
  for (const PointwiseOutput& out : op.out)
    for (int d = 0; d + 1 < space.rank; ++d) keep_last = keep_last || lacks(out.view, space, d);
  std::vector<const View*> views;
  for (const View& view : op.in) views.push_back(&view);
  for (const PointwiseOutput& out : op.out) views.push_back(&out.view);
  int group_of[kMaxRank] = {}, groups = 0, before = -1;
  for (int d = 0; d < space.rank; ++d) {
    const bool last = d == space.rank - 1;
    group_of[d] = -1;
    if (space.shape[d] == 1 && !(last && (keep_last || groups == 0))) continue;
    bool joins = before >= 0 && !(last && keep_last);
    for (const View* view : views)
      joins = joins && lacks(*view, space, before < 0 ? d : before) == lacks(*view, space, d);
    if (!joins) plan.shape[groups++] = 1;
    group_of[d] = groups - 1;
    plan.shape[groups - 1] *= space.shape[d];
    before = d;
  }
  plan.rank = groups;
  if (plan.rank == 0) plan.shape[plan.rank++] = space.elements();  // of no dimension
  const auto place_of = [&](const View& view) {
    PointwiseSpace::Place place;
    int64_t stride = 1;
    place.dense = true;
    for (int d = space.rank; d-- > 0;) {
      const bool absent = lacks(view, space, d);
      if (absent) place.dense = false;
      if (group_of[d] >= 0 && place.stride[group_of[d]] == 0 && !absent) place.stride[group_of[d]] = stride;
      stride *= view.shape[d];
    }
    return place;
  };
  for (const View& view : op.in) plan.in.push_back(place_of(view));
  for (const PointwiseOutput& out : op.out) {
    plan.out.push_back(place_of(out.view));
    const bool row = space.rank > 0 && lacks(out.view, space, space.rank - 1);
    bool sum = false;
    for (int d = 0; d + 1 < space.rank; ++d)
      if (lacks(out.view, space, d)) {
        if (!sum && plan.sum_end == 0) plan.sum_begin = group_of[d];
        sum = true;
        plan.sum_end = std::max(plan.sum_end, group_of[d] + 1);
      }
    plan.is_row.push_back(row), plan.is_sum.push_back(sum);
  }
}

}  // namespace

std::vector<bool> needed_nodes(const std::vector<PointwiseNode>& nodes, const std::vector<PointwiseOutput>& out) {
  std::vector<bool> needed(nodes.size(), false);
  for (const PointwiseOutput& each : out) needed[each.node] = true;
  for (size_t i = nodes.size(); i-- > 0;)
    if (needed[i]) each_operand(nodes[i], [&](uint16_t operand) { needed[operand] = true; });
  return needed;
}

std::vector<bool> same_in_rows(const std::vector<PointwiseNode>& nodes, const std::vector<View>& in) {
  std::vector<bool> same;
  for (const PointwiseNode& node : nodes) {
    const int operands = operands_of(node.fn);
    same.push_back(node.fn == Fn::input
                       ? in[node.a].columns() == 1
                       : is_row_fn(node.fn) || ((operands < 1 || same[node.a]) && (operands < 2 || same[node.b]) &&
                                                (operands < 3 || same[node.c])));
  }
  return same;
}

int64_t Pointwise::flops() const {
  int64_t functions = 0;
  for (const PointwiseNode& node : nodes) functions += operands_of(node.fn) > 0;
  return functions * space.elements();
}

void check_shapes(const Pointwise& op) {
  const Check check{op.name};
  const View& space = op.space;
  const auto fits = [&](const char* label, const View& view) {
    bool agrees = view.rank == space.rank;
    for (int d = 0; agrees && d < space.rank; ++d) agrees = view.shape[d] == space.shape[d] || view.shape[d] == 1;
    check.that(agrees, [&] {
      return std::string(label) + " is " + shape_text(view) + ", the space " + shape_text(space) +
             "; dimensions have to agree, or to be 1";
    });
  };
  check.that(op.nodes.size() <= kMostPointwiseNodes && op.in.size() <= kMostPointwiseInputs &&
                 op.out.size() <= kMostPointwiseOutputs && !op.out.empty(),
             [&] {
               return std::to_string(op.nodes.size()) + " nodes, " + std::to_string(op.in.size()) + " inputs and " +
                      std::to_string(op.out.size()) + " outputs; at most " + std::to_string(kMostPointwiseNodes) +
                      ", " + std::to_string(kMostPointwiseInputs) + " and 1 to " +
                      std::to_string(kMostPointwiseOutputs) + " are taken";
             });
  for (const View& view : op.in) {
    check.dtype("in", view, {DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8});
    fits("in", view);
  }
  for (size_t i = 0; i < op.nodes.size(); ++i) {
    const PointwiseNode& node = op.nodes[i];
    const int operands = operands_of(node.fn);
    const bool known = (operands < 1 || node.a < i) && (operands < 2 || node.b < i) && (operands < 3 || node.c < i) &&
                       (node.fn != Fn::input || node.a < op.in.size());
    check.that(known, [&] { return "node " + std::to_string(i) + " takes what is not before it"; });
    check.that(!is_row_fn(node.fn) || space.columns() > 0, "a row of no columns has no value");
  }
  const std::vector<bool> of_row = same_in_rows(op.nodes, op.in);
  int begin = -1, end = -1;  // what outputs are summed over
  for (const PointwiseOutput& out : op.out) {
    check.dtype("out", out.view, {DType::f32, DType::bf16, DType::f16, DType::u8});
    fits("out", out.view);
    check.that(out.node < op.nodes.size(), "an output is of no node");
    int first = -1, last = -1;
    for (int d = 0; d < space.rank; ++d)
      if (lacks(out.view, space, d)) first = first < 0 ? d : first, last = d;
    if (first < 0) continue;
    const auto has_to = [&](bool holds, const char* what) {
      check.that(holds, [&] { return "out is " + shape_text(out.view) + " of " + shape_text(space) + ": " + what; });
    };
    if (last == space.rank - 1) {
      has_to(first == last, "a sum over dimensions has all columns");
      has_to(of_row[out.node], "its node is not the same in all of a row");
      continue;
    }
    for (int d = first; d <= last; ++d)
      has_to(out.view.shape[d] == 1, "dimensions that are summed over lie side by side");
    has_to(begin < 0 || (begin == first && end == last), "all sums are over the same dimensions");
    begin = first, end = last;
  }
}

PointwiseSpace space_of(const Pointwise& op) {
  PointwiseSpace space;
  collapse(op, space);
  return space;
}

PointwisePlan plan_of(const Pointwise& op) {
  PointwisePlan plan;
  assign_registers(op, plan);
  collapse(op, plan);
  return plan;
}

}  // namespace qeng
