// q.host.yaml: a YAML document as Lua values, through libyaml. All scalars are text, whatever they look like. null is
// nil.
#include <yaml.h>

#include <set>
#include <string>

#include "bindings/lua.h"
#include "bindings/register.h"

namespace qeng {
namespace {
using lua::Call;
constexpr int kMaxDepth = 32;          // of lists and maps in each other: a README has some six
constexpr int kMaxValues = 1'000'000;  // each takes memory

// Reads events and leaves values on the Lua stack. Anchors and tags are refused: what they mean is no data of a text.
class Reader {
 public:
  Reader(lua_State* L, const std::string& text, std::string name) : L_(L), name_(std::move(name)) {
    if (!yaml_parser_initialize(&parser_)) fail("memory", name_, ": no memory to read YAML");
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()), text.size());
    yaml_parser_set_encoding(&parser_, YAML_UTF8_ENCODING);
  }
  ~Reader() {
    if (has_event_) yaml_event_delete(&event_);
    yaml_parser_delete(&parser_);
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  void document() {
    next();
    next();
    if (event_.type == YAML_STREAM_END_EVENT) return lua_pushnil(L_);
    next();
    value(0);
    next();
    next();
    if (event_.type != YAML_STREAM_END_EVENT) refuse("a second document");
  }

 private:
  void next() {
    if (has_event_) yaml_event_delete(&event_);
    has_event_ = yaml_parser_parse(&parser_, &event_) != 0;
    if (!has_event_)
      fail("format", name_, ", line ", parser_.problem_mark.line + 1, ": ",
           parser_.problem ? parser_.problem : "no YAML");
  }
  [[noreturn]] void refuse(const std::string& what) const {
    fail("format", name_, ", line ", event_.start_mark.line + 1, ": ", what);
  }
  void check(const yaml_char_t* anchor, const yaml_char_t* tag) {
    if (anchor || tag) refuse("anchors and tags are not read");
    if (++values_ > kMaxValues) refuse("more than a million values");
    luaL_checkstack(L_, 6, "yaml");
  }
  std::string scalar() const {
    return {reinterpret_cast<const char*>(event_.data.scalar.value), event_.data.scalar.length};
  }
  bool is_null() const {
    if (event_.type != YAML_SCALAR_EVENT || event_.data.scalar.style != YAML_PLAIN_SCALAR_STYLE) return false;
    static const std::set<std::string> nulls = {"", "~", "null", "Null", "NULL"};
    return nulls.contains(scalar());
  }

  // The value that the event in hand begins, onto the stack.
  void value(int depth) {
    if (depth > kMaxDepth) refuse("lists and maps more than " + std::to_string(kMaxDepth) + " deep");
    switch (event_.type) {
      case YAML_SCALAR_EVENT:
        check(event_.data.scalar.anchor, event_.data.scalar.tag);
        return is_null() ? lua_pushnil(L_) : lua::Value<std::string>::push(L_, scalar());
      case YAML_SEQUENCE_START_EVENT:
        check(event_.data.sequence_start.anchor, event_.data.sequence_start.tag);
        return list(depth);
      case YAML_MAPPING_START_EVENT:
        check(event_.data.mapping_start.anchor, event_.data.mapping_start.tag);
        return map(depth);
      default: refuse("an alias is not read");
    }
  }
  void list(int depth) {
    lua_newtable(L_);
    for (int i = 1;; ++i) {
      next();
      if (event_.type == YAML_SEQUENCE_END_EVENT) return;
      if (is_null()) refuse("an empty entry of a list");
      value(depth + 1);
      lua_rawseti(L_, -2, i);
    }
  }
  void map(int depth) {
    lua_newtable(L_);
    for (std::set<std::string> keys;;) {
      next();
      if (event_.type == YAML_MAPPING_END_EVENT) return;
      if (event_.type != YAML_SCALAR_EVENT) refuse("a key that is no text");
      check(event_.data.scalar.anchor, event_.data.scalar.tag);
      const std::string key = scalar();
      if (!keys.insert(key).second) refuse("the key " + key.substr(0, 80) + " is there twice");
      next();
      lua::Value<std::string>::push(L_, key);
      value(depth + 1);
      lua_rawset(L_, -3);
    }
  }

  lua_State* L_;
  std::string name_;
  yaml_parser_t parser_;
  yaml_event_t event_;
  bool has_event_ = false;
  int values_ = 0;
};

int decode(Call& call) {
  const std::string text = call.arg<std::string>(1), name = call.arg<std::string>(2);
  Reader(call.L, text, name).document();
  return 1;
}
}  // namespace

void register_yaml(lua_State* L) {
  using lua::fn;
  lua::functions(L, "host", {{"yaml", fn<decode>}});
}

}  // namespace qeng
