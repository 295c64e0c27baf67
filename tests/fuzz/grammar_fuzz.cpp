// Grammars in GBNF: parsed, compiled, and run for a few hundred bytes, of the input itself and chosen among what is
// allowed.
#include "engine/grammar/gbnf.h"
#include "tests/fuzz/automaton_walk.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace qeng;
  using namespace qeng::grammar;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto automaton = std::make_shared<const Automaton>(compile(parse_gbnf(text), true));
    States states(automaton);
    states.limit_work(fuzz::kMostWork);
    StateId state = states.start();
    for (size_t i = 0; i < size && i < 300; ++i) state = states.next(state, data[i]);
    fuzz::walk(automaton, text, 300);
  } catch (const Error&) {
  }
  return 0;
}
