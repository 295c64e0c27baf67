#include "bindings/state.h"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "bindings/embedded.h"
#include "bindings/lua.h"
#include "bindings/luajit_faults.h"
#include "bindings/register.h"

namespace qeng {
namespace {
bool read_file(const std::string& path, std::string* text) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return false;
  std::ostringstream all;
  all << file.rdbuf();
  *text = all.str();
  return true;
}

// package.loaders entry: "qeng.a.b" is scripts/qeng/a/b.lua, or scripts/qeng/a/b/init.lua of a room. Chunks are named
// "=qeng/a/b.lua", by which error messages tell the library from the recipe.
int search_library(lua_State* L) {
  const std::string module = luaL_checkstring(L, 1);
  if (module != "qeng" && module.rfind("qeng.", 0) != 0) return 0;
  std::string stem = module;
  for (char& each : stem)
    if (each == '.') each = '/';
  std::string text;
  for (const std::string& path : {stem + ".lua", stem + "/init.lua"}) {
    if (!library_file("scripts/" + path, &text)) continue;
    if (luaL_loadbuffer(L, text.data(), text.size(), ("=" + path).c_str()) != 0) return lua_error(L);
    return 1;
  }
  lua_pushfstring(L, "\n\tno file '%s.lua' in the library of qeng", stem.c_str());
  return 1;
}

int load_core(lua_State* L) {
  lua::push_core(L);
  return 1;
}

// require "qeng.library_file" (path): the text of a file of the library; help reads api.lua with it.
int read_library_file(lua_State* L) {
  std::string text;
  if (!library_file(luaL_checkstring(L, 1), &text)) return 0;
  lua_pushlstring(L, text.data(), text.size());
  return 1;
}
int load_library_file(lua_State* L) {
  lua_pushcfunction(L, read_library_file);
  return 1;
}

// require "qeng.library_files" (folder): the names of the Lua files in a folder of the library, sorted.
int list_library_files(lua_State* L) {
  const std::string folder = luaL_checkstring(L, 1);
  std::set<std::string> names;
  const auto take = [&](const std::string& name) {
    if (name.size() > 4 && name.ends_with(".lua") && name.find('/') == std::string::npos) names.insert(name);
  };
  if (const char* root = std::getenv("QENG_SCRIPTS")) {
    std::error_code missing;
    for (const auto& entry : std::filesystem::directory_iterator(std::string(root) + "/" + folder, missing))
      take(entry.path().filename().string());
  }
  const std::string start = "scripts/" + folder + "/";
  for (const EmbeddedFile* file = kEmbeddedFiles; file->path; ++file) {
    const std::string path = file->path;
    if (path.rfind(start, 0) == 0) take(path.substr(start.size()));
  }
  lua_newtable(L);
  for (const std::string& name : names) {
    lua_pushlstring(L, name.data(), name.size());
    lua_rawseti(L, -2, static_cast<int>(lua_objlen(L, -2)) + 1);
  }
  return 1;
}
int load_library_files(lua_State* L) {
  lua_pushcfunction(L, list_library_files);
  return 1;
}

// Messages of the engine name no options of recipes: the library does (scripts/qeng/console/hints.lua).
std::string with_hints(lua_State* L, const std::string& text) {
  const int top = lua_gettop(L);
  lua_getglobal(L, "require");
  lua_pushstring(L, "qeng.console.hints");
  std::string hinted = text;
  if (lua_pcall(L, 1, 1, 0) == 0) {
    lua_pushlstring(L, text.data(), text.size());
    if (lua_pcall(L, 1, 1, 0) == 0 && lua_isstring(L, -1)) hinted = lua_tostring(L, -1);
  }
  lua_settop(L, top);
  return hinted;
}

thread_local int protected_depth = 0;  // protected_calls that run
}  // namespace

int keep_traceback(lua_State* L) {
  if (lua_gettop(L) < 1) lua_pushnil(L);
  luaL_traceback(L, L, nullptr, 1);
  lua_setfield(L, LUA_REGISTRYINDEX, "qeng.traceback");
  lua_settop(L, 1);
  return 1;
}

bool in_protected_call() { return protected_depth > 0; }

bool library_file(const std::string& path, std::string* text) {
  if (const char* root = std::getenv("QENG_SCRIPTS")) {
    const bool script = path.rfind("scripts/", 0) == 0;
    const std::string inner = script ? path.substr(std::strlen("scripts/")) : path;
    if (read_file(std::string(root) + "/" + inner, text) || read_file(std::string(root) + "/../" + inner, text))
      return true;
  }
  for (const EmbeddedFile* file = kEmbeddedFiles; file->path; ++file) {
    if (path == file->path) return text->assign(file->text, file->size), true;
  }
  return false;
}

LuaState::LuaState() : L_(luaL_newstate()) {
  if (!L_) fail("memory", "LuaJIT could not create a state");
  luaL_openlibs(L_);
  if (luaL_dostring(L_, "return require('ffi').abi('gc64')") != 0 || !lua_toboolean(L_, -1)) {
    lua_close(L_);
    fail("unsupported",
         "this LuaJIT lacks GC64 and cannot hold more than 2 GB: build LuaJIT 2.1 with GC64, or use Debian's");
  }
  lua_pop(L_, 1);
  avoid_luajit_faults(L_);

  register_host(L_);
  register_json(L_);
  register_yaml(L_);
  register_unicode(L_);
  register_fs(L_);
  register_runtime(L_);
  register_tensor(L_);
  register_describe(L_);
  register_view(L_);
  register_autograd(L_);
  register_expression(L_);
  register_shapes(L_);
  register_program(L_);
  register_ranks(L_);
  register_rehearsal(L_);
  register_quantize(L_);
  register_onebit(L_);
  register_weights(L_);
  register_safetensors(L_);
  register_npy(L_);
  register_gguf(L_);
  register_stream(L_);
  register_tokenizer(L_);
  register_packets(L_);
  register_batches(L_);
  register_convert(L_);
  register_line_editor(L_);
  register_sampler(L_);
  register_grammar(L_);
  register_sandbox(L_);
  register_process(L_);
  register_generate(L_);
  register_hub(L_);
  register_blocks(L_);
  register_peers(L_);
  register_http(L_);
  register_statistics(L_);

  lua_getglobal(L_, "package");
  lua_getfield(L_, -1, "preload");
  lua_pushcfunction(L_, load_core);
  lua_setfield(L_, -2, "qeng.core");
  lua_pushcfunction(L_, load_library_file);
  lua_setfield(L_, -2, "qeng.library_file");
  lua_pushcfunction(L_, load_library_files);
  lua_setfield(L_, -2, "qeng.library_files");
  lua_getfield(L_, -2, "loaders");
  for (int i = static_cast<int>(lua_objlen(L_, -1)); i >= 2; --i) lua_rawgeti(L_, -1, i), lua_rawseti(L_, -2, i + 1);
  lua_pushcfunction(L_, search_library);
  lua_rawseti(L_, -2, 2);
  lua_pop(L_, 3);
}

LuaState::~LuaState() { lua_close(L_); }

bool protected_call(lua_State* L, int arguments, int results) {
  const int handler = lua_gettop(L) - arguments;
  lua_pushcfunction(L, keep_traceback);
  lua_insert(L, handler);
  ++protected_depth;
  const bool ok = lua_pcall(L, arguments, results, handler) == 0;
  --protected_depth;
  lua_remove(L, handler);
  return ok;
}

std::string error_report(lua_State* L, std::string* code) {
  const lua::LuaError error(L);
  *code = error.code;
  std::string text = error.what();
  error.object.push(L);
  if (error.code != "usage" && luaL_callmeta(L, -1, "__tostring") != 0) {
    if (lua_isstring(L, -1)) text = lua_tostring(L, -1);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  if (error.code != "usage" && error.code != "lua") text = with_hints(L, text);
  lua_getfield(L, LUA_REGISTRYINDEX, "qeng.traceback");
  if (lua_isstring(L, -1) && (error.code == "lua" || error.code == "internal" || std::getenv("QENG_TRACE")))
    text += std::string("\n") + lua_tostring(L, -1);
  lua_pop(L, 1);
  lua_pushnil(L);  // an error of syntax has none, and would show this one
  lua_setfield(L, LUA_REGISTRYINDEX, "qeng.traceback");
  return text;
}

}  // namespace qeng
