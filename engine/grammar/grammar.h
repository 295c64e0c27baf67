// A grammar that output has to follow, for any tokenizer. See matcher.h for how it is used.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "engine/grammar/matcher.h"

namespace qeng::grammar {

class OutputGrammar {
 public:
  static std::shared_ptr<OutputGrammar> from_gbnf(std::string_view text,
                                                  const std::map<std::string, std::string>& schemas = {});  // gbnf.h
  static std::shared_ptr<OutputGrammar> from_schema(std::string_view json);                                 // schema.h

  // ends: tokens that end an output, tokenizer.eos() if none are given; Error("value") without either. spoken: special
  // tokens that count as the text they are written with. The same arguments give the same object, so that sequences
  // share its masks.
  std::shared_ptr<Constraint> constraint(const std::shared_ptr<const Tokenizer>& tokenizer, std::vector<int32_t> ends,
                                         std::vector<int32_t> spoken = {});

  const Automaton& automaton() const { return *automaton_; }

 private:
  explicit OutputGrammar(Automaton automaton) : automaton_(std::make_shared<const Automaton>(std::move(automaton))) {}
  struct Made {
    std::shared_ptr<const Tokenizer> tokenizer;
    std::vector<int32_t> ends, spoken;
    std::shared_ptr<Constraint> constraint;
  };
  std::shared_ptr<const Automaton> automaton_;
  std::vector<Made> made_;
};

}  // namespace qeng::grammar
