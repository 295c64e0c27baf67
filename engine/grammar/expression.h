// What the two notations of constrained output (gbnf.h, schema.h) become: rules over Unicode characters, which
// automaton.h compiles. A value; nothing here is checked.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace qeng::grammar {

struct Range {
  uint32_t first, last;  // code points, both included
  bool operator==(const Range&) const = default;
};
using CharSet = std::vector<Range>;
CharSet normal(CharSet set);             // sorted, joined, without surrogates
CharSet complement(const CharSet& set);  // of what normal() gives, within Unicode less the surrogates
CharSet without(const CharSet& a, const CharSet& b);

struct Expr {
  enum class Kind {
    literal,   // text
    chars,     // one character of set
    rule,      // what rules[index] matches
    sequence,  // parts, one after another; of none: ""
    choice,    // one of parts; of none: nothing, not even ""
    repeat,    // parts[0], min to max times
  };
  static constexpr int kUnlimited = -1;

  Kind kind = Kind::sequence;
  std::string text;
  CharSet set;
  uint32_t index = 0;
  int min = 0, max = 0;
  std::vector<Expr> parts;
};

Expr literal(std::string_view text);
Expr chars(CharSet set);
Expr rule(uint32_t index);
Expr sequence(std::vector<Expr> parts);
Expr choice(std::vector<Expr> parts);
Expr repeat(Expr part, int min, int max);
Expr optional(Expr part);
inline Expr nothing() { return choice({}); }
inline Expr empty() { return sequence({}); }

struct Rule {
  std::string name;  // for messages
  Expr body;
};

struct Rules {
  std::vector<Rule> rules;
  uint32_t root = 0;
  int max_depth = 500;  // how deep rules nest in output (calls that end a rule do not count); see automaton.h
};

}  // namespace qeng::grammar
