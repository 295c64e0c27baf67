#include "engine/grammar/states.h"

#include <algorithm>
#include <unordered_set>

#include "kernels/error.h"

namespace qeng::grammar {
namespace {
constexpr size_t kFew = 24;  // ways that are looked through rather than hashed

uint64_t key_of(uint32_t a, uint32_t b) { return uint64_t{a} << 32 | b; }
}  // namespace

States::States(std::shared_ptr<const Automaton> automaton)
    : automaton_(std::move(automaton)), classes_(automaton_->class_byte.size()) {
  stacks_.push_back({0, 0, 0});
  intern({});  // kDead
  work_.assign(1, {automaton_->start, 0});
  start_ = close();
}

uint32_t States::push(uint32_t to, uint32_t parent) {
  const auto [found, fresh] = stack_of_.try_emplace(key_of(to, parent), static_cast<uint32_t>(stacks_.size()));
  if (fresh) stacks_.push_back({to, parent, stacks_[parent].depth + 1}), size_ += 8;
  return found->second;
}

void States::spend(size_t ways) {
  if (ways > work_left_) fail("value", "the grammar is too ambiguous: what may come next takes too long to find");
  work_left_ -= ways;
}

StateId States::close() {
  Set set;
  std::unordered_set<uint64_t> seen;                              // of work_, once it is too long to look through
  const auto fits = [&](uint32_t state_of_way, uint32_t stack) {  // it can be ended within the limit of depth
    const uint64_t depth = uint64_t{stacks_[stack].depth} + automaton_->states[state_of_way].depth;
    return depth <= static_cast<uint64_t>(automaton_->max_depth);
  };
  const auto add = [&](Way way) {
    if (!fits(way.state, way.stack)) return;
    if (work_.size() < kFew) {
      if (std::find(work_.begin(), work_.end(), way) != work_.end()) return;
    } else {
      if (seen.empty())
        for (const Way& known : work_) seen.insert(key_of(known.state, known.stack));
      if (!seen.insert(key_of(way.state, way.stack)).second) return;
    }
    work_.push_back(way);
  };
  for (size_t i = 0; i < work_.size(); ++i) {
    const Way way = work_[i];
    const AutomatonState& state = automaton_->states[way.state];
    if (!state.edges.empty()) set.ways.push_back(way);
    if (state.final) {
      if (way.stack == 0)
        set.complete = true;
      else
        add({stacks_[way.stack].to, stacks_[way.stack].parent});
    }
    for (const uint32_t to : state.moves) add({to, way.stack});
    for (const RuleCall& call : state.calls) {
      if (automaton_->states[call.to].only_ends)
        add({call.start, way.stack});
      else if (fits(call.to, way.stack))
        add({call.start, push(call.to, way.stack)});
    }
    if (work_.size() > kMaxClosure || set.ways.size() > kMaxWays) {
      fail("value", "the grammar is too ambiguous: there are over ", set.ways.size(), " ways to read the text so far");
    }
  }
  spend(work_.size());
  std::sort(set.ways.begin(), set.ways.end());
  set.ways.erase(std::unique(set.ways.begin(), set.ways.end()), set.ways.end());
  return intern(std::move(set));
}

StateId States::intern(Set set) {
  uint64_t hash = set.complete ? 0x9E3779B97F4A7C15 : 0;
  for (const Way& way : set.ways) hash = (hash ^ key_of(way.state, way.stack)) * 0xD6E8FEB86659FD93, hash ^= hash >> 32;
  const auto [begin, end] = by_hash_.equal_range(hash);
  for (auto i = begin; i != end; ++i) {
    const Set& known = sets_[i->second];
    if (known.complete == set.complete && known.ways == set.ways) return i->second;
  }
  size_ += set.ways.size() + classes_ + 16;
  if (size_ > kLimit)
    fail("value", "the grammar needs too many states for one token: it is too ambiguous, or its repetitions too long");
  const auto id = static_cast<StateId>(sets_.size());
  const bool dead = set.ways.empty() && !set.complete;
  sets_.push_back(std::move(set));
  next_.resize(next_.size() + classes_, dead ? kDead : kUnknown);
  by_hash_.emplace(hash, id);
  return id;
}

StateId States::make_next(StateId state, uint8_t byte_class) {
  const uint8_t byte = automaton_->class_byte[byte_class];
  work_.clear();
  spend(sets_[state].ways.size() / 8);  // to look at a way's edges takes that much less than to follow it
  for (const Way& way : sets_[state].ways) {
    for (const ByteEdge& edge : automaton_->states[way.state].edges) {
      if (edge.first <= byte && byte <= edge.last) work_.push_back({edge.to, way.stack});
    }
  }
  const StateId to = close();
  next_[state * classes_ + byte_class] = to;
  return to;
}

StateId States::import(const States& other, StateId state) {
  Set set;
  set.complete = other.sets_[state].complete;
  std::vector<uint32_t> frames;
  for (const Way& way : other.sets_[state].ways) {
    frames.clear();
    for (uint32_t frame = way.stack; frame != 0; frame = other.stacks_[frame].parent)
      frames.push_back(other.stacks_[frame].to);
    spend(frames.size() + 1);
    uint32_t stack = 0;
    for (size_t i = frames.size(); i-- > 0;) stack = push(frames[i], stack);
    set.ways.push_back({way.state, stack});
  }
  std::sort(set.ways.begin(), set.ways.end());
  return intern(std::move(set));
}

}  // namespace qeng::grammar
