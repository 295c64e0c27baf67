#include "engine/convert/roles.h"

#include <map>
#include <string>

#include "bindings/lua.h"
#include "bindings/state.h"
#include "tests/catch.h"

using namespace qeng;

TEST_CASE("roles: the converter and chat_records.lua know the same names, for the same speakers") {
  LuaState L;
  REQUIRE(luaL_dostring(L, "return require('qeng.chat.records').roles") == 0);
  std::map<std::string, std::string> theirs;
  for (lua_pushnil(L); lua_next(L, 1) != 0; lua_pop(L, 1)) theirs[lua_tostring(L, -2)] = lua_tostring(L, -1);
  std::map<std::string, std::string> ours;
  for (const auto& [name, role] : kRoles) ours[std::string(name)] = role;
  CHECK(ours == theirs);
  CHECK(ours.size() == std::size(kRoles));
}

TEST_CASE("roles: capitals do not matter, and what is not known has no role") {
  CHECK(role_of("Assistant") == "assistant");
  CHECK(role_of("FUNCTION_call") == "calls");
  for (const char* speaker : {"", "alien", "user ", "use", "users", "\xc3\x9cser"}) CHECK(role_of(speaker).empty());
}
