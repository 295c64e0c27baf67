// LuaJIT's compiler may cut the upper half off the address that its own `next` returns (LuaJIT issue 829: x64 before April
// 2022, which Debian 12 has), and a loop over pairs() crashes then, rarely. Where the LuaJIT is such a one, pairs and next
// are functions here that it does not compile: loops over pairs() are interpreted, all else as before.
#pragma once
#include <lua.hpp>

namespace qeng {

void avoid_compiled_next(lua_State* L);

}  // namespace qeng
