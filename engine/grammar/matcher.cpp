#include "engine/grammar/matcher.h"

#include <algorithm>
#include <set>

#include "engine/grammar/utf8_ranges.h"
#include "kernels/error.h"

namespace qeng::grammar {
namespace {
constexpr size_t kMaskBytes = 64 << 20;  // of masks kept: 3,400 of a vocabulary of 150,000
constexpr int32_t kPlainLength = 16;     // characters ahead that are looked at: few tokens have more
constexpr size_t kMaxWork = 1'000'000;   // ways followed for a token or a mask: 0.2 s, and twice a choice of 20,000
constexpr uint32_t kWorthPlain = 24;     // nodes of a subtree, below which walking it is cheaper
}  // namespace

Constraint::Constraint(std::shared_ptr<const Automaton> automaton, std::shared_ptr<const TokenTrie> trie,
                       std::vector<int32_t> ends, std::vector<int32_t> spoken)
    : automaton_(std::move(automaton)),
      trie_(std::move(trie)),
      ends_(std::move(ends)),
      spoken_(std::move(spoken)),
      run_(std::make_shared<Run>(automaton_)) {
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
bool Constraint::is_spoken(int32_t token) const {
  return std::find(spoken_.begin(), spoken_.end(), token) != spoken_.end();
}

// Plain without its length.
Constraint::Run::Plain Constraint::plain_step(Run& run, StateId state) {
  Run::Plain step;
  step.to = run.states.next(state, 'a');
  step.stepped = true;
  if (step.to == kDead) return step;
  uint64_t leaves = uint64_t{1} << kIllFormedGroup;
  for (uint8_t byte = 0; byte < 0x80; ++byte) {
    if (run.states.next(state, byte) != step.to) leaves |= uint64_t{1} << ascii_group(byte);
  }
  // Every character of several bytes, by bytes that neither UTF-8 nor the automaton tells apart.
  std::set<std::pair<StateId, Utf8State>> seen = {{state, kUtf8Whole}};
  std::vector<std::pair<StateId, Utf8State>> work(seen.begin(), seen.end());
  const std::array<uint8_t, 256>& classes = run.states.automaton().byte_class;
  while (!work.empty() && !(leaves >> kCharactersGroup & 1)) {
    const auto [from, utf8] = work.back();
    work.pop_back();
    Utf8State before = kUtf8Bad;
    for (size_t byte = 0x80; byte < 0x100; ++byte) {
      const Utf8State then = utf8_next(utf8, static_cast<uint8_t>(byte));
      const bool same = then == before && classes[byte] == classes[byte - 1];
      before = then;
      if (then == kUtf8Bad || same) continue;
      const StateId next = run.states.next_of_class(from, classes[byte]);
      if (then == kUtf8Whole ? next != step.to : next == kDead)
        leaves |= uint64_t{1} << kCharactersGroup;
      else if (then != kUtf8Whole && seen.insert({next, then}).second)
        work.emplace_back(next, then);
    }
  }
  step.groups = ~leaves;
  return step;
}

const Constraint::Run::Plain& Constraint::plain(Run& run, StateId state) const {
  const auto at = [&](StateId s) -> Run::Plain& {
    if (run.plain.size() <= s) run.plain.resize(s + 1 + s / 2);
    return run.plain[s];
  };
  if (at(state).length >= 0) return at(state);
  int32_t length = 0;
  for (StateId s = state; length < kPlainLength;) {
    if (!at(s).stepped) {
      const Run::Plain step = plain_step(run, s);
      at(s) = step;
    }
    const Run::Plain here = at(s);
    if (here.to == kDead || (at(state).groups & ~here.groups) != 0) break;
    ++length;
    if (here.to == s)
      length = INT32_MAX;
    else
      s = here.to;
  }
  at(state).length = length;
  return at(state);
}

std::shared_ptr<const TokenMask> Constraint::mask(Run& run, StateId state) const {
  const auto known = run.masks.find(state);
  if (known != run.masks.end()) return known->second;
  auto mask = std::make_shared<TokenMask>(trie_->tokenizer->vocab_size());
  const std::array<uint8_t, 256>& classes = run.states.automaton().byte_class;
  std::vector<StateId> path(size_t{trie_->max_depth} + 1);  // the state before each depth's byte
  path[0] = state;
  std::vector<Run::Plain> plain_at(path.size());
  plain_at[0] = plain(run, state);
  const auto allow = [&](uint32_t first, uint32_t last) {
    for (uint32_t t = first; t < last; ++t) mask->allow(trie_->tokens[t]);
  };
  for (uint32_t i = 0; i < trie_->nodes.size();) {
    const TokenTrie::Node node = trie_->nodes[i];
    const Run::Plain& here = plain_at[node.depth];
    if (here.length > 0 && (trie_->groups[i] & ~here.groups) == 0 && trie_->characters[i] <= here.length) {
      allow(trie_->first_token[i], trie_->first_token[trie_->skip[i]]);  // all of the subtree is plain text
      i = trie_->skip[i];
      continue;
    }
    const StateId to = run.states.next_of_class(path[node.depth], classes[node.byte]);
    if (to == kDead) {
      i = trie_->skip[i];
      continue;
    }
    if (node.ends_token) allow(trie_->first_token[i], trie_->first_token[i + 1]);
    path[size_t{node.depth} + 1] = to;
    if (to == path[node.depth])
      plain_at[size_t{node.depth} + 1] = here;
    else if (trie_->skip[i] - i >= kWorthPlain)
      plain_at[size_t{node.depth} + 1] = plain(run, to);
    else
      plain_at[size_t{node.depth} + 1] = {};
    ++i;
  }
  for (const int32_t id : trie_->specials) {
    if (!is_spoken(id)) mask->forbid(id);
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

// Goes over to a new Run when the constraint has one, or this one is full. What follows is work for one token.
void Matcher::refresh() {
  const std::shared_ptr<Constraint::Run>& current = constraint_->run();
  current->states.limit_work(kMaxWork);
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
  if (tokenizer.is_special(token) && !constraint_->is_spoken(token)) return kDead;
  if (tokenizer.bytes(token).empty()) return kDead;
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
    fail("value", "grammar: token ", token, " is not allowed here",
         ended_ ? ": the output has ended" : "; sample with the matcher's mask");
  }
  state_ = state;
}

}  // namespace qeng::grammar
