#include "engine/grammar/matcher.h"

#include <algorithm>

#include "kernels/error.h"

namespace qeng::grammar {
namespace {
constexpr size_t kMaskBytes = 64 << 20;  // of masks kept: 3,400 of a vocabulary of 150,000
}  // namespace

Constraint::Constraint(std::shared_ptr<const Automaton> automaton, std::shared_ptr<const TokenTrie> trie, std::vector<int32_t> ends)
    : automaton_(std::move(automaton)), trie_(std::move(trie)), ends_(std::move(ends)), run_(std::make_shared<Run>(automaton_)) {
  for (const int32_t id : ends_) {
    if (id < 0 || id >= trie_->tokenizer->vocab_size()) {
      fail("value", "grammar: end token ", id, " is outside the vocabulary [0, ", trie_->tokenizer->vocab_size(), ")");
    }
  }
}

const std::shared_ptr<Constraint::Run>& Constraint::run() {
  if (run_->states.full()) run_ = std::make_shared<Run>(automaton_);
  return run_;
}

bool Constraint::is_end(int32_t token) const { return std::find(ends_.begin(), ends_.end(), token) != ends_.end(); }

// Found only where letters lead back to the state, as in strings; elsewhere a walk is short anyway.
uint64_t Constraint::loops(Run& run, StateId state) const {
  if (run.states.next(state, 'a') != state) return 0;
  const auto [found, fresh] = run.loops.try_emplace(state, 0);
  if (fresh) {
    uint64_t leaves = 0;
    for (int byte = 0; byte < 256; ++byte) {
      if (run.states.next(state, static_cast<uint8_t>(byte)) != state) leaves |= uint64_t{1} << byte_group(static_cast<uint8_t>(byte));
    }
    found->second = ~leaves;
  }
  return found->second;
}

std::shared_ptr<const TokenMask> Constraint::mask(Run& run, StateId state) const {
  const auto known = run.masks.find(state);
  if (known != run.masks.end()) return known->second;
  auto mask = std::make_shared<TokenMask>(trie_->tokenizer->vocab_size());
  const std::array<uint8_t, 256>& classes = run.states.automaton().byte_class;
  std::vector<StateId> path(size_t{trie_->max_depth} + 1);  // the state before each depth's byte
  path[0] = state;
  StateId looping = kDead;  // the state that `loop` is of
  uint64_t loop = 0;
  const auto allow = [&](uint32_t first, uint32_t last) {
    for (uint32_t t = first; t < last; ++t) mask->allow(trie_->tokens[t]);
  };
  for (uint32_t i = 0; i < trie_->nodes.size();) {
    const TokenTrie::Node node = trie_->nodes[i];
    const StateId to = run.states.next_of_class(path[node.depth], classes[node.byte]);
    if (to == kDead) {
      i = trie_->skip[i];
      continue;
    }
    path[size_t{node.depth} + 1] = to;
    if (to == path[node.depth]) {
      if (to != looping) looping = to, loop = loops(run, to);
      if ((trie_->below[i] & ~loop) == 0) {  // every token below stays in this state
        allow(trie_->first_token[i], trie_->first_token[trie_->skip[i]]);
        i = trie_->skip[i];
        continue;
      }
    }
    if (node.ends_token) allow(trie_->first_token[i], trie_->first_token[i + 1]);
    ++i;
  }
  // An end token whose bytes are text (not every vocabulary marks it as special) is an end all the same.
  for (const int32_t id : ends_) run.states.complete(state) ? mask->allow(id) : mask->forbid(id);
  if ((run.masks.size() + 1) * mask->words.size() * 8 > kMaskBytes) run.masks.clear();
  run.masks.emplace(state, mask);
  return mask;
}

Matcher::Matcher(std::shared_ptr<Constraint> constraint)
    : constraint_(std::move(constraint)), run_(constraint_->run()), state_(run_->states.start()) {}

void Matcher::reset() {
  run_ = constraint_->run();
  state_ = run_->states.start();
  ended_ = false;
}

// Goes over to a new Run when the constraint has one, or this one is full.
void Matcher::refresh() {
  const std::shared_ptr<Constraint::Run>& current = constraint_->run();
  if (current == run_) return;
  state_ = current->states.import(run_->states, state_);
  run_ = current;
}

std::shared_ptr<const TokenMask> Matcher::mask() {
  if (ended_) return std::make_shared<TokenMask>(constraint_->trie().tokenizer->vocab_size());
  refresh();
  return constraint_->mask(*run_, state_);
}

StateId Matcher::after(int32_t token) {
  const Tokenizer& tokenizer = *constraint_->trie().tokenizer;
  if (ended_ || token < 0 || token >= tokenizer.vocab_size() || constraint_->is_end(token)) return kDead;
  if (tokenizer.is_special(token) || tokenizer.bytes(token).empty()) return kDead;
  refresh();
  StateId state = state_;
  for (const char byte : tokenizer.bytes(token)) state = run_->states.next(state, static_cast<uint8_t>(byte));
  return state;
}

bool Matcher::allows(int32_t token) {
  if (!ended_ && constraint_->is_end(token) && run_->states.complete(state_)) return true;
  return after(token) != kDead;
}

void Matcher::accept(int32_t token) {
  if (!ended_ && constraint_->is_end(token) && run_->states.complete(state_)) {
    ended_ = true;
    return;
  }
  const StateId state = after(token);
  if (state == kDead) {
    fail("value", "grammar: token ", token, " is not allowed here", ended_ ? ": the output has ended" : "; sample with the matcher's mask");
  }
  state_ = state;
}

}  // namespace qeng::grammar
