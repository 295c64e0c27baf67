#include "bindings/lua.h"

#include <algorithm>
#include <csignal>
#include <cstring>

namespace qeng::lua {
namespace {
constexpr const char* kErrorClass = "qeng.Error";
constexpr const char* kCore = "qeng.core";

// One Lua state a thread; what runs in it is known so that C++ can call back into it.
thread_local lua_State* running = nullptr;
volatile sig_atomic_t engine_depth = 0;  // 1 while a binding runs C++, 0 while Lua runs; of the main thread
thread_local bool background = false;
void set_depth(int depth) {
  if (!background) engine_depth = depth;
}

// "recipe.lua:12" of the innermost frame that is not the library's (whose chunks are named "=qeng/..."); else of any
// Lua frame.
std::string where(lua_State* L) {
  std::string first;
  lua_Debug frame;
  for (int level = 0; lua_getstack(L, level, &frame) != 0; ++level) {
    lua_getinfo(L, "Sl", &frame);
    if (frame.currentline <= 0) continue;
    const std::string place = std::string(frame.short_src) + ":" + std::to_string(frame.currentline);
    if (std::strncmp(frame.source, "=qeng/", 6) != 0) return place;
    if (first.empty()) first = place;
  }
  return first;
}

int error_tostring(lua_State* L) {
  lua_getfield(L, 1, "where");
  lua_getfield(L, 1, "message");
  if (lua_isstring(L, -2) && lua_objlen(L, -2) > 0) {
    lua_pushfstring(L, "%s: %s", lua_tostring(L, -2), lua_isstring(L, -1) ? lua_tostring(L, -1) : "?");
  }
  return 1;
}

std::string field_text(lua_State* L, int index, const char* key) {
  lua_pushstring(L, key);
  lua_rawget(L, index);
  std::string text = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "";
  lua_pop(L, 1);
  return text;
}

// The code of the error object on top; "lua" for the strings that Lua itself raises.
std::string top_code(lua_State* L) {
  if (!lua_istable(L, -1)) return "lua";
  const std::string code = field_text(L, lua_gettop(L), "code");
  return code.empty() ? "lua" : code;
}
std::string top_message(lua_State* L) {
  if (lua_istable(L, -1)) return field_text(L, lua_gettop(L), "message");
  return lua_isstring(L, -1) ? lua_tostring(L, -1) : "(error object is a " + type_text(L, -1) + ")";
}

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = diagonal + (a[i - 1] != b[j - 1] ? 1 : 0);
      diagonal = row[j];
      row[j] = std::min({change, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}
}  // namespace

void push_error_object(lua_State* L, const char* code, const std::string& message, const std::string& place) {
  lua_createtable(L, 0, 3);
  set_field(L, "code", code);
  set_field(L, "message", message);
  set_field(L, "where", place);
  if (luaL_newmetatable(L, kErrorClass) != 0) {
    lua_pushcfunction(L, error_tostring);
    lua_setfield(L, -2, "__tostring");
  }
  lua_setmetatable(L, -2);
}

void raise(lua_State* L, const char* code, const char* message) {
  push_error_object(L, code, message, where(L));
  lua_error(L);
  __builtin_unreachable();
}

std::string type_text(lua_State* L, int index) {
  if (luaL_getmetafield(L, index, "__name") != 0) {
    std::string name = lua_isstring(L, -1) ? lua_tostring(L, -1) : "userdata";
    lua_pop(L, 1);
    return name;
  }
  return lua_isnone(L, index) ? "no value" : luaL_typename(L, index);
}

void expected(lua_State* L, int index, const char* what) {
  throw Problem{std::string(what) + " expected, got " + type_text(L, index)};
}

void bad_integer(double value, double low, double high) {
  std::ostringstream text;
  text.precision(17);
  text << "integer expected, got " << value;
  if (value == std::floor(value)) text << " (range " << low << " .. " << high << ")";
  throw Problem{text.str()};
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& known) {
  std::string best;
  size_t distance = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : known) {
    const size_t d = edit_distance(word, candidate);
    if (d < distance && d < candidate.size()) distance = d, best = candidate;
  }
  return best.empty() ? "" : "; did you mean '" + best + "'?";
}

// ---------------------------------------------------------------- Ref, LuaError

// Holds the value in the registry. `alive` expires with the Lua state, whose registry goes with it.
struct Ref::Held {
  lua_State* L;
  int key;
  std::weak_ptr<char> alive;
  ~Held() {
    if (!alive.expired()) luaL_unref(L, LUA_REGISTRYINDEX, key);
  }
};

// A token in the registry that lives as long as the state, with the main state to release references on: a coroutine's
// own state may be gone by then.
struct Life {
  lua_State* main;
  std::shared_ptr<char> token;  // made for the first reference: os.exit() does not close the state
};
static Life& life(lua_State* L) {
  lua_getfield(L, LUA_REGISTRYINDEX, "qeng.life");
  auto* found = static_cast<Life*>(lua_touserdata(L, -1));
  lua_pop(L, 1);
  if (found) return *found;
  found = new (lua_newuserdata(L, sizeof(Life))) Life{L, nullptr};
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, [](lua_State* state) {
    static_cast<Life*>(lua_touserdata(state, 1))->~Life();
    return 0;
  });
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  lua_setfield(L, LUA_REGISTRYINDEX, "qeng.life");
  return *found;
}

Ref::Ref(lua_State* L, int index) {
  lua_pushvalue(L, index);
  Life& state = life(L);
  if (!state.token) state.token = std::make_shared<char>();
  held_ = std::make_shared<Held>(Held{state.main, LUA_NOREF, {}});
  held_->key = luaL_ref(L, LUA_REGISTRYINDEX);
  held_->alive = state.token;
}

void Ref::push(lua_State* L) const { held_ ? lua_rawgeti(L, LUA_REGISTRYINDEX, held_->key) : lua_pushnil(L); }

LuaError::LuaError(lua_State* L) : Error(top_code(L), top_message(L)), object(L, -1) { lua_pop(L, 1); }

void call(lua_State* L, int arguments, int results) {
  const int depth = engine_depth;
  set_depth(0);
  const int status = lua_pcall(L, arguments, results, 0);
  set_depth(depth);
  if (status != 0) throw LuaError(L);
}

void background_thread() { background = true; }
bool in_engine() { return engine_depth != 0; }

lua_State* current() {
  if (!running) fail("internal", "Lua was called from outside a Lua call");
  return running;
}

// ---------------------------------------------------------------- Call, Options

Call::Call(lua_State* state)
    : L(state),
      name(lua_tostring(state, lua_upvalueindex(1))),
      outer_(running),
      outer_depth_(engine_depth),
      method_(std::strchr(name, ':') != nullptr) {
  running = state;
  set_depth(1);
}
Call::~Call() {
  running = outer_;
  set_depth(outer_depth_);
}

int call_rest(Call& call, int index) {
  const bool callable = lua_isfunction(call.L, index) || luaL_getmetafield(call.L, index, "__call");
  if (!callable) call.bad_argument(index - call.index(0), "function expected, got " + type_text(call.L, index));
  if (!lua_isfunction(call.L, index)) lua_pop(call.L, 1);  // the metafield
  const int base = index - 1;
  lua::call(call.L, lua_gettop(call.L) - index, LUA_MULTRET);
  return lua_gettop(call.L) - base;
}

void Call::bad_argument(int argument, const std::string& text) const {
  fail("value", "bad argument #", argument, " to '", name, "': ", text);
}

void Call::push_error(const std::exception& error) const {
  if (auto* lua = dynamic_cast<const LuaError*>(&error)) return lua->object.push(L);
  if (auto* known = dynamic_cast<const Error*>(&error))
    return push_error_object(L, known->code.c_str(), known->what(), where(L));
  if (dynamic_cast<const std::bad_alloc*>(&error))
    return push_error_object(L, "memory", std::string(name) + ": out of memory", where(L));
  push_error_object(L, "internal", std::string(name) + ": " + error.what(), where(L));
}

Options::Options(const Call& call, int argument, std::initializer_list<const char*> known) : call_(call), table_(0) {
  if (!call.has(argument)) return;
  table_ = call.index(argument);
  lua_State* L = call.L;
  if (!lua_istable(L, table_)) call.bad_argument(argument, "table of options expected, got " + type_text(L, table_));
  const std::vector<std::string> names(known.begin(), known.end());
  for (lua_pushnil(L); lua_next(L, table_) != 0; lua_pop(L, 1)) {
    if (lua_type(L, -2) != LUA_TSTRING) {
      call.bad_argument(argument, "options have names, got a " + type_text(L, -2) + " as key");
    }
    const std::string key = lua_tostring(L, -2);
    if (std::find(names.begin(), names.end(), key) == names.end()) {
      fail("value", "'", call.name, "' has no option '", key, "'", did_you_mean(key, names));
    }
  }
}

bool Options::has(const char* key) const {
  push(key);
  const bool present = !lua_isnil(call_.L, -1);
  lua_pop(call_.L, 1);
  return present;
}

void Options::push(const char* key) const {
  if (table_ == 0) return lua_pushnil(call_.L);
  lua_pushstring(call_.L, key);
  lua_rawget(call_.L, table_);
}

// ---------------------------------------------------------------- registration

static void push_function(lua_State* L, const std::string& name, lua_CFunction function) {
  Value<std::string>::push(L, name);
  lua_pushcclosure(L, function, 1);
}

void push_core(lua_State* L) {
  lua_getfield(L, LUA_REGISTRYINDEX, kCore);
  if (lua_istable(L, -1)) return;
  lua_pop(L, 1);
  life(L);  // functions are registered by the main state, before any coroutine asks for it
  lua_newtable(L);
  lua_pushvalue(L, -1);
  lua_setfield(L, LUA_REGISTRYINDEX, kCore);
}

void functions(lua_State* L, const char* module, std::initializer_list<Entry> entries) {
  const std::string prefix = *module ? std::string(module) + "." : "";
  push_core(L);
  if (*module) {
    lua_getfield(L, -1, module);
    if (lua_isnil(L, -1)) {
      lua_pop(L, 1);
      lua_newtable(L);
      lua_pushvalue(L, -1);
      lua_setfield(L, -3, module);
    }
    lua_remove(L, -2);
  }
  for (const Entry& entry : entries) {
    push_function(L, prefix + entry.name, entry.function);
    lua_setfield(L, -2, entry.name);
  }
  lua_pop(L, 1);
}

void push_class(lua_State* L, const char* name, int (*collect)(lua_State*)) {
  const std::string key = std::string("qeng.") + name;
  if (luaL_newmetatable(L, key.c_str()) == 0) return;
  set_field(L, "__name", name);
  lua_pushcfunction(L, collect);
  lua_setfield(L, -2, "__gc");
  lua_newtable(L);
  lua_pushvalue(L, -1);
  lua_setfield(L, -3, "__methods");
  lua_setfield(L, -2, "__index");
  // A C++ object may sit in several userdata: they are equal.
  lua_pushcfunction(L, [](lua_State* state) {
    auto* a = static_cast<std::shared_ptr<void>*>(lua_touserdata(state, 1));
    auto* b = static_cast<std::shared_ptr<void>*>(lua_touserdata(state, 2));
    lua_pushboolean(state, a && b && a->get() == b->get());
    return 1;
  });
  lua_setfield(L, -2, "__eq");
  lua_pushcfunction(L, [](lua_State* state) {
    lua_pushfstring(state, "%s: %p", type_text(state, 1).c_str(),
                    static_cast<std::shared_ptr<void>*>(lua_touserdata(state, 1))->get());
    return 1;
  });
  lua_setfield(L, -2, "__tostring");
}

bool is_class(lua_State* L, int index, const char* name) {
  if (lua_type(L, index) != LUA_TUSERDATA || lua_getmetatable(L, index) == 0) return false;
  luaL_getmetatable(L, (std::string("qeng.") + name).c_str());
  const bool same = lua_rawequal(L, -1, -2) != 0;
  lua_pop(L, 2);
  return same;
}

void add_methods(lua_State* L, const char* class_name, std::initializer_list<Entry> entries) {
  lua_getfield(L, -1, "__methods");
  for (const Entry& entry : entries) {
    const bool meta = std::strncmp(entry.name, "__", 2) == 0;
    push_function(L, std::string(class_name) + (meta ? "." : ":") + entry.name, entry.function);
    lua_setfield(L, meta ? -3 : -2, entry.name);
  }
  lua_pop(L, 1);
}

}  // namespace qeng::lua
