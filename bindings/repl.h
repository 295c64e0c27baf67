// The read-eval-print loop: line editing with history and completion on a terminal, plain lines otherwise.
#pragma once
#include <lua.hpp>

namespace qeng {

int run_repl(lua_State* L);  // until end of input; the exit status

}  // namespace qeng
