// How C++ values are read from and pushed to Lua: Value<T>, one specialisation a type. Included by bindings/lua.h only.
#pragma once
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "bindings/lua.h"
#include "kernels/view.h"
#include "kernels/view_text.h"

namespace qeng::lua {

constexpr double kMaxInteger = 9007199254740992.0;  // 2^53: beyond it a Lua number is no longer exact

template <class T, class = void>
struct Value;

template <>
struct Value<bool> {
  static bool read(lua_State* L, int index) {
    if (!lua_isboolean(L, index)) expected(L, index, "boolean");
    return lua_toboolean(L, index) != 0;
  }
  static void push(lua_State* L, bool value) { lua_pushboolean(L, value); }
};

template <class T>
struct Value<T, std::enable_if_t<std::is_floating_point_v<T>>> {
  static T read(lua_State* L, int index) {
    if (lua_type(L, index) != LUA_TNUMBER) expected(L, index, "number");
    return static_cast<T>(lua_tonumber(L, index));
  }
  static void push(lua_State* L, T value) { lua_pushnumber(L, static_cast<double>(value)); }
};

[[noreturn]] void bad_integer(double value, double low, double high);
template <class T>
struct Value<T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>>> {
  static T read(lua_State* L, int index) {
    if (lua_type(L, index) != LUA_TNUMBER) expected(L, index, "integer");
    const double value = lua_tonumber(L, index);
    const double low = std::max(static_cast<double>(std::numeric_limits<T>::min()), -kMaxInteger);
    const double high = std::min(static_cast<double>(std::numeric_limits<T>::max()), kMaxInteger);
    if (!(value >= low && value <= high) || value != std::floor(value)) bad_integer(value, low, high);
    return static_cast<T>(value);
  }
  static void push(lua_State* L, T value) { lua_pushnumber(L, static_cast<double>(value)); }
};

template <>
struct Value<std::string> {
  static std::string read(lua_State* L, int index) {
    if (lua_type(L, index) != LUA_TSTRING) expected(L, index, "string");
    size_t size = 0;
    const char* text = lua_tolstring(L, index, &size);
    return std::string(text, size);
  }
  static void push(lua_State* L, const std::string& value) { lua_pushlstring(L, value.data(), value.size()); }
};
template <>
struct Value<const char*> {
  static void push(lua_State* L, const char* value) { lua_pushstring(L, value); }
};
template <size_t N>
struct Value<char[N]> : Value<const char*> {};

template <>
struct Value<DType> {
  static DType read(lua_State* L, int index) {
    if (lua_type(L, index) != LUA_TSTRING) expected(L, index, "dtype");
    return dtype_from_name(lua_tostring(L, index));
  }
  static void push(lua_State* L, DType value) { lua_pushstring(L, dtype_name(value)); }
};

template <class T>
struct Value<std::optional<T>> {
  static std::optional<T> read(lua_State* L, int index) {
    if (lua_isnoneornil(L, index)) return std::nullopt;
    return Value<T>::read(L, index);
  }
  static void push(lua_State* L, const std::optional<T>& value) { value ? Value<T>::push(L, *value) : lua_pushnil(L); }
};

template <class T>
struct Value<std::vector<T>> {
  static std::vector<T> read(lua_State* L, int index) {
    if (!lua_istable(L, index)) expected(L, index, "table");
    std::vector<T> values;
    values.reserve(lua_objlen(L, index));
    for (size_t i = 1, n = lua_objlen(L, index); i <= n; ++i) {
      lua_rawgeti(L, index, static_cast<int>(i));
      try {
        values.push_back(Value<T>::read(L, lua_gettop(L)));
      } catch (const Problem& problem) {
        throw Problem{"element " + std::to_string(i) + ": " + problem.text};
      }
      lua_pop(L, 1);
    }
    return values;
  }
  static void push(lua_State* L, const std::vector<T>& values) {
    lua_createtable(L, static_cast<int>(values.size()), 0);
    for (size_t i = 0; i < values.size(); ++i)
      Value<T>::push(L, values[i]), lua_rawseti(L, -2, static_cast<int>(i) + 1);
  }
};

template <class T>
struct Value<std::map<std::string, T>> {
  static std::map<std::string, T> read(lua_State* L, int index) {
    if (!lua_istable(L, index)) expected(L, index, "table");
    std::map<std::string, T> values;
    for (lua_pushnil(L); lua_next(L, index) != 0; lua_pop(L, 1)) {
      const int top = lua_gettop(L);
      if (lua_type(L, top - 1) != LUA_TSTRING) throw Problem{"string keys expected, got a " + type_text(L, top - 1)};
      try {
        values[lua_tostring(L, top - 1)] = Value<T>::read(L, top);
      } catch (const Problem& problem) {
        throw Problem{"'" + std::string(lua_tostring(L, top - 1)) + "': " + problem.text};
      }
    }
    return values;
  }
  static void push(lua_State* L, const std::map<std::string, T>& values) {
    lua_createtable(L, 0, static_cast<int>(values.size()));
    for (const auto& [key, value] : values) {
      Value<std::string>::push(L, key), Value<T>::push(L, value);
      lua_rawset(L, -3);
    }
  }
};

template <>
struct Value<Ref> {
  static Ref read(lua_State* L, int index) {
    if (!lua_isfunction(L, index)) expected(L, index, "function");
    return Ref(L, index);
  }
  static void push(lua_State* L, const Ref& value) { value.push(L); }
};

// ---------------------------------------------------------------- objects: userdata holding a std::shared_ptr

void push_class(lua_State* L, const char* name, int (*collect)(lua_State*));  // its metatable, made on first use
bool is_class(lua_State* L, int index, const char* name);
void add_methods(lua_State* L, const char* class_name, std::initializer_list<Entry> entries);  // metatable on top

template <class T>
int collect(lua_State* L) {
  static_cast<std::shared_ptr<T>*>(lua_touserdata(L, 1))->reset();
  return 0;
}

// The object at index, or null if it is not of the class.
template <class T>
std::shared_ptr<T> to_object(lua_State* L, int index) {
  if (!is_class(L, index, ClassName<T>::value)) return nullptr;
  return *static_cast<std::shared_ptr<T>*>(lua_touserdata(L, index));
}

template <class T>
struct Value<std::shared_ptr<T>> {
  static std::shared_ptr<T> read(lua_State* L, int index) {
    auto object = to_object<T>(L, index);
    if (!object) expected(L, index, ClassName<T>::value);
    return object;
  }
  static void push(lua_State* L, const std::shared_ptr<T>& value) {
    if (!value) return lua_pushnil(L);
    new (lua_newuserdata(L, sizeof(value))) std::shared_ptr<T>(value);
    push_class(L, ClassName<T>::value, &collect<T>);
    lua_setmetatable(L, -2);
  }
};

template <class T>
void methods(lua_State* L, std::initializer_list<Entry> entries) {
  push_class(L, ClassName<T>::value, &collect<T>);
  add_methods(L, ClassName<T>::value, entries);
  lua_pop(L, 1);
}

// table[key] = value, for the table on top of the stack.
template <class T>
void set_field(lua_State* L, const char* key, const T& value) {
  Value<T>::push(L, value);
  lua_setfield(L, -2, key);
}

// ---------------------------------------------------------------- Call, Options, Ref

template <class T>
T Call::arg(int argument) const {
  try {
    return Value<T>::read(L, index(argument));
  } catch (const Problem& problem) {
    bad_argument(argument, problem.text);
  }
}

template <class T>
std::shared_ptr<T> Call::self() const {
  auto object = to_object<T>(L, 1);
  if (!object) fail("value", "'", name, "' is a method of ", ClassName<T>::value, ": call it with a colon");
  return object;
}

template <class... T>
int Call::push(const T&... values) const {
  (Value<T>::push(L, values), ...);
  return sizeof...(T);
}

template <class T>
T Options::get(const char* key) const {
  push(key);
  try {
    T value = Value<T>::read(call_.L, lua_gettop(call_.L));
    lua_pop(call_.L, 1);
    return value;
  } catch (const Problem& problem) {
    fail("value", "bad option '", key, "' of '", call_.name, "': ", problem.text);
  }
}

template <class R, class... Args>
R Ref::call(const Args&... args) const {
  lua_State* L = current();
  luaL_checkstack(L, static_cast<int>(sizeof...(Args)) + 2, "arguments");
  push(L);
  (Value<Args>::push(L, args), ...);
  lua::call(L, sizeof...(Args), std::is_void_v<R> ? 0 : 1);
  if constexpr (!std::is_void_v<R>) {
    try {
      R result = Value<R>::read(L, lua_gettop(L));
      lua_pop(L, 1);
      return result;
    } catch (const Problem& problem) {
      fail("value", "result of the function: ", problem.text);
    }
  }
}

}  // namespace qeng::lua
