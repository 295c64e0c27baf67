// A span of time as Lua has it: of operations (q.timeline), and of what ranks exchange.
#pragma once
#include "bindings/lua.h"
#include "kernels/clock.h"

namespace qeng {

// {name, begin, seconds}; begin is of q.time.
inline void push_span(lua_State* L, const Span& span) {
  lua_createtable(L, 0, 4);
  lua::set_field(L, "name", span.name);
  lua::set_field(L, "begin", span.begin);
  lua::set_field(L, "seconds", span.end - span.begin);
}

}  // namespace qeng
