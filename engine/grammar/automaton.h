// A pushdown automaton over bytes: what rules (expression.h) compile to. Characters are cut into their UTF-8 bytes, so
// a text that ends inside a character is a state like any other.
//
// Each rule has a start and a final state of its own. A state has edges (a byte within [first, last] leads to `to`),
// calls (whatever the rule that starts at `start` matches leads to `to`) and empty moves. compile() refuses rules that
// never consume before they call themselves, and removes what cannot be finished, so that whatever is begun by a state
// can be ended.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "engine/grammar/expression.h"

namespace qeng::grammar {

struct ByteEdge {
  uint8_t first, last;
  uint32_t to;
};
struct RuleCall {
  uint32_t start, to;
};
constexpr uint32_t kEndless = UINT32_MAX;
struct AutomatonState {
  std::vector<ByteEdge> edges;
  std::vector<RuleCall> calls;
  std::vector<uint32_t> moves;
  bool final = false;         // of its rule
  bool only_ends = false;     // nothing leaves it but the end of its rule: a call that leads here needs no return
  uint32_t depth = kEndless;  // of returns needed at least, at once, to get to the end of its rule
};

struct Automaton {
  std::vector<AutomatonState> states;
  uint32_t start = 0;
  int max_depth = 0;  // of calls to return from: output that would need more, now or to be ended, is not allowed
  std::array<uint8_t, 256> byte_class{};  // bytes that no edge tells apart
  std::vector<uint8_t> class_byte;        // a byte of each class
};

// strict: a rule that cannot end is an error, as in a grammar someone wrote; otherwise only the root's is, and the
// parts that need such a rule are left out. Error("format"): left recursion, no end; over kMaxStates states, or as many
// parts that take as long.
Automaton compile(const Rules& rules, bool strict);
constexpr size_t kMaxStates = 400'000;  // about 100 MB in the worst case; a schema of a thousand fields has 20 000

}  // namespace qeng::grammar
