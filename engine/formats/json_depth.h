// Refuses JSON of others that is nested so deeply that what calls itself for each level (nlohmann's dump and
// destructor) would run out of stack.
#pragma once
#include <algorithm>
#include <string>
#include <string_view>

#include "kernels/error.h"

namespace qeng {

constexpr int kJsonDepth = 64;  // of brackets; real files nest less than ten deep

// Error("format") naming the file where brackets outside strings nest deeper. The text need not be well-formed.
inline void check_json_depth(const std::string& path, std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (in_string && c == '\\') ++i;
    if (c == '"') in_string = !in_string;
    if (in_string) continue;
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (depth > kJsonDepth) fail("format", path, ": nested over ", kJsonDepth, " levels deep");
  }
}

}  // namespace qeng
