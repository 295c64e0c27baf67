#include "kernels/cpu/pointwise_program.h"

#include <algorithm>

#include "kernels/error.h"

namespace qeng {
namespace {

using isa::Action, isa::Instruction, isa::Kind;

constexpr int kCheap = 2;  // functions that are computed again rather than kept: a store and a load cost as much

// Roughly, in times of an addition.
int cost_of(Fn fn) {
  switch (fn) {
    case Fn::input:
    case Fn::constant: return 0;
    case Fn::div:
    case Fn::sqrt: return 6;
    default: return fn == Fn::neg || fn == Fn::abs || fn >= Fn::add ? (fn == Fn::pow ? 30 : 1) : 12;
  }
}

// Functions whose instructions take operands of any kind.
bool takes_all(Fn fn) { return fn == Fn::add || fn == Fn::sub || fn == Fn::mul || fn == Fn::div; }

Kind kind_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return Kind::f32;
    case DType::bf16: return Kind::bf16;
    case DType::f16: return Kind::f16;
    case DType::i32: return Kind::i32;
    case DType::i64: return Kind::i64;
    default: return Kind::u8;
  }
}

class Compiler {
 public:
  Compiler(const Pointwise& op, const PointwiseSpace& space, PointwiseWays ways, const isa::Table& table,
           PointwiseProgram& program)
      : op_(op),
        space_(space),
        ways_(ways),
        table_(table),
        program_(program),
        nodes_(op.nodes),
        state_(nodes_.size()) {}

  void compile() {
    look_at_nodes();
    place_roots();
    for (size_t p = 0; p < program_.phases.size(); ++p)
      for (const uint16_t root : roots_[p]) plan(root, static_cast<int>(p));
    for (size_t p = 0; p < program_.phases.size(); ++p) {
      emit_row(static_cast<int>(p));
      emit_columns(static_cast<int>(p));
      finish(program_.phases[p]);
    }
  }

 private:
  struct State {
    bool needed = false, of_row = false;
    int ready = 0;      // the first phase that it can be computed in
    int cost = 0;       // of computing it from inputs
    int32_t cell = -1;  // of a row's
    int first = -1;     // the phase that computes it first
    int seen = -1;      // the last phase whose plan has met it
    int kept = -1;      // its stream
    int32_t slot = -1;  // while a phase is emitted; likewise:
    int uses = 0;       // nodes of this phase that have yet to read it
    bool done = false;
    std::vector<size_t> puts;                             // outputs that it goes to as soon as it is there
    std::vector<PointwiseProgram::Reduction> reductions;  // and row functions
    std::vector<int> keeps;                               // and streams of the frame's own
  };

  // A stream of the frame's own.
  int keep() {
    if (first_kept() + program_.kept >= isa::kMostStreams) fail("unsupported", op_.name, ": too many row functions");
    return first_kept() + program_.kept++;
  }

  int32_t take(int32_t floats) {
    program_.floats += floats;
    return program_.floats - floats;
  }

  void look_at_nodes() {
    const std::vector<bool> needed = needed_nodes(nodes_, op_.out);
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const PointwiseNode& node = nodes_[i];
      State& state = state_[i];
      state.needed = needed[i];
      if (!state.needed) continue;
      state.cost = cost_of(node.fn);
      state.of_row = node.fn != Fn::input ||
                     (ways_.folded ? is_scalar(space_.in[node.a]) : space_.in[node.a].stride[space_.rank - 1] == 0);
      each_operand(node, [&](uint16_t operand) {
        state.of_row = state.of_row && state_[operand].of_row;
        state.ready = std::max(state.ready, state_[operand].ready);
        if (!state_[operand].of_row && !is_row_fn(nodes_[operand].fn))
          state.cost = std::min(1000, state.cost + state_[operand].cost);
      });
      if (is_row_fn(node.fn)) state.of_row = !ways_.folded, ++state.ready;
      if (!state.of_row) continue;
      state.cell = take(isa::kCell);
      if (node.fn == Fn::constant) program_.constants.push_back({state.cell, node.value});
      if (node.fn == Fn::input) program_.row_inputs.push_back({node.a, state.cell});
    }
  }

  // Which phase computes what for its own sake: row functions, and outputs. Those in the place of an input come last.
  void place_roots() {
    int last = 0;
    for (const State& state : state_)
      if (state.needed) last = std::max(last, state.ready);
    program_.phases.resize(static_cast<size_t>(last) + 1), roots_.resize(static_cast<size_t>(last) + 1);
    for (size_t i = 0; i < nodes_.size(); ++i)
      if (state_[i].needed && is_row_fn(nodes_[i].fn)) {
        State& operand = state_[nodes_[i].a];
        if (ways_.folded) {
          const int from = keep(), to = keep();
          state_[i].kept = to, state_[i].first = operand.ready;
          operand.reductions.push_back({nodes_[i].fn, from, to});
        } else {
          operand.reductions.push_back({nodes_[i].fn, take(isa::kMostBlock), state_[i].cell});
        }
        program_.phases[static_cast<size_t>(operand.ready)].reductions.push_back(operand.reductions.back());
        roots_[static_cast<size_t>(operand.ready)].push_back(nodes_[i].a);
      }
    for (size_t i = 0; i < op_.out.size(); ++i) {
      const PointwiseOutput& out = op_.out[i];
      if (ways_.folded && (space_.is_row[i] || space_.is_sum[i])) {
        program_.kept_outputs.push_back({i, keep()});
        state_[out.node].keeps.push_back(program_.kept_outputs.back().at);
        roots_[static_cast<size_t>(state_[out.node].ready)].push_back(out.node);
        continue;
      }
      if (space_.is_row[i]) {
        program_.row_outputs.push_back({i, state_[out.node].cell});
        continue;
      }
      bool in_place = false;
      for (const View& in : op_.in) in_place = in_place || overlap(in, out.view);
      if (in_place) at_end_.push_back(i);
      if (!in_place) state_[out.node].puts.push_back(i);
      roots_[static_cast<size_t>(in_place ? last : state_[out.node].ready)].push_back(out.node);
    }
  }

  bool is_stream(uint16_t n) const {  // whose elements instructions read themselves
    if (nodes_[n].fn != Fn::input || state_[n].of_row) return false;
    const Kind kind = kind_of_input(nodes_[n].a);
    return kind == Kind::f32 || kind == Kind::bf16;
  }
  Kind kind_of_input(size_t i) const {
    return ways_.folded && !space_.in[i].dense ? Kind::f32 : kind_of(op_.in[i].dtype);
  }
  bool is_scalar(const PointwiseSpace::Place& place) const {
    return std::all_of(place.stride, place.stride + space_.rank, [](int64_t stride) { return stride == 0; });
  }

  // What this phase computes for a node: nothing if it has been kept.
  void plan(uint16_t n, int phase) {
    State& state = state_[n];
    if (state.of_row || is_row_fn(nodes_[n].fn) || is_stream(n) || state.seen == phase) return;
    state.seen = phase;
    const bool known = state.first >= 0 && state.cost > kCheap && ways_.keeps;
    if (known && state.kept < 0 && first_kept() + program_.kept < isa::kMostStreams)
      state.kept = first_kept() + program_.kept++;
    if (known && state.kept >= 0) return;
    if (state.first < 0) state.first = phase;
    planned_.push_back({n, phase});
    each_operand(nodes_[n], [&](uint16_t operand) { plan(operand, phase); });
  }
  int first_kept() const { return static_cast<int>(op_.in.size() + op_.out.size()); }

  // ---- instructions

  // Cells of nodes that can be computed once the phases before are done.
  void emit_row(int phase) {
    code_ = &program_.phases[static_cast<size_t>(phase)].of_row;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const PointwiseNode& node = nodes_[i];
      const State& state = state_[i];
      if (!state.needed || !state.of_row || state.ready != phase || operands_of(node.fn) == 0 || is_row_fn(node.fn))
        continue;
      add({.action = Action::load, .kind = Kind::cell, .at = state_[node.a].cell});
      const int operands = operands_of(node.fn);
      add({.action = Action::apply,
           .fn = node.fn,
           .kind = Kind::cell,
           .other_kind = Kind::cell,
           .at = operands > 1 ? state_[node.b].cell : 0,
           .other = operands > 2 ? state_[node.c].cell : 0});
      add({.action = Action::keep, .kind = Kind::slot, .at = state.cell});
    }
  }

  void emit_columns(int phase) {
    code_ = &program_.phases[static_cast<size_t>(phase)].of_columns;
    phase_ = phase, accumulator_ = -1;
    const bool last = static_cast<size_t>(phase) + 1 == program_.phases.size();
    for (State& state : state_) state.uses = 0, state.done = false, state.slot = -1;
    for (const auto& [n, of] : planned_)
      if (of == phase) each_distinct_operand(nodes_[n], [&](uint16_t operand) { ++state_[operand].uses; });
    if (last)
      for (const size_t i : at_end_) ++state_[op_.out[i].node].uses;
    for (const uint16_t root : roots_[static_cast<size_t>(phase)]) {
      if (state_[root].ready != phase || state_[root].done) continue;  // or it is for the end
      bring(root);
      if (!state_[root].done) give(root);
    }
    if (!last) return;
    for (const size_t i : at_end_) {
      bring(op_.out[i].node);
      --state_[op_.out[i].node].uses;
      put(i);
    }
  }

  template <class F>
  static void each_distinct_operand(const PointwiseNode& node, F f) {
    const int operands = operands_of(node.fn);
    if (operands > 0) f(node.a);
    if (operands > 1 && node.b != node.a) f(node.b);
    if (operands > 2 && node.c != node.a && node.c != node.b) f(node.c);
  }

  void add(const Instruction& in) { code_->push_back(in); }

  struct Where {
    Kind kind = Kind::itself;  // nowhere in memory
    int32_t at = 0;
  };
  Where where(uint16_t n) const {
    const State& state = state_[n];
    if (state.of_row) return {Kind::cell, state.cell};
    if (state.slot >= 0) return {Kind::slot, state.slot};
    if (is_stream(n)) return {kind_of_input(nodes_[n].a), nodes_[n].a};
    if (state.kept >= 0 && (state.first < phase_ || state.done)) return {Kind::f32, state.kept};
    return {};
  }
  bool has(uint16_t n) const { return where(n).kind != Kind::itself; }
  // Whether an instruction of the function can read it.
  bool reads(Fn fn, uint16_t n) const {
    const Kind kind = where(n).kind;
    return kind != Kind::itself && (takes_all(fn) || kind != Kind::bf16);
  }

  // The accumulator gets another value: the one that it has is kept for those who have yet to read it.
  void leave() {
    if (accumulator_ >= 0 && state_[static_cast<size_t>(accumulator_)].uses > 0 &&
        !has(static_cast<uint16_t>(accumulator_)))
      to_slot(static_cast<uint16_t>(accumulator_));
  }
  void to_slot(uint16_t n) {
    if (state_[n].slot >= 0) return;
    if (spare_.empty()) spare_.push_back(take(isa::kMostBlock));
    state_[n].slot = spare_.back();
    spare_.pop_back();
    add({.action = Action::keep, .kind = Kind::slot, .at = state_[n].slot});
  }
  void read_by_one(uint16_t n) { --state_[n].uses; }
  void free_slot(uint16_t n) {
    State& state = state_[n];
    if (state.uses > 0 || state.slot < 0) return;
    spare_.push_back(state.slot);
    state.slot = -1;
  }

  // The node's values to the accumulator.
  void bring(uint16_t n) {
    if (accumulator_ == n) return;
    if (!has(n)) return compute(n);
    leave();
    const Where from = where(n);
    add({.action = Action::load, .kind = from.kind, .at = from.at});
    accumulator_ = n;
  }

  void compute(uint16_t n) {
    const PointwiseNode& node = nodes_[n];
    Instruction in{.action = Action::apply, .fn = node.fn};
    switch (operands_of(node.fn)) {
      case 0:  // an input
        in.action = Action::load, in.kind = kind_of_input(node.a), in.at = node.a;
        break;
      case 1: bring(node.a); break;
      case 2: in = two(node); break;
      default:
        for (const uint16_t operand : {node.b, node.c})
          if (!reads(node.fn, operand)) bring(operand), to_slot(operand);
        bring(node.a);
        in.kind = where(node.b).kind, in.at = where(node.b).at;
        in.other_kind = where(node.c).kind, in.other = where(node.c).at;
    }
    each_distinct_operand(node, [&](uint16_t operand) { read_by_one(operand); });
    leave();
    add(in);
    each_distinct_operand(node, [&](uint16_t operand) { free_slot(operand); });
    accumulator_ = n;
    state_[n].done = true;
    if (state_[n].kept >= 0 && state_[n].first == phase_)
      add({.action = Action::keep, .kind = Kind::f32, .at = state_[n].kept});
    if (state_[n].ready == phase_) give(n);
  }

  // Brings one operand, and says where the other one is.
  Instruction two(const PointwiseNode& node) {
    const uint16_t a = node.a, b = node.b;
    Instruction in{.action = Action::apply, .fn = node.fn};
    const auto from = [&](uint16_t operand) { in.kind = where(operand).kind, in.at = where(operand).at; };
    if (a == b) {
      bring(a);
      if (takes_all(node.fn)) return in;
      to_slot(a), from(a);
      return in;
    }
    uint16_t other = b;
    if (!reads(node.fn, a) && !reads(node.fn, b)) {
      other = accumulator_ == a ? a : b;
      bring(other), to_slot(other);
    } else if (!reads(node.fn, b) || (accumulator_ == b && reads(node.fn, a))) {
      other = a;
    }
    bring(other == b ? a : b);
    from(other);
    if (other == a) in.action = Action::apply_from;
    return in;
  }

  // To whoever takes it as soon as it is there.
  void give(uint16_t n) {
    state_[n].done = true;
    for (const PointwiseProgram::Reduction& reduction : state_[n].reductions)
      if (ways_.folded)
        add({.action = Action::keep, .kind = Kind::f32, .at = reduction.parts});
      else
        add({.action = Action::reduce, .fn = reduction.fn, .at = reduction.parts});
    for (const int stream : state_[n].keeps) add({.action = Action::keep, .kind = Kind::f32, .at = stream});
    for (const size_t i : state_[n].puts) put(i);
  }
  void put(size_t i) {
    const View& view = op_.out[i].view;
    const bool sum = space_.is_sum[i];
    // Rows are then of whole lines of the cache.
    const auto row = static_cast<size_t>(space_.columns()) * dtype_size(view.dtype);
    const bool past = ways_.past && (view.dtype == DType::f32 || view.dtype == DType::bf16) &&
                      reinterpret_cast<uintptr_t>(view.data) % 64 == 0 && row % 64 == 0;
    add({.action = sum || op_.out[i].acc ? Action::add
                   : past                ? Action::put_past
                                         : Action::put,
         .kind = sum ? Kind::f32 : kind_of(view.dtype),
         .at = static_cast<int32_t>(op_.in.size() + i)});
  }

  // The streams of the phase's instructions; their functions.
  void finish(PointwiseProgram::Phase& phase) {
    const int outputs = static_cast<int>(op_.in.size());
    const auto note = [&](std::vector<uint8_t>& list, Kind kind, int stream) {
      const auto number = static_cast<uint8_t>(stream);
      if (isa::is_stream(kind) && stream < first_kept() && std::find(list.begin(), list.end(), number) == list.end())
        list.push_back(number);
    };
    for (const Instruction& in : phase.of_columns) {
      const bool puts = in.action == Action::put || in.action == Action::put_past;
      const bool writes = puts || in.action == Action::add;
      if (writes) note(phase.writes, in.kind, in.at);
      if (!writes && in.at < outputs) note(phase.reads, in.kind, in.at);
      phase.updates = phase.updates || in.action == Action::add;
      note(phase.reads, in.other_kind, in.other);
      if (in.action != Action::put_past) look_ahead(phase, in.kind, in.at);
    }
    for (std::vector<Instruction>* code : {&phase.of_row, &phase.of_columns}) {
      if (code->empty()) continue;
      code->push_back({});
      for (Instruction& in : *code) table_.pointwise_link(in);
    }
  }

  void look_ahead(PointwiseProgram::Phase& phase, Kind kind, int stream) {
    const auto number = static_cast<uint8_t>(stream);
    if (!isa::is_stream(kind) || stream >= first_kept() || phase.ahead.size() == isa::kMostAhead) return;
    for (const PointwiseProgram::Phase& each : program_.phases)
      if (std::find(each.ahead.begin(), each.ahead.end(), number) != each.ahead.end()) return;
    phase.ahead.push_back(number);
  }

  const Pointwise& op_;
  const PointwiseSpace& space_;
  const PointwiseWays ways_;
  const isa::Table& table_;
  PointwiseProgram& program_;
  const std::vector<PointwiseNode>& nodes_;
  std::vector<State> state_;
  std::vector<std::vector<uint16_t>> roots_;       // of each phase
  std::vector<std::pair<uint16_t, int>> planned_;  // nodes, and the phases that compute them
  std::vector<size_t> at_end_;                     // outputs
  std::vector<int32_t> spare_;                     // slots
  std::vector<Instruction>* code_ = nullptr;
  int phase_ = 0, accumulator_ = -1;  // a node
};

}  // namespace

PointwiseProgram program_of(const Pointwise& op, const PointwiseSpace& space, PointwiseWays ways,
                            const isa::Table& isa) {
  PointwiseProgram program;
  Compiler(op, space, ways, isa, program).compile();
  return program;
}

}  // namespace qeng
