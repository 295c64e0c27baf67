// Lua values from and to JSON text, for bindings whose engine objects hold JSON.
#pragma once
#include <lua.hpp>
#include <string>

namespace qeng {

// Error("format") with line and column. ordered: an object's metatable holds its keys in the text's order, in __keys.
// exact: floats without a fraction and integers beyond 2^53 are tables {value =, digits = of an integer} whose
// metatable has json_number. most: arrays and objects.
void push_json(lua_State* L, const std::string& text, bool ordered = false, bool exact = false,
               int64_t most = INT64_MAX);
struct JsonStyle {
  bool pretty = false;
  bool replace = false;  // bytes that are not UTF-8 become U+FFFD, else they are an error
  bool ordered = false;  // keys as an object's __keys lists them, then the others sorted; else all sorted
};
// Error("value") names where in the value.
std::string json_text(lua_State* L, int index, const JsonStyle& style = {});

}  // namespace qeng
