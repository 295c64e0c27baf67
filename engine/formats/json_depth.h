// Refuses JSON of others that is nested so deeply that what calls itself for each level (nlohmann's dump and
// destructor) would run out of stack.
#pragma once
#include <algorithm>
#include <string>
#include <string_view>

#include "kernels/error.h"

namespace qeng {

constexpr int kJsonDepth = 64;     // of brackets; real files nest less than ten deep
constexpr int kRecordDepth = 128;  // of a record of data, and of what Lua reads and writes as JSON

// Whether brackets outside strings nest deeper than so many levels. The text need not be well-formed.
inline bool json_is_deeper(std::string_view text, int levels) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (in_string && c == '\\') ++i;
    if (c == '"') in_string = !in_string;
    if (in_string) continue;
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (depth > levels) return true;
  }
  return false;
}

// Error("format") that names the file.
inline void check_json_depth(const std::string& path, std::string_view text, int levels = kJsonDepth) {
  if (json_is_deeper(text, levels)) fail("format", path, ": nested over ", levels, " levels deep");
}

}  // namespace qeng
