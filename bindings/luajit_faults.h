// What LuaJIT's compiler does wrong, and how it is avoided:
// - It may cut the upper half off the address that its own `next` returns (LuaJIT issue 829: x64 before April 2022, which
//   Debian 12 has), and a loop over pairs() crashes then, rarely. Where the LuaJIT is such a one, pairs and next are
//   functions here that it does not compile: loops over pairs() are interpreted, all else as before.
// - On arm64 before 2023 (Debian 12's as well) it makes one fused multiply-add of a product and a sum, which rounds once
//   where its interpreter rounds twice: a number would depend on whether its loop had been compiled yet. Fusing is off there.
#pragma once
#include <lua.hpp>

namespace qeng {

void avoid_luajit_faults(lua_State* L);

}  // namespace qeng
