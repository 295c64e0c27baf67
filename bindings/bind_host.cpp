// q.time, q.try, q.error, q.version, and of q.host the terminal, the process and what Ctrl-C does.
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>
#include <xxhash.h>

#include <cstdio>
#include <cstdlib>

#include "bindings/interrupt.h"
#include "bindings/lua.h"
#include "bindings/register.h"
#include "bindings/standard_streams.h"
#include "kernels/clock.h"

namespace qeng {
namespace {
using lua::Call;

int time(Call& call) { return call.push(seconds_now()); }

int hash(Call& call) {
  const std::string bytes = call.arg<std::string>(1);
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(XXH3_64bits(bytes.data(), bytes.size())));
  return call.push(std::string(text));
}

int isatty(Call& call) {
  const int fd = call.arg<int>(1, 1);
  if (fd < 0 || fd > 2) call.bad_argument(1, "0, 1 or 2 expected, got " + std::to_string(fd));
  return call.push(::isatty(fd) == 1);
}

int columns(Call& call) {
  winsize size{};
  if (ioctl(1, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return call.push(static_cast<int>(size.ws_col));
  const char* text = std::getenv("COLUMNS");
  const int wanted = text ? std::atoi(text) : 0;
  return call.push(wanted > 0 ? wanted : 80);
}

int peak_rss(Call& call) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return call.push(static_cast<int64_t>(usage.ru_maxrss) * 1024);  // Linux counts KiB
}

// fn's results, or nil and the error object; Lua's own errors become objects of code "lua". Ctrl-C is not caught.
int try_call(Call& call) {
  if (!lua_isfunction(call.L, 1)) call.bad_argument(1, "function expected, got " + lua::type_text(call.L, 1));
  try {
    lua::call(call.L, lua_gettop(call.L) - 1, LUA_MULTRET);
  } catch (const lua::LuaError& error) {
    if (error.code == "interrupted") throw;
    lua_settop(call.L, 0);
    lua_pushnil(call.L);
    if (error.code == "lua") {
      lua::push_error_object(call.L, "lua", error.what(), "");
    } else {
      error.object.push(call.L);
    }
  }
  return lua_gettop(call.L);
}

int error(Call& call) { throw Error(call.arg<std::string>(1), call.arg<std::string>(2)); }

int defer_interrupt(Call& call) {
  defer_interrupts(call.arg<bool>(1));
  return 0;
}
int interrupted(Call& call) {
  if (!interrupt_told()) return call.push(false);
  return call.push(true, std::string(interrupt_name()));
}
int outlive_output(Call&) {
  outlive_readers();
  return 0;
}

template <bool shielded>
int with_interrupts(Call& call) {
  if (!lua_isfunction(call.L, 1)) call.bad_argument(1, "function expected, got " + lua::type_text(call.L, 1));
  const InterruptShield shield(shielded);
  lua::call(call.L, lua_gettop(call.L) - 1, LUA_MULTRET);
  return lua_gettop(call.L);
}
}  // namespace

void register_host(lua_State* L) {
  using lua::fn;
  lua::functions(L, "", {{"time", fn<time>}, {"try", fn<try_call>}, {"error", fn<error>}});
  lua::functions(L, "host",
                 {{"hash", fn<hash>},
                  {"isatty", fn<isatty>},
                  {"columns", fn<columns>},
                  {"peak_rss", fn<peak_rss>},
                  {"defer_interrupt", fn<defer_interrupt>},
                  {"interrupted", fn<interrupted>},
                  {"outlive_output", fn<outlive_output>},
                  {"uninterrupted", fn<with_interrupts<true>>},
                  {"interruptible", fn<with_interrupts<false>>}});
  lua::push_core(L);
  lua::set_field(L, "version", QENG_VERSION);
  lua_pop(L, 1);
}

}  // namespace qeng
