#include "engine/grammar/grammar.h"

#include <algorithm>

#include "engine/grammar/gbnf.h"
#include "engine/grammar/schema.h"
#include "kernels/error.h"

namespace qeng::grammar {

std::shared_ptr<OutputGrammar> OutputGrammar::from_gbnf(std::string_view text) {
  return std::shared_ptr<OutputGrammar>(new OutputGrammar(compile(parse_gbnf(text), true)));
}

std::shared_ptr<OutputGrammar> OutputGrammar::from_schema(std::string_view json) {
  return std::shared_ptr<OutputGrammar>(new OutputGrammar(compile(schema_rules(json), false)));
}

std::shared_ptr<Constraint> OutputGrammar::constraint(const std::shared_ptr<const Tokenizer>& tokenizer,
                                                      std::vector<int32_t> ends) {
  if (ends.empty() && tokenizer->eos()) ends.push_back(*tokenizer->eos());
  if (ends.empty()) {
    fail("value", "grammar: tokenizer ", tokenizer->name(),
         " has no end-of-text token; say which tokens end an output");
  }
  std::sort(ends.begin(), ends.end());
  for (const Made& made : made_) {
    if (made.tokenizer == tokenizer && made.ends == ends) return made.constraint;
  }
  auto constraint = std::make_shared<Constraint>(automaton_, TokenTrie::of(tokenizer), ends);
  made_.push_back({tokenizer, std::move(ends), constraint});
  return constraint;
}

}  // namespace qeng::grammar
