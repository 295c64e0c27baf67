#include "bindings/interrupt.h"

#include <sys/time.h>
#include <unistd.h>

#include <csignal>
#include <ctime>

#include "bindings/lua.h"
#include "bindings/state.h"

namespace qeng {
namespace {
constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
lua_State* watched = nullptr;
volatile sig_atomic_t deferred = 0, prompting = 0, interactive = 0, pending = 0, raising = 0;
volatile sig_atomic_t shielded = 0, behind_shield = 0;  // the second: an interrupt waits for the end of the shield
volatile sig_atomic_t latest = SIGINT, ending = 0;      // the second: one to end, once it has come
timespec ended_at{};                                    // when

void cancel_alarm() {
  const itimerval off{};
  setitimer(ITIMER_REAL, &off, nullptr);
}

// Nobody catches an error outside protected_call, and its handler of errors may have none: the next instruction will do.
bool can_raise(lua_State* L, lua_Debug* at) {
  if (!in_protected_call()) return false;
  lua_getinfo(L, "f", at);
  const bool handler = lua_tocfunction(L, -1) == keep_traceback;
  lua_pop(L, 1);
  return !handler;
}

void raise_here(lua_State* L, lua_Debug* at) {
  if (!can_raise(L, at)) return;
  lua_sethook(L, nullptr, 0, 0);
  cancel_alarm();
  raising = 0;
  if (shielded) {  // asked for just before
    behind_shield = 1;
    return;
  }
  pending = 0;
  lua::raise(L, "interrupted", lua_pushfstring(L, "interrupted by %s", interrupt_name()));
}

void request_raise() {
  raising = 1;
  // The same call that LuaJIT's own command line makes from its handler.
  lua_sethook(watched, raise_here, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
  if (interactive) return;
  itimerval second{};
  second.it_value.tv_sec = 1;
  setitimer(ITIMER_REAL, &second, nullptr);
}

void request() {
  if (shielded) {
    behind_shield = 1;
    return;
  }
  if (prompting || (deferred && pending == 0)) {
    pending = 1;
    return;
  }
  request_raise();
}

// The same request once more (interrupt.h)?
bool repeated(int signal) {
  if (signal == SIGINT) return false;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const long ms = (now.tv_sec - ended_at.tv_sec) * 1000 + (now.tv_nsec - ended_at.tv_nsec) / 1000000;
  if (signal == SIGHUP ? ending || pending || raising || behind_shield : ending && ms < 1000) return true;
  ended_at = now;
  return false;
}

void on_interrupt(int signal) {
  if (!watched || repeated(signal)) return;
  latest = signal;
  if (signal != SIGINT) ending = signal;
  request();
}

void on_alarm(int) {
  if (!raising || lua::in_engine()) return;
  static const char text[] = "\nqeng: interrupted in a compiled loop\n";
  [[maybe_unused]] const ssize_t written = write(2, text, sizeof(text) - 1);
  _exit(interrupt_status());
}

// Handlers have a stack of their own: oneDNN's kernels for f32 (dnnl_sgemm) use the stack pointer for memory of the heap,
// where a handler on the thread's stack would write over what lies before it. 64 KB hold the registers of AMX too.
void take_signal_stack() {
  alignas(16) static char memory[1 << 16];
  stack_t stack{};
  stack.ss_sp = memory, stack.ss_size = sizeof memory;
  sigaltstack(&stack, nullptr);
}
}  // namespace

void watch_interrupts(lua_State* L) {
  watched = L;
  take_signal_stack();
  struct sigaction action {};
  sigemptyset(&action.sa_mask);
  for (const int signal : kSignals) sigaddset(&action.sa_mask, signal);  // one at a time
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_ONSTACK;  // no SA_RESTART: a read from the terminal returns
  for (const int signal : kSignals) {
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    if (signal == SIGINT || before.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
  }
  action.sa_handler = on_alarm;
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  sigaction(SIGALRM, &action, nullptr);
}

void defer_interrupts(bool on) {
  const bool raise_now = !on && pending == 1;
  deferred = on ? 1 : 0;
  pending = 0;
  if (raise_now && watched) request_raise();
}

bool interrupt_waiting() { return raising != 0; }
bool interrupt_came() { return raising != 0 || pending == 1; }

bool interrupt_told() {
  if (pending == 0) return false;
  pending = 2;
  return true;
}

void prompt_interrupts(bool on) {
  interactive = 1;
  prompting = on ? 1 : 0;
}

bool take_interrupt(lua_State* L) {
  const bool was = pending || raising;
  cancel_alarm();
  lua_sethook(L, nullptr, 0, 0);
  pending = 0;
  raising = 0;
  return was;
}

namespace {
void shield(bool on) {
  shielded = on ? 1 : 0;
  if (on || !behind_shield) return;
  behind_shield = 0;
  request();
}
}  // namespace

InterruptShield::InterruptShield(bool shielded_now) : before_(shielded != 0) { shield(shielded_now); }
InterruptShield::~InterruptShield() { shield(before_); }

void end_interrupts() {
  cancel_alarm();
  watched = nullptr;
  for (const int signal : kSignals) {
    if (std::signal(signal, SIG_DFL) == SIG_IGN) std::signal(signal, SIG_IGN);
  }
}

int interrupt_status() { return 128 + latest; }

const char* interrupt_name() {
  switch (latest) {
    case SIGTERM: return "SIGTERM";
    case SIGHUP: return "SIGHUP";
    case SIGUSR1: return "SIGUSR1";
    case SIGUSR2: return "SIGUSR2";
    default: return "Ctrl-C";
  }
}

bool told_to_end() { return ending != 0; }

}  // namespace qeng
