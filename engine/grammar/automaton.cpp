#include "engine/grammar/automaton.h"

#include <algorithm>
#include <functional>
#include <map>
#include <queue>

#include "engine/grammar/utf8_ranges.h"
#include "kernels/error.h"

namespace qeng::grammar {
namespace {
constexpr size_t kMaxWork = 4'000'000;  // parts built, 0.1 s: some need no state
constexpr size_t kInlineStates = 6;     // a repeated part of more states becomes a rule of its own, called each time

class Compiler {
 public:
  Compiler(const Rules& rules, bool strict) : rules_(rules), strict_(strict) {}

  Automaton compile() {
    for (const Rule& rule : rules_.rules) starts_.push_back(add()), names_.push_back(rule.name);
    for (size_t i = 0; i < rules_.rules.size(); ++i) a_.states[build(rules_.rules[i].body, starts_[i])].final = true;
    refuse_left_recursion();
    mark_ends();
    measure_depth();
    make_classes();
    a_.start = starts_[rules_.root];
    a_.max_depth = rules_.max_depth;
    return std::move(a_);
  }

 private:
  uint32_t add() {
    if (a_.states.size() == kMaxStates) {
      fail("format", "the grammar needs more than ", kMaxStates, " states: its repetitions are too many or too long");
    }
    a_.states.emplace_back();
    return static_cast<uint32_t>(a_.states.size() - 1);
  }
  void move(uint32_t from, uint32_t to) { a_.states[from].moves.push_back(to); }

  // Adds what expr matches from `from` on; returns the state reached. Nothing that is added leads back to `from`, so
  // several may be built from one state.
  uint32_t build(const Expr& expr, uint32_t from) {
    work_ += 1 + expr.set.size() / 4;
    if (work_ > kMaxWork) fail("format", "the grammar takes too much work: its repetitions are too many or too long");
    switch (expr.kind) {
      case Expr::Kind::literal:
        for (const char c : expr.text) from = byte(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c));
        return from;
      case Expr::Kind::chars: return character(expr.set, from);
      case Expr::Kind::rule: return call(from, starts_[expr.index]);
      case Expr::Kind::sequence:
        for (const Expr& part : expr.parts) from = build(part, from);
        return from;
      case Expr::Kind::choice: {
        const uint32_t to = add();
        for (const Expr& part : expr.parts) {
          const uint32_t own = expr.parts.size() > 1 ? add() : from;
          if (own != from) move(from, own);
          move(build(part, own), to);
        }
        return to;
      }
      case Expr::Kind::repeat: return repeated(expr, from);
    }
    return from;
  }

  uint32_t byte(uint32_t from, uint8_t first, uint8_t last) {
    const uint32_t to = add();
    a_.states[from].edges.push_back({first, last, to});
    return to;
  }

  uint32_t call(uint32_t from, uint32_t start) {
    const uint32_t to = add();
    a_.states[from].calls.push_back({start, to});
    return to;
  }

  // The byte sequences of a set share their ends: two that differ in their first bytes only meet in one state.
  uint32_t character(const CharSet& set, uint32_t from) {
    const uint32_t to = add();
    std::map<std::vector<std::pair<uint8_t, uint8_t>>, uint32_t> ends;  // the state that awaits these bytes
    for (const ByteRanges& ranges : utf8_ranges(set)) {
      std::vector<std::pair<uint8_t, uint8_t>> suffix;
      uint32_t next = to;
      for (size_t i = ranges.count; i-- > 1;) {
        suffix.insert(suffix.begin(), {ranges.range[i].first, ranges.range[i].second});
        const auto [found, fresh] = ends.try_emplace(suffix, 0);
        if (fresh) {
          found->second = add();
          a_.states[found->second].edges.push_back({ranges.range[i].first, ranges.range[i].second, next});
        }
        next = found->second;
      }
      a_.states[from].edges.push_back({ranges.range[0].first, ranges.range[0].second, next});
    }
    return to;
  }

  uint32_t repeated(const Expr& expr, uint32_t from) {
    const Expr& part = expr.parts[0];
    const size_t before = a_.states.size();
    uint32_t start = 0;  // of a rule made for the part, where that is smaller
    const auto one = [&](uint32_t at) { return start ? call(at, start) : build(part, at); };
    if (expr.max == 0) return from;
    if (expr.max > 1 || expr.min > 1 || (expr.max == Expr::kUnlimited && expr.min > 0)) {
      const uint32_t trial = add();
      const uint32_t end = build(part, trial);
      if (end == trial) return a_.states.resize(before), from;  // it matches "" only
      if (a_.states.size() - before > kInlineStates) {
        start = trial, a_.states[end].final = true;
        starts_.push_back(trial), names_.push_back("");
      } else {
        a_.states.resize(before);
      }
    }
    for (int i = 0; i < expr.min; ++i) from = one(from);
    if (expr.max == Expr::kUnlimited) {
      const uint32_t loop = add(), to = add();
      move(from, loop);
      move(one(loop), loop);
      move(loop, to);
      return to;
    }
    if (expr.max == expr.min) return from;
    const uint32_t to = add();
    for (int i = expr.min; i < expr.max; ++i) move(from, to), from = one(from);
    move(from, to);
    return to;
  }

  std::string name_of(size_t rule) const { return names_[rule].empty() ? "a repetition" : names_[rule]; }

  void refuse_left_recursion() {
    const size_t count = a_.states.size(), rules = starts_.size();
    constexpr uint32_t kNone = UINT32_MAX;
    std::vector<uint32_t> rule_at(count, kNone), owner(count, kNone);  // owner: the rule that gets there without a byte
    for (uint32_t i = 0; i < rules; ++i) rule_at[starts_[i]] = i;
    std::vector<bool> may_be_empty(rules);
    std::vector<std::vector<std::pair<uint32_t, uint32_t>>> waiting(
        rules);                                       // {state, rule}: go on there once it may be empty
    std::vector<std::vector<uint32_t>> first(rules);  // the rules that a rule may call before any byte
    std::vector<uint32_t> work;
    const auto reach = [&](uint32_t state, uint32_t rule) {
      if (owner[state] == kNone) owner[state] = rule, work.push_back(state);
    };
    for (uint32_t i = 0; i < rules; ++i) reach(starts_[i], i);
    for (size_t at = 0; at < work.size(); ++at) {
      const AutomatonState& state = a_.states[work[at]];
      const uint32_t rule = owner[work[at]];
      for (const uint32_t to : state.moves) reach(to, rule);
      for (const RuleCall& c : state.calls) {
        const uint32_t callee = rule_at[c.start];
        first[rule].push_back(callee);
        if (may_be_empty[callee])
          reach(c.to, rule);
        else
          waiting[callee].emplace_back(c.to, rule);
      }
      if (state.final && !may_be_empty[rule]) {
        may_be_empty[rule] = true;
        for (const auto& [to, caller] : waiting[rule]) reach(to, caller);
      }
    }
    // Rules without calls to unfinished ones fall away, over and over; what stays is on, or leads into, a circle.
    std::vector<size_t> waits(rules);
    std::vector<std::vector<uint32_t>> callers(rules);
    std::vector<uint32_t> ready;
    for (uint32_t i = 0; i < rules; ++i) {
      waits[i] = first[i].size();
      for (const uint32_t callee : first[i]) callers[callee].push_back(i);
      if (waits[i] == 0) ready.push_back(i);
    }
    for (size_t i = 0; i < ready.size(); ++i) {
      for (const uint32_t caller : callers[ready[i]]) {
        if (--waits[caller] == 0) ready.push_back(caller);
      }
    }
    if (ready.size() == rules) return;
    uint32_t at = 0;
    while (waits[at] == 0) ++at;
    std::vector<uint32_t> path;
    std::vector<bool> on_path(rules);
    while (!on_path[at]) {
      path.push_back(at), on_path[at] = true;
      at = *std::find_if(first[at].begin(), first[at].end(), [&](uint32_t callee) { return waits[callee] > 0; });
    }
    std::string circle;
    for (auto i = std::find(path.begin(), path.end(), at); i != path.end(); ++i) circle += name_of(*i) + " -> ";
    fail("format", "left recursion: ", circle, name_of(at),
         ", with nothing before it; put what comes first in front, as in "
         "list ::= item (\",\" item)*");
  }

  // How deep a rule's end is from each state, by Dijkstra's algorithm (a call costs the larger of what it calls, plus
  // the return, and what follows); removes what leads to states from which there is none.
  void measure_depth() {
    const size_t count = a_.states.size();
    std::vector<std::vector<uint32_t>> before(count);                      // moves and edges that lead to a state
    std::vector<std::vector<std::pair<uint32_t, RuleCall>>> calls(count);  // those that lead to, or start at, a state
    using Entry = std::pair<uint32_t, uint32_t>;                           // {depth, state}
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> nearest;
    const auto reach = [&](uint32_t s, uint32_t depth) {
      if (depth < a_.states[s].depth) a_.states[s].depth = depth, nearest.emplace(depth, s);
    };
    for (uint32_t s = 0; s < count; ++s) {
      for (const uint32_t to : a_.states[s].moves) before[to].push_back(s);
      for (const ByteEdge& edge : a_.states[s].edges) before[edge.to].push_back(s);
      for (const RuleCall& c : a_.states[s].calls) calls[c.to].push_back({s, c}), calls[c.start].push_back({s, c});
      if (a_.states[s].final) reach(s, 0);
    }
    while (!nearest.empty()) {
      const auto [depth, state] = nearest.top();
      nearest.pop();
      if (depth > a_.states[state].depth) continue;
      for (const uint32_t s : before[state]) reach(s, depth);
      for (const auto& [s, c] : calls[state]) {
        const uint32_t inner = a_.states[c.start].depth, rest = a_.states[c.to].depth;
        if (inner != kEndless && rest != kEndless) reach(s, std::max(inner + !a_.states[c.to].only_ends, rest));
      }
    }
    for (size_t i = 0; i < rules_.rules.size(); ++i) {
      const uint32_t depth = a_.states[starts_[i]].depth;
      if (depth == kEndless && (strict_ || i == rules_.root)) {
        fail("format", "rule ", name_of(i), " never ends: nothing finite matches it");
      }
      if (i == rules_.root && depth > static_cast<uint32_t>(rules_.max_depth)) {
        fail("format", "rule ", name_of(i), " nests rules at least ", depth, " deep, at most ", rules_.max_depth,
             " are followed");
      }
    }
    const auto endless = [&](uint32_t s) { return a_.states[s].depth == kEndless; };
    for (AutomatonState& state : a_.states) {
      std::erase_if(state.moves, endless);
      std::erase_if(state.edges, [&](const ByteEdge& edge) { return endless(edge.to); });
      std::erase_if(state.calls, [&](const RuleCall& c) { return endless(c.to) || endless(c.start); });
    }
  }

  void mark_ends() {
    const size_t count = a_.states.size();
    std::vector<std::vector<uint32_t>> before(count);  // moves that lead to a state
    std::vector<bool> ends(count), goes_on(count);
    for (uint32_t s = 0; s < count; ++s) {
      for (const uint32_t to : a_.states[s].moves) before[to].push_back(s);
      ends[s] = a_.states[s].final;
      goes_on[s] = !a_.states[s].edges.empty() || !a_.states[s].calls.empty();
    }
    for (std::vector<bool>* property : {&ends, &goes_on}) {
      std::vector<uint32_t> work;
      for (uint32_t s = 0; s < count; ++s) {
        if ((*property)[s]) work.push_back(s);
      }
      for (size_t i = 0; i < work.size(); ++i) {
        for (const uint32_t s : before[work[i]]) {
          if (!(*property)[s]) (*property)[s] = true, work.push_back(s);
        }
      }
    }
    for (uint32_t s = 0; s < count; ++s) a_.states[s].only_ends = ends[s] && !goes_on[s];
  }

  void make_classes() {
    std::array<bool, 257> begins{};
    begins[0] = true;
    for (const AutomatonState& state : a_.states) {
      for (const ByteEdge& edge : state.edges) begins[edge.first] = begins[edge.last + 1] = true;
    }
    for (size_t b = 0; b < 256; ++b) {
      if (begins[b]) a_.class_byte.push_back(static_cast<uint8_t>(b));
      a_.byte_class[b] = static_cast<uint8_t>(a_.class_byte.size() - 1);
    }
  }

  const Rules& rules_;
  const bool strict_;
  Automaton a_;
  size_t work_ = 0;
  std::vector<uint32_t> starts_;    // of the rules, and then of repeated parts
  std::vector<std::string> names_;  // of the same
};
}  // namespace

Automaton compile(const Rules& rules, bool strict) { return Compiler(rules, strict).compile(); }

}  // namespace qeng::grammar
