// The one exception type of the engine. Lua sees it as an error object {code=, message=}.
#pragma once
#include <sstream>
#include <stdexcept>
#include <string>

namespace qeng {

// code: a short stable word that programs test: "shape", "dtype", "io", "format", "value", "memory", "closed",
// "unsupported", "network", "interrupted", "internal". message: what was given, what was expected, what to do.
class Error : public std::runtime_error {
 public:
  Error(std::string code_word, const std::string& message) : std::runtime_error(message), code(std::move(code_word)) {}
  std::string code;
};

// fail("shape", "rmsnorm: w is [", n, "], x has ", dim, " columns") throws an Error of the parts, concatenated.
template <class... Parts>
[[noreturn]] void fail(const char* code, const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw Error(code, text.str());
}

}  // namespace qeng
