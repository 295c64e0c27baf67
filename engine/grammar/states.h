// A pushdown automaton run over bytes, made deterministic as it goes: a state here is the set of all ways to have
// matched the bytes so far (a state of the automaton and the calls to return from, each), and moving along a byte of
// which the result is known is one look-up. Not for several threads at once.
#pragma once
#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/grammar/automaton.h"

namespace qeng::grammar {

using StateId = uint32_t;
constexpr StateId kDead = 0;  // the bytes so far begin nothing that the grammar matches

class States {
 public:
  explicit States(std::shared_ptr<const Automaton> automaton);

  StateId start() const { return start_; }
  StateId next(StateId state, uint8_t byte) { return next_of_class(state, automaton_->byte_class[byte]); }
  StateId next_of_class(StateId state, uint8_t byte_class) {
    const StateId known = next_[state * classes_ + byte_class];
    return known != kUnknown ? known : make_next(state, byte_class);
  }
  bool complete(StateId state) const { return sets_[state].complete; }  // the bytes so far are a whole match
  bool goes_on(StateId state) const { return !sets_[state].ways.empty(); }

  // The state of these automaton runs in another States of the same automaton; used to start anew when this one is
  // full.
  StateId import(const States& other, StateId state);
  bool full() const { return size_ > kFull; }
  // Until the next call, following more than so many ways is Error("value"); at first there is no such limit.
  void limit_work(size_t ways) { work_left_ = ways; }
  const Automaton& automaton() const { return *automaton_; }

 private:
  static constexpr StateId kUnknown = UINT32_MAX;
  // Elements of ways and transitions: 4 M are some 30 MB. Between full and the limit there is room for any one mask of
  // an ordinary grammar; one that passes the limit within a mask is refused.
  static constexpr size_t kFull = 4'000'000, kLimit = 32'000'000, kMaxWays = 50'000, kMaxClosure = 400'000;

  struct Way {
    uint32_t state, stack;
    auto operator<=>(const Way&) const = default;
  };
  struct Set {
    std::vector<Way> ways;  // sorted; only those whose state has edges
    bool complete = false;
  };
  struct Frame {
    uint32_t to, parent, depth;
  };

  StateId make_next(StateId state, uint8_t byte_class);
  void spend(size_t ways);
  uint32_t push(uint32_t to, uint32_t parent);
  StateId close();  // of work_: follows calls, moves and ends; the set found, or a new one
  StateId intern(Set set);

  std::shared_ptr<const Automaton> automaton_;
  const size_t classes_;
  std::vector<Set> sets_;
  std::vector<StateId> next_;  // [state, class]
  std::unordered_multimap<uint64_t, StateId> by_hash_;
  std::vector<Frame> stacks_;  // frame 0: nothing to return from
  std::unordered_map<uint64_t, uint32_t> stack_of_;
  std::vector<Way> work_;
  size_t size_ = 0, work_left_ = SIZE_MAX;
  StateId start_;
};

}  // namespace qeng::grammar
