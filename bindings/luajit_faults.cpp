#include "bindings/luajit_faults.h"

#include "kernels/error.h"

namespace qeng {
namespace {
// Named as what they stand for, so that errors read the same.
constexpr const char* kNext = R"lua(
  if jit.arch ~= "x64" or not jit.version:find("2.1.0-beta3", 1, true) then return end
  local builtin, pairs_of = next, pairs
  local function next(t, k)
    if type(t) ~= "table" then
      error(("bad argument #1 to 'next' (table expected, got %s)"):format(t == nil and "nil" or type(t)), 2)
    end
    return builtin(t, k)
  end
  jit.off(next)
  local function pairs(t)
    if type(t) ~= "table" then
      local meta = debug.getmetatable(t)
      if not (meta and meta.__pairs) then
        error(("bad argument #1 to 'pairs' (table expected, got %s)"):format(t == nil and "nil" or type(t)), 2)
      end
    end
    local step, state, first = pairs_of(t)
    return step == builtin and next or step, state, first
  end
  _G.next, _G.pairs = next, pairs
)lua";
// The option that is of these instructions alone came when they were no longer the default. A LuaJIT without its compiler
// has no options.
constexpr const char* kFused = R"lua(
  local options = package.loaded["jit.opt"]
  if jit.arch == "arm64" and options and not pcall(options.start, "-fma") then options.start("-fuse") end
)lua";
}  // namespace

void avoid_luajit_faults(lua_State* L) {
  for (const char* chunk : {kNext, kFused})
    if (luaL_loadstring(L, chunk) != 0 || lua_pcall(L, 0, 0, 0) != 0)
      fail("internal", "a fault of LuaJIT's: ", lua_tostring(L, -1));
}

}  // namespace qeng
