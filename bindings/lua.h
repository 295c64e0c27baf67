// Binding C++ to Lua: typed arguments, results, classes and errors. A binding is a body `int f(Call& call)`, wrapped by
// fn<f> and listed with functions() or methods(). bindings/README.md shows a whole one.
//
// Bodies throw: whatever std::exception leaves a body becomes the Lua error {code=, message=, where="recipe.lua:12"},
// where naming the recipe's line, not the library's. Lua errors that pass through a body run its destructors (LuaJIT
// unwinds C++).
#pragma once
#include <initializer_list>
#include <lua.hpp>
#include <memory>
#include <string>
#include <vector>

#include "kernels/error.h"

namespace qeng::lua {

// The Lua name of a C++ class held by std::shared_ptr; declare one with QENG_LUA_CLASS(Tensor, "Tensor") at file scope.
template <class T>
struct ClassName;
#define QENG_LUA_CLASS(type, text)             \
  template <>                                  \
  struct qeng::lua::ClassName<type> {          \
    static constexpr const char* value = text; \
  };

// A value has not the type that was asked for; Call adds whose argument it was.
struct Problem {
  std::string text;
};
std::string type_text(lua_State* L, int index);                         // "number", "Tensor", "no value"
[[noreturn]] void expected(lua_State* L, int index, const char* what);  // throws Problem "<what> expected, got <type>"

// "; did you mean 'rank'?" or "" when nothing is near.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known);

// ---------------------------------------------------------------- Lua values held by C++

// A Lua value held by C++ (a function of a recipe, mostly): copies share it, and it may outlive the Lua state.
class Ref {
 public:
  Ref() = default;
  Ref(lua_State* L, int index);  // takes the value at index, leaving the stack as it was
  explicit operator bool() const { return held_ != nullptr; }
  void push(lua_State* L) const;

  // Calls the value with the arguments, on the Lua state that is running, and reads one result as R. An error that Lua
  // code raises comes out as a LuaError holding the original object. Main thread only.
  template <class R = void, class... Args>
  R call(const Args&... args) const;

 private:
  struct Held;
  std::shared_ptr<Held> held_;
};

// An error that Lua code raised, on its way through C++: rethrown into Lua it is the same object again.
class LuaError : public Error {
 public:
  explicit LuaError(lua_State* L);  // takes the error object from the top of the stack
  Ref object;
};

// Pushes an error object; place: "recipe.lua:12", "" for none. raise() raises one from outside a binding.
void push_error_object(lua_State* L, const char* code, const std::string& message, const std::string& place);
[[noreturn]] void raise(lua_State* L, const char* code, const char* message);

// lua_call that throws LuaError: function and arguments are on the stack, as for lua_call.
void call(lua_State* L, int arguments, int results);

// The state whose code is running (a coroutine, perhaps); null when Lua runs nothing.
lua_State* current();
bool in_engine();          // is a binding running that has not called back into Lua? (safe in a signal handler)
void background_thread();  // Lua states of this thread do not count for in_engine(), which is the main thread's

// ---------------------------------------------------------------- bindings

// One call of a binding. Arguments count from 1 and, in a method (name "Class:method"), do not count self.
class Call {
 public:
  explicit Call(lua_State* state);
  ~Call();
  Call(const Call&) = delete;

  lua_State* const L;
  const char* const name;  // "linear", "fs.read", "Tensor:shape"

  int index(int argument) const { return argument + (method_ ? 1 : 0); }  // its place on the stack
  int arguments() const { return lua_gettop(L) - (method_ ? 1 : 0); }     // only before anything is pushed
  bool has(int argument) const { return !lua_isnoneornil(L, index(argument)); }

  // The argument as T: bool, a number (integers are checked), std::string, DType, std::vector<T>, std::map<std::string,
  // T>, std::optional<T>, std::shared_ptr<class>, Ref (a function). Throws Error("value").
  template <class T>
  T arg(int argument) const;
  template <class T>
  T arg(int argument, const T& fallback) const {
    return has(argument) ? arg<T>(argument) : fallback;
  }
  template <class T>
  std::shared_ptr<T> self() const;

  // Pushes the values, as the counterpart of arg(); returns their count.
  template <class... T>
  int push(const T&... values) const;

  [[noreturn]] void bad_argument(int argument, const std::string& text) const;
  void push_error(const std::exception& error) const;  // as an error object, on the stack

 private:
  lua_State* const outer_;
  const int outer_depth_;
  const bool method_;
};

// The option table of a call; a missing or nil argument is an empty one. A key that is not known is refused.
class Options {
 public:
  Options(const Call& call, int argument, std::initializer_list<const char*> known);
  bool has(const char* key) const;
  template <class T>
  T get(const char* key) const;  // required
  template <class T>
  T get(const char* key, const T& fallback) const {
    return has(key) ? get<T>(key) : fallback;
  }
  void push(const char* key) const;  // the raw value on the stack

 private:
  const Call& call_;
  int table_;  // 0: absent
};

struct Entry {
  const char* name;  // metamethods start with "__" and count self as argument 1
  lua_CFunction function;
};

// Calls the function at `index` of the stack with the values after it, which its results replace. Returns their number.
int call_rest(Call& call, int index);

template <int (*Body)(Call&)>
int entry(lua_State* L) {
  {
    Call call(L);
    try {
      return Body(call);
    } catch (const std::exception& error) {
      call.push_error(error);
    }
  }
  return lua_error(L);
}
template <int (*Body)(Call&)>
constexpr lua_CFunction fn = &entry<Body>;

// Adds functions to the table q (module "") or to q.module.
void functions(lua_State* L, const char* module, std::initializer_list<Entry> entries);
// Adds methods and metamethods to a class; may be called more than once for a class.
template <class T>
void methods(lua_State* L, std::initializer_list<Entry> entries);

// Pushes the table q.core, which functions() fills.
void push_core(lua_State* L);

}  // namespace qeng::lua

#include "bindings/lua_values.h"
