// JSON schemas: compiled, and run for a few hundred bytes; a text that is whole has to be JSON.
#include <nlohmann/json.hpp>

#include "engine/grammar/schema.h"
#include "tests/fuzz/automaton_walk.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace qeng;
  using namespace qeng::grammar;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto automaton = std::make_shared<const Automaton>(compile(schema_rules(text), false));
    const std::string whole = fuzz::walk(automaton, text, 400);
    if (!whole.empty() && !nlohmann::json::accept(whole)) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
