#include "engine/grammar/language.h"

#include <algorithm>
#include <map>

#include "engine/tokenizer/unicode.h"
#include "kernels/error.h"

namespace qeng::grammar {
namespace {
constexpr int kMostCalls = 50;  // of rules in rules: those that come here do not call themselves

[[noreturn]] void too_large() {
  fail("unsupported", "schema: the patterns, lengths or numbers of one value are too large to hold together");
}
}  // namespace

uint32_t Language::add() {
  if (nodes_.size() == kMostNodes) too_large();
  ++work_;
  nodes_.emplace_back();
  return static_cast<uint32_t>(nodes_.size() - 1);
}

void Language::part(const Expr& expr, const std::vector<Rule>& rules, bool wanted) {
  const uint32_t start = add();
  part(start, build(expr, rules, start, 0), wanted);
}

// Nothing that is added leads back to `from`.
uint32_t Language::build(const Expr& expr, const std::vector<Rule>& rules, uint32_t from, int depth) {
  work_ += 1 + expr.set.size();
  if (work_ > kMostWork) too_large();
  switch (expr.kind) {
    case Expr::Kind::literal:
      for (size_t at = 0; at < expr.text.size();) {
        uint32_t code;
        at += static_cast<size_t>(decode_utf8(expr.text.data() + at, code));
        const uint32_t to = add();
        edge(from, {code, code}, to);
        from = to;
      }
      return from;
    case Expr::Kind::chars: {
      const uint32_t to = add();
      for (const Range& range : expr.set) edge(from, range, to);
      return to;
    }
    case Expr::Kind::rule:
      if (depth == kMostCalls) fail("internal", "a rule of a regular language calls itself");
      return build(rules[expr.index].body, rules, from, depth + 1);
    case Expr::Kind::sequence:
      for (const Expr& each : expr.parts) from = build(each, rules, from, depth);
      return from;
    case Expr::Kind::choice: {
      const uint32_t to = add();
      for (const Expr& each : expr.parts) {
        const uint32_t own = add();
        move(from, own);
        move(build(each, rules, own, depth), to);
      }
      return to;
    }
    case Expr::Kind::repeat: {
      const Expr& each = expr.parts[0];
      for (int i = 0; i < expr.min; ++i) from = build(each, rules, from, depth);
      const uint32_t to = add();
      if (expr.max == Expr::kUnlimited) {
        const uint32_t loop = add();
        move(from, loop);
        move(build(each, rules, loop, depth), loop);
        move(loop, to);
        return to;
      }
      for (int i = expr.min; i < expr.max; ++i) {
        move(from, to);
        const uint32_t own = add();
        move(from, own);
        from = build(each, rules, own, depth);
      }
      move(from, to);
      return to;
    }
  }
  return from;
}

Language::Set Language::closed(const Set& nodes) const {
  std::vector<bool> seen(nodes_.size());
  Set all;
  const auto reach = [&](const std::vector<uint32_t>& more) {
    for (const uint32_t node : more) {
      if (!seen[node]) seen[node] = true, all.push_back(node);
    }
  };
  reach(nodes);
  for (size_t i = 0; i < all.size(); ++i) reach(nodes_[all[i]].moves);
  std::sort(all.begin(), all.end());
  return all;
}

Language::Set Language::begin() const {
  Set starts;
  for (const Part& part : parts_) starts.push_back(part.start);
  return closed(starts);
}

bool Language::final(const Set& set) const {
  return std::all_of(parts_.begin(), parts_.end(), [&](const Part& part) {
    return std::binary_search(set.begin(), set.end(), part.end) == part.wanted;
  });
}

bool Language::accepts(std::string_view text, const std::function<void(size_t)>& looked) const {
  Set set = begin();
  for (size_t at = 0; at < text.size();) {
    uint32_t code;
    at += static_cast<size_t>(decode_utf8(text.data() + at, code));
    Set next;
    for (const uint32_t node : set) {
      for (const Edge& e : nodes_[node].edges) {
        if (e.range.first <= code && code <= e.range.last) next.push_back(e.to);
      }
    }
    set = closed(next);
    looked(set.size() + 1);
    if (set.empty()) break;  // nothing leads out of it
  }
  return final(set);
}

std::vector<LanguageState> Language::states(const char* what) const {
  std::vector<LanguageState> all;
  std::map<Set, uint32_t> known;
  std::vector<const Set*> sets;
  size_t work = 0;
  const auto intern = [&](Set set) {
    const auto [found, fresh] = known.try_emplace(std::move(set), static_cast<uint32_t>(all.size()));
    if (fresh) {
      all.emplace_back();
      all.back().final = final(found->first);
      sets.push_back(&found->first);
      work += found->first.size() + 1;
      if (all.size() > kMostStates || work > kMostWork)
        fail("unsupported", what, " takes too many states; make its lengths shorter or its numbers smaller");
    }
    return found->second;
  };
  intern(begin());
  for (uint32_t at = 0; at < all.size(); ++at) {
    const Set& set = *sets[at];
    std::vector<uint32_t> edges;  // where ranges begin, or have ended
    for (const uint32_t node : set) {
      for (const Edge& e : nodes_[node].edges) edges.push_back(e.range.first), edges.push_back(e.range.last + 1);
    }
    std::sort(edges.begin(), edges.end());
    edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
    work += edges.size() * set.size() / 8;
    std::map<uint32_t, CharSet> targets;
    for (size_t i = 0; i + 1 < edges.size(); ++i) {
      Set next;
      for (const uint32_t node : set) {
        for (const Edge& e : nodes_[node].edges) {
          if (e.range.first <= edges[i] && edges[i] <= e.range.last) next.push_back(e.to);
        }
      }
      if (!next.empty()) targets[intern(closed(next))].push_back({edges[i], edges[i + 1] - 1});
    }
    for (auto& [to, ranges] : targets) {
      CharSet joined = normal(std::move(ranges));
      if (!joined.empty()) all[at].next.emplace_back(std::move(joined), to);
    }
  }
  // What leads to no end goes, and so do its numbers.
  std::vector<std::vector<uint32_t>> before(all.size());
  std::vector<uint32_t> ending;
  std::vector<bool> ends(all.size());
  for (uint32_t s = 0; s < all.size(); ++s) {
    for (const auto& [set, to] : all[s].next) before[to].push_back(s);
    if (all[s].final) ends[s] = true, ending.push_back(s);
  }
  for (size_t i = 0; i < ending.size(); ++i) {
    for (const uint32_t s : before[ending[i]]) {
      if (!ends[s]) ends[s] = true, ending.push_back(s);
    }
  }
  if (!ends[0]) return {};
  std::vector<uint32_t> number(all.size());
  uint32_t kept = 0;
  for (uint32_t s = 0; s < all.size(); ++s) number[s] = ends[s] ? kept++ : 0;
  std::vector<LanguageState> out;
  for (uint32_t s = 0; s < all.size(); ++s) {
    if (!ends[s]) continue;
    std::erase_if(all[s].next, [&](const auto& next) { return !ends[next.second]; });
    for (auto& [set, to] : all[s].next) to = number[to];
    out.push_back(std::move(all[s]));
  }
  return out;
}

}  // namespace qeng::grammar
