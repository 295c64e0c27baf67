// The read-eval-print loop: line editing with history and completion on a terminal, plain lines otherwise.
#pragma once
#include <lua.hpp>

namespace qeng {

int run_repl(lua_State* L);  // until end of input; the exit status

// What is run before the prompt comes (qeng -i FILE) is run as if it were typed: prepare_repl(), then run_at_prompt()
// with the function and its arguments on the stack, which the results replace; false: the error does. Code that was
// paused (console/prompt.lua) has no results yet. is_file: its locals become globals.
void prepare_repl(lua_State* L);
bool run_at_prompt(lua_State* L, int arguments, bool is_file);

}  // namespace qeng
