#include "engine/grammar/grammar.h"

#include <algorithm>

#include "engine/grammar/gbnf.h"
#include "engine/grammar/schema.h"
#include "kernels/error.h"

namespace qeng::grammar {

std::shared_ptr<OutputGrammar> OutputGrammar::from_gbnf(std::string_view text,
                                                        const std::map<std::string, std::string>& schemas) {
  return std::shared_ptr<OutputGrammar>(new OutputGrammar(compile(parse_gbnf(text, schemas), schemas.empty())));
}

std::shared_ptr<OutputGrammar> OutputGrammar::from_schema(std::string_view json) {
  return std::shared_ptr<OutputGrammar>(new OutputGrammar(compile(schema_rules(json), false)));
}

std::shared_ptr<Constraint> OutputGrammar::constraint(const std::shared_ptr<const Tokenizer>& tokenizer,
                                                      std::vector<int32_t> ends, std::vector<int32_t> spoken) {
  if (ends.empty() && tokenizer->eos()) ends.push_back(*tokenizer->eos());
  if (ends.empty()) {
    fail("value", "grammar: tokenizer ", tokenizer->name(),
         " has no end-of-text token; say which tokens end an output");
  }
  std::sort(ends.begin(), ends.end());
  std::sort(spoken.begin(), spoken.end());
  for (const Made& made : made_) {
    if (made.tokenizer == tokenizer && made.ends == ends && made.spoken == spoken) return made.constraint;
  }
  auto constraint = std::make_shared<Constraint>(automaton_, TokenTrie::of(tokenizer), ends, spoken);
  made_.push_back({tokenizer, std::move(ends), std::move(spoken), constraint});
  return constraint;
}

}  // namespace qeng::grammar
