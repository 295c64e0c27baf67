// Which tokens a grammar lets come next, and what has come.
//
//   auto grammar = std::make_shared<const Automaton>(compile(parse_gbnf(text), true));
//   auto constraint = std::make_shared<Constraint>(grammar, TokenTrie::of(tokenizer), ends);
//   Matcher matcher(constraint);                       // one for each sequence; a copy is a point to come back to
//   sampler.next(logits, matcher.mask().get());
//   matcher.accept(token);
//
// A mask is found by walking the trie of the vocabulary along the states of the automaton and kept for the state, so
// that a state that comes again (every character of a string, say) costs one look-up. Not for several threads at once.
#pragma once
#include <memory>
#include <string_view>
#include <unordered_map>

#include "engine/generate/token_mask.h"
#include "engine/grammar/states.h"
#include "engine/grammar/token_trie.h"

namespace qeng::grammar {

// A grammar over a vocabulary, with what has been found out about it. ends: the tokens that end an output, allowed
// where the grammar is complete. spoken: special tokens that stand for the bytes they are written with, as a tag of
// tool calls; no other special token is ever allowed.
class Constraint {
 public:
  Constraint(std::shared_ptr<const Automaton> automaton, std::shared_ptr<const TokenTrie> trie,
             std::vector<int32_t> ends, std::vector<int32_t> spoken = {});

  struct Run {  // a States and the masks of its states; replaced as a whole when it has grown large
    explicit Run(std::shared_ptr<const Automaton> automaton) : states(std::move(automaton)) {}
    States states;
    std::unordered_map<StateId, std::shared_ptr<const TokenMask>> masks;
    // How a state goes on through plain text: any of `length` characters of these groups (token_trie.h), one after
    // another.
    struct Plain {
      int32_t length = -1;   // -1: not known yet
      bool stepped = false;  // what follows is known
      StateId to = kDead;    // after one of them
      uint64_t groups = 0;
    };
    std::vector<Plain> plain;  // of each state
  };
  std::shared_ptr<const TokenMask> mask(Run& run, StateId state) const;
  const std::shared_ptr<Run>& run();  // the one to use now

  const TokenTrie& trie() const { return *trie_; }
  bool is_end(int32_t token) const;
  bool is_spoken(int32_t token) const;

 private:
  static Run::Plain plain_step(Run& run, StateId state);
  const Run::Plain& plain(Run& run, StateId state) const;

  std::shared_ptr<const Automaton> automaton_;
  std::shared_ptr<const TokenTrie> trie_;
  const std::vector<int32_t> ends_, spoken_;
  std::shared_ptr<Run> run_;
};

class Matcher {
 public:
  explicit Matcher(std::shared_ptr<Constraint> constraint);

  // After an end: no token. Error("value") where the grammar turns out to be so ambiguous that it would take long.
  std::shared_ptr<const TokenMask> mask();
  bool allows(int32_t token);  // as the mask says, without making it
  void accept(int32_t token);  // Error("value") if it is not allowed; the state stays as it was
  bool complete() const { return ended_ || run_->states.complete(state_); }  // the text so far is a whole match
  bool finished() const { return ended_ || !run_->states.goes_on(state_); }  // and nothing can follow it
  void reset();

 private:
  StateId after(int32_t token);  // kDead if it is not allowed
  void refresh();

  std::shared_ptr<Constraint> constraint_;
  std::shared_ptr<Constraint::Run> run_;
  StateId state_;
  bool ended_ = false;
};

}  // namespace qeng::grammar
