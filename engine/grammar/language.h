// Regular languages of texts: what several expressions allow together, less what others match. For strings and numbers
// of a schema that has to hold to more than one thing, or may not be some.
#pragma once
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/grammar/expression.h"

namespace qeng::grammar {

struct LanguageState {
  std::vector<std::pair<CharSet, uint32_t>> next;  // sets apart from each other, each with the state it leads to
  bool final = false;
};

class Language {
 public:
  // rules: what expr calls; such rules may not call themselves. Error("unsupported") over kMostNodes or kMostWork.
  void must(const Expr& expr, const std::vector<Rule>& rules = {}) { part(expr, rules, true); }
  void must_not(const Expr& expr, const std::vector<Rule>& rules = {}) { part(expr, rules, false); }

  // An automaton by hand, to be part of this: states from add(), edges, and then its start and end.
  uint32_t add();
  void edge(uint32_t from, Range range, uint32_t to) { nodes_[from].edges.push_back({range, to}); }
  void move(uint32_t from, uint32_t to) { nodes_[from].moves.push_back(to); }
  void part(uint32_t start, uint32_t end, bool wanted) { parts_.push_back({start, end, wanted}); }

  size_t size() const { return nodes_.size(); }  // what it takes to make states of it grows with this
  size_t work() const { return work_; }          // what it took to build it
  // text: UTF-8. looked is told of how many nodes each character had to look at.
  bool accepts(
      std::string_view text, const std::function<void(size_t)>& looked = [](size_t) {}) const;
  // Something has to be a must. Deterministic, only states from which an end can be reached, the first is the start;
  // none if nothing is in the language. what: for the Error("unsupported") over kMostStates.
  std::vector<LanguageState> states(const char* what) const;

 private:
  static constexpr size_t kMostNodes = 200'000, kMostStates = 20'000, kMostWork = 5'000'000;
  struct Edge {
    Range range;
    uint32_t to;
  };
  struct Node {
    std::vector<Edge> edges;
    std::vector<uint32_t> moves;
  };
  struct Part {
    uint32_t start, end;
    bool wanted;
  };
  using Set = std::vector<uint32_t>;  // of nodes, sorted

  void part(const Expr& expr, const std::vector<Rule>& rules, bool wanted);
  uint32_t build(const Expr& expr, const std::vector<Rule>& rules, uint32_t from, int depth);
  Set closed(const Set& nodes) const;  // with what moves lead to
  Set begin() const;
  bool final(const Set& set) const;

  std::vector<Node> nodes_;
  std::vector<Part> parts_;
  size_t work_ = 0;  // nodes, ranges, and parts of expressions, some of which need no node
};

}  // namespace qeng::grammar
