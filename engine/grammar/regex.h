// The "pattern" of a JSON schema: a subset of ECMA-262's regular expressions, as what a JSON string may hold.
//
// Known: characters and escapes (\n \r \t \f \v \0 \xHH \uHHHH \/ and escaped signs), . [...] [^...] \d \w \s \D \W \S,
// groups (...) (?:...) (?<name>...), | * + ? {m} {m,} {m,n} and their lazy forms, ^ and $ at the ends of the pattern or
// of its outermost alternatives; without one of them anything may stand there. Refused by name: look-around, back
// references, \b, \p, other anchors. Negated classes and . do not produce control characters: these would be valid, but
// no one wants them.
#pragma once
#include <string_view>

#include "engine/grammar/expression.h"

namespace qeng::grammar {

enum class PatternOf {
  json,  // the text between the quotes of a JSON string whose value matches
  text,  // the value
  every  // the value, control characters of negated classes and . included: for what may not match
};
// other: any number of such characters (a rule of the caller's). where: for messages. Error("format") |
// Error("unsupported").
Expr pattern_expr(std::string_view pattern, PatternOf of, const Expr& other, const std::string& where);

// One character of the set as JSON strings hold it: " as \", a line end as \n, ...
Expr string_char(const CharSet& set);

}  // namespace qeng::grammar
