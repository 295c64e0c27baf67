// Ctrl-C, SIGTERM, SIGHUP, SIGUSR1 or SIGUSR2 while Lua runs. By default it raises Error("interrupted") at the next Lua
// instruction or engine call. Deferred (q.host.defer_interrupt), the first one only sets a flag that the training loop
// asks for; a second one before it asked raises. A loop compiled by the JIT looks at no hook: where a raise is not
// taken within a second outside the engine, and no REPL is open (it runs with the JIT off), the process leaves.
// Shielded, it waits until the shield goes.
//
// The exit status is 128 and the signal's number (130, 143, 129, 138, 140), so that whoever sent it sees that it was
// obeyed. Who sends SIGTERM often sends it to the process and to its group; a terminal that closes sends SIGHUP twice.
// So a SIGTERM within a second of another signal to end is the same request, and SIGHUP is never a second one. All but
// Ctrl-C, where they were ignored from the start (nohup), stay ignored. Open MPI's mpirun hands SIGUSR2 on to its
// ranks, which it kills at the others.
#pragma once
#include <lua.hpp>

namespace qeng {

void watch_interrupts(lua_State* L);  // installs the handlers for this state
void defer_interrupts(bool on);
bool interrupt_waiting();           // will one be raised at the next Lua instruction? For engine calls that wait long
bool interrupt_came();              // as interrupt_waiting, or deferred and not told yet: for waits that may just end
bool interrupt_told();              // is the flag set? Whoever asks has been told: the next Ctrl-C is again a first one
void prompt_interrupts(bool on);    // while the REPL reads a line: Ctrl-C is only noted, for take_interrupt
bool take_interrupt(lua_State* L);  // forgets a Ctrl-C not yet raised; was there one?
void end_interrupts();              // the signals kill again
int interrupt_status();             // the exit status of an interrupted process: 128 and the latest signal
const char* interrupt_name();       // of the latest: "Ctrl-C", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"
bool told_to_end();                 // has another than Ctrl-C come? No REPL goes on then

// While one lives Ctrl-C waits (shielded), or comes as it does without any (not). It comes when the last that shields
// goes.
class InterruptShield {
 public:
  explicit InterruptShield(bool shielded);
  ~InterruptShield();
  InterruptShield(const InterruptShield&) = delete;
  InterruptShield& operator=(const InterruptShield&) = delete;

 private:
  const bool before_;
};

}  // namespace qeng
