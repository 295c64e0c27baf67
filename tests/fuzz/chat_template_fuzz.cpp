// Chat templates: the input is a Jinja template, rendered over a conversation. Whatever it says, the answer is text or
// an error of code "template", within the limits of steps and output; another error is a finding.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "bindings/state.h"

namespace {
constexpr const char* kRender = R"(
local jinja = require "qeng.jinja"
return function(text)
  local ok, result = pcall(function()
    return jinja.compile(text) {
      messages = { { role = "system", content = "s" }, { role = "user", content = "hello\n" },
        { role = "assistant", content = "", tool_calls = { { ["function"] = { name = "f", arguments = { x = 1 } } } } } },
      tools = { { type = "function", ["function"] = { name = "f" } } }, add_generation_prompt = true, bos_token = "<s>", eos_token = "</s>",
    }
  end)
  if ok then return type(result) == "string" and "" or "no text" end
  if type(result) == "table" and result.code == "template" then return "" end
  return tostring(type(result) == "table" and result.message or result)
end
)";
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const qeng::LuaState state;
  lua_State* L = state;
  static const bool loaded = luaL_dostring(L, kRender) == 0;
  if (!loaded) {
    std::fprintf(stderr, "%s\n", lua_tostring(L, -1));
    std::abort();
  }
  lua_settop(L, 1);
  lua_pushvalue(L, 1);
  lua_pushlstring(L, reinterpret_cast<const char*>(data), size);
  if (lua_pcall(L, 1, 1, 0) != 0 || lua_objlen(L, -1) > 0) {
    std::fprintf(stderr, "finding: %s\n", lua_tostring(L, -1));
    std::abort();
  }
  lua_settop(L, 1);
  return 0;
}
