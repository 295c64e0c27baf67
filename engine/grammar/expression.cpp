#include "engine/grammar/expression.h"

#include <algorithm>

namespace qeng::grammar {
namespace {
constexpr uint32_t kLastCode = 0x10FFFF;
constexpr Range kSurrogates = {0xD800, 0xDFFF};

CharSet inverse(const CharSet& set) {
  CharSet out;
  uint32_t next = 0;
  for (const Range& range : set) {
    if (range.first > next) out.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCode) out.push_back({next, kLastCode});
  return out;
}

Expr made(Expr::Kind kind, std::vector<Expr> parts) {
  Expr expr;
  expr.kind = kind;
  expr.parts = std::move(parts);
  return expr;
}
}  // namespace

CharSet normal(CharSet set) {
  CharSet split;
  for (const Range& range : set) {
    if (range.first < kSurrogates.first) split.push_back({range.first, std::min(range.last, kSurrogates.first - 1)});
    if (range.last > kSurrogates.last) split.push_back({std::max(range.first, kSurrogates.last + 1), range.last});
  }
  std::sort(split.begin(), split.end(), [](const Range& a, const Range& b) { return a.first < b.first; });
  CharSet out;
  for (const Range& range : split) {
    if (!out.empty() && range.first <= out.back().last + 1)
      out.back().last = std::max(out.back().last, range.last);
    else
      out.push_back(range);
  }
  return out;
}

CharSet complement(const CharSet& set) { return normal(inverse(normal(set))); }

CharSet without(const CharSet& a, const CharSet& b) {
  CharSet either = complement(a);
  either.insert(either.end(), b.begin(), b.end());
  return complement(either);
}

Expr literal(std::string_view text) {
  Expr expr = made(Expr::Kind::literal, {});
  expr.text = text;
  return expr;
}

Expr chars(CharSet set) {
  Expr expr = made(Expr::Kind::chars, {});
  expr.set = normal(std::move(set));
  return expr;
}

Expr rule(uint32_t index) {
  Expr expr = made(Expr::Kind::rule, {});
  expr.index = index;
  return expr;
}

Expr sequence(std::vector<Expr> parts) { return made(Expr::Kind::sequence, std::move(parts)); }
Expr choice(std::vector<Expr> parts) { return made(Expr::Kind::choice, std::move(parts)); }

Expr repeat(Expr part, int min, int max) {
  Expr expr = made(Expr::Kind::repeat, {});
  expr.parts.push_back(std::move(part));
  expr.min = min, expr.max = max;
  return expr;
}

Expr optional(Expr part) { return repeat(std::move(part), 0, 1); }

}  // namespace qeng::grammar
