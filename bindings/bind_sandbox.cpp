// q.host.sandbox: runs Lua code that nobody has read, such as a model's answer. It runs in a process of its own, so
// that neither a loop inside a C function nor memory taken at once can hurt: a fresh Lua state with base functions, string,
// table and math, without io, os, ffi, debug, package and bytecode; limits of the system on time, memory, files and
// processes; and a count of instructions.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>

#include "bindings/lua.h"
#include "bindings/register.h"

namespace qeng {
namespace {
using lua::Call;
constexpr size_t kMostText = 64 << 10;  // of what comes back

void stop_counting(lua_State* L, lua_Debug*) { luaL_error(L, "over the limit of instructions"); }

// A bytecode chunk can break out of the state, so only text is loaded.
int load_text(lua_State* L) {
  size_t bytes;
  const char* text = luaL_checklstring(L, 1, &bytes);
  if (luaL_loadbufferx(L, text, bytes, "=loaded", "t") == 0) return 1;
  lua_pushnil(L);
  lua_insert(L, -2);
  return 2;
}

// In the child: the answer is a byte, '+' or '-', then text.
std::string run_code(const std::string& code, int64_t instructions) {
  lua_State* L = luaL_newstate();
  if (!L) return "-no memory for a Lua state";
  const std::pair<const char*, lua_CFunction> libraries[] = {
      {"", luaopen_base}, {"string", luaopen_string}, {"table", luaopen_table}, {"math", luaopen_math}};
  for (const auto& [name, open] : libraries) {
    lua_pushcfunction(L, open);
    lua_pushstring(L, name);
    lua_call(L, 1, 0);
  }
  for (const char* name :
       {"dofile", "loadfile", "load", "loadstring", "collectgarbage", "print", "newproxy", "gcinfo"}) {
    lua_pushnil(L);
    lua_setglobal(L, name);
  }
  lua_getglobal(L, "string");
  lua_pushnil(L);
  lua_setfield(L, -2, "dump");
  lua_pop(L, 1);
  for (const char* name : {"load", "loadstring"}) lua_pushcfunction(L, load_text), lua_setglobal(L, name);
  luaJIT_setmode(L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF);  // compiled code would not count instructions
  lua_sethook(L, stop_counting, LUA_MASKCOUNT, static_cast<int>(instructions));
  const bool good = luaL_loadbufferx(L, code.data(), code.size(), "=answer", "t") == 0 && lua_pcall(L, 0, 1, 0) == 0;
  size_t bytes = 0;
  const char* text = lua_isboolean(L, -1) ? (lua_toboolean(L, -1) ? "true" : "false") : lua_tolstring(L, -1, &bytes);
  if (lua_isboolean(L, -1)) bytes = std::strlen(text);
  return (good ? "+" : "-") + std::string(text ? text : "", std::min(bytes, kMostText));
}

[[noreturn]] void be_child(int pipe, const std::string& code, int64_t instructions, int64_t memory, double seconds) {
  const auto limit = [](int what, rlim_t most) {
    const rlimit value = {most, most};
    return ::setrlimit(what, &value) == 0;
  };
  long pages = 0;
  if (FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%ld", &pages) != 1) pages = 0;
    std::fclose(file);
  }
  // What the parent has mapped counts as well.
  const bool limited = pages > 0 &&
                       limit(RLIMIT_AS, static_cast<rlim_t>(pages) * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) +
                                            static_cast<rlim_t>(memory)) &&
                       limit(RLIMIT_CPU, static_cast<rlim_t>(seconds + 1)) && limit(RLIMIT_FSIZE, 0) &&
                       limit(RLIMIT_CORE, 0) && limit(RLIMIT_NPROC, 0);
  const std::string answer = limited ? run_code(code, instructions) : "-the limits could not be set";
  size_t at = 0;
  while (at < answer.size()) {
    const ssize_t wrote = ::write(pipe, answer.data() + at, answer.size() - at);
    if (wrote <= 0) break;
    at += static_cast<size_t>(wrote);
  }
  ::_exit(0);
}

int sandbox(Call& call) {
  const auto code = call.arg<std::string>(1);
  lua::Options opt(call, 2, {"instructions", "memory", "seconds"});
  const auto instructions = opt.get("instructions", int64_t{20'000'000}),
             memory = opt.get("memory", int64_t{256} << 20);
  const auto seconds = opt.get("seconds", 5.0);
  if (instructions < 1 || instructions > INT32_MAX || memory < (1 << 20) || !(seconds > 0 && seconds <= 3600)) {
    fail("value", "sandbox: limits are instructions 1 to 2^31, memory from 1 MiB, seconds up to 3600");
  }
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail("io", "sandbox: ", std::strerror(errno));
  const pid_t child = ::fork();
  if (child < 0) {
    ::close(ends[0]), ::close(ends[1]);
    fail("io", "sandbox: ", std::strerror(errno));
  }
  if (child == 0) be_child(ends[1], code, instructions, memory, seconds);
  ::close(ends[1]);
  std::string answer;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  bool late = false;
  for (char buffer[4096]; !late;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    pollfd ready = {ends[0], POLLIN, 0};
    const int state = ::poll(&ready, 1, static_cast<int>(std::max<long long>(0, left)));
    if (state < 0 && errno == EINTR) continue;
    late = state <= 0;
    const ssize_t got = late ? 0 : ::read(ends[0], buffer, sizeof buffer);
    if (got <= 0) break;
    answer.append(buffer, static_cast<size_t>(got));
  }
  ::close(ends[0]);
  ::kill(child, SIGKILL);
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (late) return call.push(false, std::string("over the limit of time"));
  if (answer.empty()) return call.push(false, std::string("ended without an answer: over the limit of memory or time"));
  return call.push(answer[0] == '+', answer.substr(1));
}
}  // namespace

void register_sandbox(lua_State* L) { lua::functions(L, "host", {{"sandbox", lua::fn<sandbox>}}); }

}  // namespace qeng
