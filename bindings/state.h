// The Lua state of the host: libraries, the engine's bindings, and the search path of require.
#pragma once
#include <lua.hpp>
#include <string>

namespace qeng {

class LuaState {
 public:
  // Throws Error("unsupported") for a LuaJIT without GC64, whose memory ends at 2 GB.
  LuaState();
  ~LuaState();
  LuaState(const LuaState&) = delete;
  operator lua_State*() const { return L_; }

 private:
  lua_State* L_;
};

// The text of an embedded file ("scripts/qeng/init.lua", "bindings/api.lua"), or of the file of that name under
// QENG_SCRIPTS (its scripts/ or the folder itself) where that is set. False if there is none.
bool library_file(const std::string& path, std::string* text);

// Runs the function and arguments on the stack, keeping a traceback; on failure leaves the error object and returns
// false.
bool protected_call(lua_State* L, int arguments, int results);
bool in_protected_call();          // of this thread: is there one that would catch an error?
int keep_traceback(lua_State* L);  // its handler of errors
// What to print of the error object on top of the stack, which is popped; code is its code ("lua" for Lua's own
// errors). A traceback is added to errors in code ("lua", "internal"), and to all with QENG_TRACE set.
std::string error_report(lua_State* L, std::string* code);

}  // namespace qeng
