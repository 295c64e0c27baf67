// Grammars in the notation that llama.cpp made known (GBNF):
//
//   root   ::= item ("," item){0,9}     # a rule's name, then what it matches; "root" is all of the output
//   item   ::= "yes" | "no" | number
//   number ::= "-"? [0-9]+ ("." [0-9]{1,4})?
//
// Literals "..." and classes [a-z], [^"\\] take the escapes \n \r \t \\ \" \[ \] \- \^ \xHH \uHHHH \UHHHHHHHH (code
// points); . is any character; ( ) groups; | * + ? {m} {m,} {m,n} mean what they do in regular expressions; # begins a
// comment. White space and line ends separate: a rule goes on until the next "name ::=".
#pragma once
#include <map>
#include <string>
#include <string_view>

#include "engine/grammar/expression.h"

namespace qeng::grammar {

// Error("format") with line and column: not the notation, not UTF-8, a rule defined twice or not at all, no rule
// "root", over kMaxText bytes, groups nested over 100 deep. schemas: JSON schemas (schema.h) by the names of rules that
// the text uses and does not define.
Rules parse_gbnf(std::string_view text, const std::map<std::string, std::string>& schemas = {});
constexpr size_t kMaxText = 1 << 20;  // of a grammar or a schema: far more than a model could follow

}  // namespace qeng::grammar
