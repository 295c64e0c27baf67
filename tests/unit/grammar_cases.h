// What the tests of grammars and of schemas share.
#pragma once
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>

#include "engine/grammar/states.h"
#include "kernels/error.h"
#include "tests/catch.h"

namespace qeng::grammar {

using Random = std::mt19937;
inline int below(Random& r, int n) { return static_cast<int>(r() % static_cast<unsigned>(n)); }

inline std::string failure(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.code + ": " + error.what();
  }
  return "accepted";
}

inline bool matches(const std::shared_ptr<const Automaton>& automaton, std::string_view text) {
  States states(automaton);
  StateId state = states.start();
  for (const char c : text) state = states.next(state, static_cast<uint8_t>(c));
  return states.complete(state);
}

}  // namespace qeng::grammar
