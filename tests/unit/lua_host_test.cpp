#include <functional>

#include "bindings/lua.h"
#include "bindings/state.h"
#include "tests/catch.h"

namespace {
// A class with a count of the living, to see what Lua keeps.
struct Probe {
  explicit Probe(int v) : value(v) { ++living; }
  ~Probe() { --living; }
  int value;
  static inline int living = 0;
};
struct Other {};
}  // namespace
QENG_LUA_CLASS(Probe, "Probe")
QENG_LUA_CLASS(Other, "Other")

using namespace qeng;
using lua::Call;
using lua::fn;

namespace {
std::function<double(double)> kept;  // a function of a recipe that the engine holds

int make(Call& call) { return call.push(std::make_shared<Probe>(call.arg<int>(1))); }
int other(Call& call) { return call.push(std::make_shared<Other>()); }
int value(Call& call) { return call.push(call.self<Probe>()->value); }
int sum(Call& call) {
  return call.push(call.arg<std::shared_ptr<Probe>>(1)->value + call.arg<std::shared_ptr<Probe>>(2)->value);
}
int typed(Call& call) {
  call.arg<std::vector<int64_t>>(1, {});
  call.arg<std::map<std::string, double>>(2, {});
  call.arg<uint8_t>(3, uint8_t{0});
  call.arg<DType>(4, DType::f32);
  lua::Options opt(call, 5, {"rank", "alpha"});
  return call.push(opt.get<int>("rank", 7), opt.get<double>("alpha", 0.5));
}
int throwing(Call& call) {
  const auto what = call.arg<std::string>(1);
  const Probe guard(0);
  if (what == "engine") fail("shape", "w is [3]");
  if (what == "memory") throw std::bad_alloc();
  if (what == "lua") luaL_error(call.L, "from lua_error");
  throw std::runtime_error("unexpected");
}
int keep(Call& call) {
  const auto function = call.arg<lua::Ref>(1);
  kept = [function](double x) { return function.call<double>(x); };
  return 0;
}
int call_kept(Call& call) {
  const Probe guard(0);
  return call.push(kept(call.arg<double>(1)));
}

struct Host {
  LuaState L;
  Host() {
    lua::functions(L, "test",
                   {{"make", fn<make>},
                    {"other", fn<other>},
                    {"typed", fn<typed>},
                    {"throwing", fn<throwing>},
                    {"keep", fn<keep>},
                    {"call_kept", fn<call_kept>}});
    lua::methods<Probe>(L, {{"value", fn<value>}, {"__add", fn<sum>}});
    lua::methods<Other>(L, {});
  }
  // The chunk's first result as text; of an error "code|message|where".
  std::string run(const std::string& code) {
    const std::string chunk = "local q = require 'qeng.core' local t = q.test " + code;
    std::string text;
    if (luaL_loadbuffer(L, chunk.data(), chunk.size(), "@recipe.lua") != 0 || lua_pcall(L, 0, 1, 0) != 0) {
      if (!lua_istable(L, -1)) text = "lua|" + std::string(lua_tostring(L, -1));
      for (const char* key : {"code", "message", "where"}) {
        if (!lua_istable(L, -1)) break;
        lua_getfield(L, -1, key);
        text += (text.empty() ? "" : "|") + std::string(lua_tostring(L, -1));
        lua_pop(L, 1);
      }
    } else {
      lua_getglobal(L, "tostring");
      lua_insert(L, -2);
      lua_call(L, 1, 1);
      text = lua_tostring(L, -1);
    }
    lua_settop(L, 0);
    return text;
  }
};
}  // namespace

TEST_CASE("lua: objects live as long as Lua or C++ holds them") {
  {
    Host host;
    REQUIRE(host.run("kept = t.make(3) return kept:value()") == "3");
    REQUIRE(Probe::living == 1);
    REQUIRE(host.run("return kept + t.make(4)") == "7");
    REQUIRE(host.run("kept = nil collectgarbage() collectgarbage()") == "nil");
    REQUIRE(Probe::living == 0);
    host.run("kept = t.make(1)");
  }
  REQUIRE(Probe::living == 0);
}

TEST_CASE("lua: wrong arguments are refused by position, type and line of the recipe") {
  Host host;
  REQUIRE(host.run("\n\nt.make('x')") ==
          "value|bad argument #1 to 'test.make': integer expected, got string|recipe.lua:3");
  REQUIRE(host.run("t.make()") == "value|bad argument #1 to 'test.make': integer expected, got no value|recipe.lua:1");
  REQUIRE(host.run("t.make(1.5)") == "value|bad argument #1 to 'test.make': integer expected, got 1.5|recipe.lua:1");
  REQUIRE(host.run("t.make(0/0)").find("integer expected, got") != std::string::npos);
  REQUIRE(host.run("t.make(2^40)").find("range") != std::string::npos);
  REQUIRE(host.run("return t.make(1) + t.other()") ==
          "value|bad argument #2 to 'Probe.__add': Probe expected, got Other|recipe.lua:1");
  REQUIRE(host.run("t.make(1).value()") ==
          "value|'Probe:value' is a method of Probe: call it with a colon|recipe.lua:1");
  REQUIRE(host.run("t.make(1).value(t.other())").find("call it with a colon") != std::string::npos);
  REQUIRE(host.run("t.typed({1, 'x'})").find("element 2: integer expected, got string") != std::string::npos);
  REQUIRE(host.run("t.typed(nil, {a = 1, b = {}})").find("'b': number expected, got table") != std::string::npos);
  REQUIRE(host.run("t.typed(nil, nil, 256)").find("range 0 .. 255") != std::string::npos);
  REQUIRE(host.run("t.typed(nil, nil, nil, 'f33')").rfind("dtype|", 0) == 0);
}

TEST_CASE("lua: options have defaults, are checked, and an unknown one is refused with what was meant") {
  Host host;
  REQUIRE(host.run("return t.typed()") == "7");
  REQUIRE(host.run("return (select(2, t.typed(nil, nil, nil, nil, {alpha = 2})))") == "2");
  REQUIRE(host.run("t.typed(nil, nil, nil, nil, {rnk = 2})") ==
          "value|'test.typed' has no option 'rnk'; did you mean 'rank'?|recipe.lua:1");
  REQUIRE(host.run("t.typed(nil, nil, nil, nil, {rank = 'x'})") ==
          "value|bad option 'rank' of 'test.typed': integer expected, got string|recipe.lua:1");
  REQUIRE(host.run("t.typed(nil, nil, nil, nil, 3)").find("table of options expected") != std::string::npos);
}

TEST_CASE("lua: C++ exceptions become error objects, and everything that was on the C++ stack is destroyed") {
  Host host;
  REQUIRE(host.run("t.throwing('engine')") == "shape|w is [3]|recipe.lua:1");
  REQUIRE(host.run("t.throwing('memory')") == "memory|test.throwing: out of memory|recipe.lua:1");
  REQUIRE(host.run("t.throwing('other')") == "internal|test.throwing: unexpected|recipe.lua:1");
  REQUIRE(host.run("t.throwing('lua')").find("from lua_error") != std::string::npos);
  REQUIRE(Probe::living == 0);
  REQUIRE(host.run("local _, e = q.try(function() t.throwing('engine') end) return tostring(e)") ==
          "recipe.lua:1: w is [3]");
  REQUIRE(host.run("local _, e = q.try(error, 'text') return e.code .. e.message") == "luatext");
  REQUIRE(host.run("return select('#', q.try(function() return 1, nil, nil end))") == "3");
}

TEST_CASE("lua: an engine that calls the recipe's function passes its error through unchanged") {
  Host host;
  REQUIRE(host.run("t.keep(function(x) return 2 * x end) return t.call_kept(21)") == "42");
  REQUIRE(host.run("local mine = {code = 'mine', message = 'm'} t.keep(function() error(mine) end)"
                   "local ok, e = pcall(t.call_kept, 1) return e == mine") == "true");
  REQUIRE(host.run("t.keep(function(x) return t.throwing('engine') end) t.call_kept(1)").rfind("shape|w is [3]", 0) ==
          0);
  REQUIRE(host.run("t.keep(function() return 'x' end) t.call_kept(1)") ==
          "value|result of the function: number expected, got string|recipe.lua:1");
  REQUIRE(host.run("t.keep(function() return 5 end) return coroutine.wrap(function() return t.call_kept(1) end)()") ==
          "5");
  REQUIRE(Probe::living == 0);
  REQUIRE_THROWS_AS(kept(1), Error);  // nothing runs: no state to call on
}

TEST_CASE("lua: a reference may outlive the Lua state") {
  {
    Host host;
    host.run("t.keep(function() return 1 end)");
  }
  REQUIRE_THROWS_AS(kept(1), Error);
  kept = nullptr;
}

TEST_CASE("lua: references that a coroutine made, the first of all, may outlive it") {
  Host host;
  REQUIRE(
      host.run(
          "coroutine.wrap(function() t.keep(function(x) return 2 * x end) q.try(q.try, error, 'text') end)()"
          "collectgarbage() collectgarbage() for i = 1, 100 do coroutine.wrap(function() end)() end collectgarbage()"
          "return t.call_kept(21)") == "42");
  REQUIRE(host.run("local _, e = q.try(q.try, error, 'text') collectgarbage() t.keep(function() return 5 end) return "
                   "t.call_kept(1)") == "5");
  kept = nullptr;
}

TEST_CASE("lua: pairs and next read a table as ever, and are not compiled where LuaJIT compiles them wrongly") {
  LuaState state;
  lua_State* L = state;
  REQUIRE(luaL_dostring(L, R"(
    local t, sum, keys = { 1, 2, x = 3, y = 4 }, 0, 0
    for _ = 1, 200 do
      for k, v in pairs(t) do sum, keys = sum + v, keys + 1 end
    end
    local first = next({ 7 })
    local _, said = pcall(function() for _ in pairs(nil) do end end)
    local wrong = jit.arch == "x64" and jit.version:find("2.1.0-beta3", 1, true)
    local step = pairs({})
    local compiled = require("jit.util").funcinfo(step).ffid ~= nil
    return sum, keys, first, said, not (wrong and compiled)
  )") == 0);
  CHECK(lua_tonumber(L, -5) == 2000);
  CHECK(lua_tonumber(L, -4) == 800);
  CHECK(lua_tonumber(L, -3) == 1);
  CHECK(std::string(lua_tostring(L, -2)).find("bad argument #1 to 'pairs' (table expected, got nil)") !=
        std::string::npos);
  CHECK(lua_toboolean(L, -1));
}

TEST_CASE("lua: a loop gives the numbers of its interpreter when it is compiled") {
  LuaState state;
  lua_State* L = state;
  REQUIRE(luaL_dostring(L, R"(
    local code = [[
      local state, sum = 12345, 0
      for i = 1, 300 do  -- products of more than 53 bits, to which something is added
        state = (state * 1103515245 + 12345) % 2147483648
        sum = (sum + state * i - 0.1 * state) % 4503599627370496
      end
      return sum
    ]]
    local compiled, interpreted = loadstring(code), loadstring(code)
    jit.off(interpreted, true)
    return compiled() == interpreted()
  )") == 0);
  CHECK(lua_toboolean(L, -1));
}

TEST_CASE("lua: near names are found, far ones are not") {
  REQUIRE(lua::did_you_mean("rnak", {"alpha", "rank"}) == "; did you mean 'rank'?");
  REQUIRE(lua::did_you_mean("zzz", {"alpha", "rank"}).empty());
  REQUIRE(lua::did_you_mean("x", {"a"}).empty());
}
