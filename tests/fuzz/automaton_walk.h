// A walk along an automaton, the same for the same input. What is begun has to be possible to end: a state that is
// neither whole nor goes on aborts, as does one that differs after it is imported into another States.
#pragma once
#include <cstdlib>
#include <string>
#include <string_view>

#include "engine/grammar/states.h"
#include "kernels/error.h"

namespace qeng::fuzz {

constexpr size_t kMostWork = 1'000'000;  // of an input, as a matcher allows for one token

// The longest whole text on the way, "" if there was none; the second half of the steps prefers what closes.
inline std::string walk(const std::shared_ptr<const grammar::Automaton>& automaton, std::string_view seed, int steps) {
  using namespace grammar;
  States states(automaton), other(automaton);
  states.limit_work(kMostWork);
  other.limit_work(kMostWork);
  StateId state = states.start();
  std::string text, whole;
  uint64_t random = 0x9E3779B97F4A7C15;
  for (const char c : seed) random = (random ^ static_cast<uint8_t>(c)) * 0x100000001B3;
  for (int step = 0; step < steps; ++step) {
    if (states.complete(state)) whole = text;
    if (!states.goes_on(state)) {
      if (!states.complete(state)) std::abort();
      break;
    }
    if (step % 32 == 0) {
      const StateId twin = other.import(states, state);
      if (other.complete(twin) != states.complete(state) || other.goes_on(twin) != states.goes_on(state)) std::abort();
    }
    std::string bytes;
    for (const uint8_t byte : automaton->class_byte) {
      if (states.next(state, byte) != kDead) bytes += static_cast<char>(byte);
    }
    if (bytes.empty()) std::abort();
    random = random * 6364136223846793005 + 1442695040888963407;
    char byte = bytes[(random >> 33) % bytes.size()];
    if (step > steps / 2) {
      const size_t closing = bytes.find_first_of("\"]}");
      if (closing != std::string::npos) byte = bytes[closing];
    }
    state = states.next(state, static_cast<uint8_t>(byte));
    text += byte;
  }
  return whole;
}

}  // namespace qeng::fuzz
