#include "bindings/host.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "bindings/interrupt.h"
#include "bindings/lua.h"
#include "bindings/repl.h"
#include "bindings/runtime.h"
#include "bindings/standard_streams.h"
#include "bindings/state.h"
#include "engine/ranks/ranks.h"

namespace qeng {
namespace fs = std::filesystem;
namespace {

constexpr const char* kHelp =
    R"(usage: qeng FILE [options of the recipe]   run a recipe; qeng FILE --help prints its options
       qeng                                the REPL; leave it with Ctrl-D
       qeng -e CODE [arguments]            run Lua code, with q = require "qeng"

options, before FILE
  -e CODE    run CODE
  -i         open the REPL afterwards, with the variables of FILE, the local ones too
  --help     print this
  --version  print the version

environment
  QENG_SCRIPTS=DIR   read the Lua library from DIR (scripts/ of a checkout) instead of the one inside qeng
  QENG_HISTORY=FILE  history of the REPL (~/.qeng_history)
  QENG_TRACE=1       print a Lua traceback with every error
)";

struct CommandLine {
  std::string file, code;
  bool has_file = false, has_code = false, interactive = false, help = false, version = false;
  std::vector<std::string> rest;
};

std::string recipe_folder;  // of the running recipe, for find_file

[[noreturn]] void usage(const std::string& text) { throw Error("usage", text + " (qeng --help lists the options)"); }

CommandLine parse(int argc, char** argv) {
  CommandLine line;
  int i = 1;
  for (; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "-e") {
      if (i + 1 == argc) usage("-e needs Lua code after it");
      line.code += (line.has_code ? "\n" : "") + std::string(argv[++i]);
      line.has_code = true;
    } else if (word == "-i") {
      line.interactive = true;
    } else if (word == "-h" || word == "--help") {
      line.help = true;
    } else if (word == "--version") {
      line.version = true;
    } else if (word.size() > 1 && word[0] == '-') {
      usage("unknown option " + word + lua::did_you_mean(word, {"-e", "-i", "--help", "--version"}));
    } else {
      break;
    }
  }
  if (i < argc && !line.has_code) line.file = argv[i++], line.has_file = true;
  for (; i < argc; ++i) line.rest.push_back(argv[i]);
  return line;
}

fs::path executable_folder() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).parent_path();
}

std::vector<fs::path> search_roots() {
  const fs::path bin = executable_folder();
  std::vector<fs::path> roots;
  if (!recipe_folder.empty()) roots.insert(roots.end(), {recipe_folder, fs::path(recipe_folder) / ".."});
  roots.insert(roots.end(), {bin / "../share/qeng", bin / ".."});
  return roots;
}

std::string missing_recipe(const std::string& path) {
  std::vector<std::string> near;
  const fs::path folder = fs::path(path).parent_path();
  std::vector<fs::path> places{folder.empty() ? fs::path(".") : folder};
  for (const fs::path& root : search_roots()) places.push_back(root / folder);
  for (const fs::path& place : places) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(place, error)) {
      if (entry.path().extension() == ".lua") near.push_back((folder / entry.path().filename()).string());
    }
  }
  const bool bare = folder.empty() && fs::path(path).extension().empty();
  return path + ": no such recipe" + lua::did_you_mean(bare ? path + ".lua" : path, near);
}

void set_arguments(lua_State* L, const std::string& script, const std::vector<std::string>& rest) {
  lua_createtable(L, static_cast<int>(rest.size()), 1);
  lua_pushstring(L, script.c_str()), lua_rawseti(L, -2, 0);
  for (size_t i = 0; i < rest.size(); ++i)
    lua_pushstring(L, rest[i].c_str()), lua_rawseti(L, -2, static_cast<int>(i) + 1);
  lua_setglobal(L, "arg");
}

// The recipe's own folder comes first on package.path.
void set_package_path(lua_State* L, const std::string& folder) {
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "path");
  const std::string path = folder + "/?.lua;" + folder + "/?/init.lua;" + lua_tostring(L, -1);
  lua_pop(L, 1);
  lua::set_field(L, "path", path);
  lua_pop(L, 1);
}

// os.exit, once nothing is queued on a device.
int finish_and_exit(lua_State* L) {
  finish_runtimes();
  return lua_tocfunction(L, lua_upvalueindex(1))(L);  // in this frame, so that its errors say where
}

void watch_exit(lua_State* L) {
  lua_getglobal(L, "os");
  lua_getfield(L, -1, "exit");
  lua_pushcclosure(L, finish_and_exit, 1);
  lua_setfield(L, -2, "exit");
  lua_pop(L, 1);
}

// Prints the error on top of the stack; returns the exit status that goes with it.
int report(lua_State* L) {
  std::string code;
  const std::string text = error_report(L, &code);
  print_error((code == "interrupted" ? "\nqeng: " : "qeng: ") + text);
  return code == "usage" ? kExitUsage : code == "interrupted" ? interrupt_status() : kExitFailed;
}

bool push_library(lua_State* L) {
  lua_getglobal(L, "require");
  lua_pushstring(L, "qeng");
  return protected_call(L, 1, 1);
}

int run_chunk(lua_State* L, int load_status, const CommandLine& line) {
  if (load_status != 0) return report(L);
  const auto arguments = static_cast<int>(line.rest.size());
  if (!lua_checkstack(L, arguments + 10))
    fail("usage", "the command line has ", arguments,
         " words, more than a recipe can be given: give a folder, or a pattern in quotation marks");
  for (const std::string& word : line.rest) lua_pushstring(L, word.c_str());
  const bool done = line.interactive ? run_at_prompt(L, arguments, line.has_file) : protected_call(L, arguments, 0);
  return done ? kExitDone : report(L);
}

int run(const CommandLine& line) {
  std::string path;
  if (line.has_file) {
    path = find_file(line.file);
    if (path.empty() && fs::path(line.file).extension().empty()) path = find_file(line.file + ".lua");
    if (path.empty()) fail("io", missing_recipe(line.file));
    if (fs::is_directory(path)) fail("io", path, ": is a folder, not a recipe");
    recipe_folder = fs::path(path).parent_path().string();
    if (recipe_folder.empty()) recipe_folder = ".";
  }
  LuaState L;
  set_arguments(L, line.has_file ? path : "qeng", line.rest);
  set_package_path(L, line.has_file ? recipe_folder : ".");
  watch_interrupts(L);
  watch_exit(L);

  int status = kExitDone;
  const bool repl = line.interactive || !(line.has_file || line.has_code);
  if (line.has_code || repl) {
    if (!push_library(L)) return report(L);
    lua_setglobal(L, "q");
  }
  if (line.interactive) prepare_repl(L);
  if (line.has_code) status = run_chunk(L, luaL_loadbuffer(L, line.code.data(), line.code.size(), "=-e"), line);
  if (line.has_file) status = run_chunk(L, luaL_loadfile(L, path.c_str()), line);
  if (repl) status = run_repl(L);
  std::fflush(stdout);
  if (status == kExitDone) Ranks::leave();
  end_interrupts();
  return status;
}
// A process of q.host.process is told to end when the one that started it dies, in whatever way: a training writes its
// checkpoint, and nobody finds it running who does not know of it.
void follow_parent() {
  const char* text = std::getenv("QENG_PARENT");
  if (!text) return;
  const std::string parent = text;
  ::unsetenv("QENG_PARENT");  // what it starts itself follows it
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (std::to_string(::getppid()) != parent) std::raise(SIGTERM);  // it was too late for the signal
}

}  // namespace

std::string find_file(const std::string& path) {
  std::error_code error;
  if (fs::exists(path, error)) return path;
  if (fs::path(path).is_absolute()) return "";
  for (const fs::path& root : search_roots()) {
    if (fs::exists(root / path, error)) return (root / path).lexically_normal().string();
  }
  return "";
}

int run_host(int argc, char** argv) {
  guard_standard_streams();
  follow_parent();
  struct End {
    ~End() { end_runtimes(); }
  } end;
  try {
    const CommandLine line = parse(argc, argv);
    if (line.help) return std::fputs(kHelp, stdout), kExitDone;
    if (line.version) return std::printf("qeng %s, %s\n", QENG_VERSION, LUAJIT_VERSION), kExitDone;
    return run(line);
  } catch (const Error& error) {
    print_error("qeng: " + std::string(error.what()));
    return error.code == "usage" ? kExitUsage : kExitFailed;
  } catch (const std::exception& error) {
    print_error("qeng: " + std::string(error.what()));
    return kExitFailed;
  }
}

}  // namespace qeng
