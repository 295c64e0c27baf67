// q.json: text to Lua values and back. Arrays carry a metatable, so that an empty one stays []; null is q.json.null;
// objects are written with sorted keys, or as they were read ("ordered"); whole numbers up to 2^53 are exact, larger
// ones become the nearest double, unless they are asked for as they are written ("exact"): then those, and floats
// without a fraction (1.0), are tables {value =, digits =}.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "bindings/json.h"
#include "bindings/lua.h"
#include "bindings/register.h"
#include "engine/formats/json_depth.h"

namespace qeng {
namespace {
using lua::Call;
constexpr int kMaxDepth = kRecordDepth;  // deeper is no real file; bounds the C and Lua stacks
constexpr const char* kArray = "qeng.json.array";
constexpr const char* kNull = "qeng.json.null";
constexpr const char* kNumber = "qeng.json.number";  // the metatable of an exact number

void push_null(lua_State* L) { lua_getfield(L, LUA_REGISTRYINDEX, kNull); }

bool has_mark(lua_State* L, int index, const char* mark) {
  if (lua_getmetatable(L, index) == 0) return false;
  luaL_getmetatable(L, mark);
  const bool same = lua_rawequal(L, -1, -2) != 0;
  lua_pop(L, 2);
  return same;
}

// Builds the value on the Lua stack while nlohmann reads: containers under construction lie below, an object's key
// above it.
class Builder {
 public:
  Builder(lua_State* L, bool ordered, bool exact, int64_t most)
      : L_(L), ordered_(ordered), exact_(exact), most_(most), left_(most) {}
  bool null() { return push_null(L_), add(); }
  bool boolean(bool value) { return lua_pushboolean(L_, value), add(); }
  bool number_integer(int64_t value) { return number(static_cast<double>(value), std::to_string(value)); }
  bool number_unsigned(uint64_t value) { return number(static_cast<double>(value), std::to_string(value)); }
  bool number_float(double value, const std::string& text) {
    if (text.find_first_of(".eE") == std::string::npos) return number(value, text);
    if (!exact_ || value != std::floor(value)) return lua_pushnumber(L_, value), add();
    return push_exact(value, ""), add();
  }
  bool string(std::string& value) { return lua_pushlstring(L_, value.data(), value.size()), add(); }
  bool binary(std::vector<uint8_t>&) { return false; }
  bool start_object(size_t) { return open(false); }
  bool key(std::string& value) {
    lua_pushlstring(L_, value.data(), value.size());
    if (!ordered_) return true;
    lua_pushvalue(L_, -1);
    lua_rawget(L_, -3);
    if (lua_isnil(L_, -1)) levels_.back().keys.push_back(value);  // a key given twice keeps its first place
    lua_pop(L_, 1);
    return true;
  }
  bool end_object() { return close(); }
  bool start_array(size_t) { return open(true); }
  bool end_array() { return close(); }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& error) {
    const std::string text = error.what();
    const size_t at = text.find("] ");
    fail("format", "json: ", at == std::string::npos ? text : text.substr(at + 2));
  }

 private:
  struct Level {
    bool array;
    int count;
    std::vector<std::string> keys;  // of an object, where their order is kept
  };
  bool number(double value, const std::string& digits) {
    if (!exact_ || std::fabs(value) <= lua::kMaxInteger) return lua_pushnumber(L_, value), add();
    return push_exact(value, digits), add();
  }
  // A number that a Lua number cannot tell: digits of an integer, "" of a float.
  void push_exact(double value, const std::string& digits) {
    luaL_checkstack(L_, 4, "json");
    lua_createtable(L_, 0, 2);
    lua_pushnumber(L_, value);
    lua_setfield(L_, -2, "value");
    if (!digits.empty()) lua::set_field(L_, "digits", digits);
    luaL_getmetatable(L_, kNumber);
    lua_setmetatable(L_, -2);
  }
  bool open(bool array) {
    if (levels_.size() == kMaxDepth) fail("format", "json: nested more than ", kMaxDepth, " levels deep");
    if (left_-- <= 0) fail("format", "json: more than ", most_, " arrays and objects");
    luaL_checkstack(L_, 6, "json");
    lua_newtable(L_);
    if (array) luaL_getmetatable(L_, kArray), lua_setmetatable(L_, -2);
    levels_.push_back({array, 0, {}});
    return true;
  }
  bool close() {
    if (ordered_ && !levels_.back().array) set_keys(levels_.back().keys);
    return levels_.pop_back(), add();
  }
  void set_keys(const std::vector<std::string>& keys) {
    luaL_checkstack(L_, 6, "json");
    lua_createtable(L_, 0, 1);
    lua_createtable(L_, static_cast<int>(keys.size()), 0);
    for (size_t i = 0; i < keys.size(); ++i)
      lua::Value<std::string>::push(L_, keys[i]), lua_rawseti(L_, -2, static_cast<int>(i) + 1);
    lua_setfield(L_, -2, "__keys");
    lua_setmetatable(L_, -2);
  }
  bool add() {
    if (levels_.empty()) return true;
    Level& level = levels_.back();
    level.array ? lua_rawseti(L_, -2, ++level.count) : lua_rawset(L_, -3);
    return true;
  }
  lua_State* L_;
  const bool ordered_, exact_;
  const int64_t most_;
  int64_t left_;  // of most_, arrays and objects
  std::vector<Level> levels_;
};

class Writer {
 public:
  Writer(lua_State* L, const JsonStyle& style)
      : L_(L), pretty_(style.pretty), replace_(style.replace), ordered_(style.ordered) {}
  std::string take() { return std::move(out_); }

  void value(int index, int depth) {
    switch (lua_type(L_, index)) {
      case LUA_TNIL: out_ += "null"; return;
      case LUA_TBOOLEAN: out_ += lua_toboolean(L_, index) ? "true" : "false"; return;
      case LUA_TNUMBER: number(lua_tonumber(L_, index)); return;
      case LUA_TSTRING: string(lua::Value<std::string>::read(L_, index)); return;
      case LUA_TTABLE: break;
      default:
        push_null(L_);
        if (lua_rawequal(L_, -1, index)) return lua_pop(L_, 1), void(out_ += "null");
        fail("value", "json.encode: a ", lua::type_text(L_, index), " cannot be written", place());
    }
    if (has_mark(L_, index, kNumber)) return exact_number(index);
    if (depth == kMaxDepth)
      fail("value", "json.encode: nested more than ", kMaxDepth, " levels deep (a cycle?)", place());
    luaL_checkstack(L_, 8, "json");
    std::vector<std::string> keys;
    size_t others = 0;
    for (lua_pushnil(L_); lua_next(L_, index) != 0; lua_pop(L_, 1)) {
      if (lua_type(L_, -2) == LUA_TSTRING)
        keys.push_back(lua::Value<std::string>::read(L_, lua_gettop(L_) - 1));
      else
        ++others;
    }
    const size_t items = lua_objlen(L_, index);
    const bool array = has_mark(L_, index, kArray) || others > 0;
    if (array && (!keys.empty() || others != items)) {
      fail("value", "json.encode: a table is either 1 .. n or string keys, not both and without holes", place());
    }
    array ? write_array(index, items, depth) : object(index, keys, depth);
  }

 private:
  void write_array(int index, size_t items, int depth) {
    out_ += '[';
    for (size_t i = 1; i <= items; ++i) {
      separate(i > 1, depth + 1);
      lua_rawgeti(L_, index, static_cast<int>(i));
      path_.push_back("[" + std::to_string(i) + "]");
      value(lua_gettop(L_), depth + 1);
      path_.pop_back();
      lua_pop(L_, 1);
    }
    if (items) line(depth);
    out_ += ']';
  }
  void object(int index, std::vector<std::string>& keys, int depth) {
    std::sort(keys.begin(), keys.end());
    if (ordered_) as_read(index, keys);
    out_ += '{';
    for (size_t i = 0; i < keys.size(); ++i) {
      separate(i > 0, depth + 1);
      string(keys[i]);
      out_ += pretty_ ? ": " : ":";
      lua::Value<std::string>::push(L_, keys[i]);
      lua_rawget(L_, index);
      path_.push_back("." + keys[i]);
      value(lua_gettop(L_), depth + 1);
      path_.pop_back();
      lua_pop(L_, 1);
    }
    if (!keys.empty()) line(depth);
    out_ += '}';
  }
  // Moves those of the sorted keys to the front that the metatable's __keys lists, in its order.
  void as_read(int index, std::vector<std::string>& keys) {
    if (luaL_getmetafield(L_, index, "__keys") == 0) return;
    std::map<std::string, size_t> places;
    for (size_t i = 1; lua_istable(L_, -1) && i <= lua_objlen(L_, -1); ++i) {
      lua_rawgeti(L_, -1, static_cast<int>(i));
      if (lua_type(L_, -1) == LUA_TSTRING) places.emplace(lua::Value<std::string>::read(L_, lua_gettop(L_)), i);
      lua_pop(L_, 1);
    }
    lua_pop(L_, 1);
    const auto place = [&](const std::string& key) {
      const auto found = places.find(key);
      return found == places.end() ? SIZE_MAX : found->second;
    };
    std::stable_sort(keys.begin(), keys.end(),
                     [&](const std::string& a, const std::string& b) { return place(a) < place(b); });
  }
  void number(double value) {
    if (!std::isfinite(value)) fail("value", "json.encode: JSON has no ", value, place());
    char text[32];
    if (value == std::floor(value) && std::fabs(value) <= lua::kMaxInteger) {
      std::snprintf(text, sizeof text, "%" PRId64, static_cast<int64_t>(value));
      out_ += text;
    } else {
      out_ += nlohmann::json(value).dump();  // shortest that reads back the same
    }
  }
  void exact_number(int index) {
    lua_getfield(L_, index, "digits");
    lua_getfield(L_, index, "value");
    out_ += lua_isnil(L_, -2) ? nlohmann::json(lua_tonumber(L_, -1)).dump() : lua_tostring(L_, -2);
    lua_pop(L_, 2);
  }
  void string(const std::string& text) {
    using Handler = nlohmann::json::error_handler_t;
    try {
      out_ += nlohmann::json(text).dump(-1, ' ', false, replace_ ? Handler::replace : Handler::strict);
    } catch (const nlohmann::json::type_error&) {
      fail("value", "json.encode: a string is not valid UTF-8", place());
    }
  }
  void separate(bool comma, int depth) {
    if (comma) out_ += ',';
    line(depth);
  }
  void line(int depth) {
    if (pretty_) out_ += '\n', out_.append(static_cast<size_t>(2 * depth), ' ');
  }
  std::string place() const {
    std::string text;
    for (const std::string& step : path_) text += step;
    return text.empty() ? "" : " (at " + text + ")";
  }
  lua_State* L_;
  const bool pretty_, replace_, ordered_;
  std::string out_;
  std::vector<std::string> path_;
};

int decode(Call& call) {
  const std::string text = call.arg<std::string>(1);
  lua::Options opt(call, 2, {"ordered", "exact", "most"});
  const bool ordered = opt.get("ordered", false), exact = opt.get("exact", false);
  push_json(call.L, text, ordered, exact, opt.get("most", INT64_MAX));
  return 1;
}

int encode(Call& call) {
  lua::Options opt(call, 2, {"pretty", "replace", "ordered"});
  return call.push(
      json_text(call.L, 1, {opt.get("pretty", false), opt.get("replace", false), opt.get("ordered", false)}));
}

int null_text(lua_State* L) {
  lua_pushstring(L, "null");
  return 1;
}

int array(Call& call) {
  if (!lua_istable(call.L, 1)) call.bad_argument(1, "table expected, got " + lua::type_text(call.L, 1));
  if (lua_getmetatable(call.L, 1) && !has_mark(call.L, 1, kArray))
    call.bad_argument(1, "the table has a metatable already");
  lua_settop(call.L, 1);
  luaL_getmetatable(call.L, kArray);
  lua_setmetatable(call.L, 1);
  return 1;
}
}  // namespace

void push_json(lua_State* L, const std::string& text, bool ordered, bool exact, int64_t most) {
  Builder builder(L, ordered, exact, most);
  nlohmann::json::sax_parse(text, &builder);
}

std::string json_text(lua_State* L, int index, const JsonStyle& style) {
  Writer writer(L, style);
  writer.value(index, 0);
  return writer.take();
}

void register_json(lua_State* L) {
  luaL_newmetatable(L, kArray);
  luaL_newmetatable(L, kNumber);
  lua_pushboolean(L, 1);
  lua_setfield(L, -2, "json_number");
  lua_pop(L, 2);
  lua_newuserdata(L, 1);
  luaL_newmetatable(L, "qeng.Null");
  lua::set_field(L, "__name", "null");
  lua_pushcfunction(L, null_text);
  lua_setfield(L, -2, "__tostring");
  lua_setmetatable(L, -2);
  lua_setfield(L, LUA_REGISTRYINDEX, kNull);

  using lua::fn;
  lua::functions(L, "json", {{"decode", fn<decode>}, {"encode", fn<encode>}, {"array", fn<array>}});
  lua::push_core(L);
  lua_getfield(L, -1, "json");
  push_null(L);
  lua_setfield(L, -2, "null");
  lua_pop(L, 2);
}

}  // namespace qeng
