// The inside of the emulator: one block of threads, each thread a fiber. For those who add an instruction to
// ptx_emulated.h or device_functions.h; kernels never call this. What an instruction may need:
//
//   meet_warp, meet_warpgroup   threads that execute one instruction together (shuffles, mma, wgmma)
//   wait_until                  wait for what other threads do (an mbarrier's phase)
//   barrier                     the 16 barriers of a block
//   per_block, per_thread       state that an instruction keeps (cp.async's queue, wgmma's groups)
//   shared_address, ...         shared memory and its bounds
//   fail                        the program did something undefined: ends the launch with a report
//   touch, release, acquire     (races.h) what the race check must know of an instruction
//
// A fiber runs until it waits, so between two waits a thread is alone. Blocks run one after another.
// `Site` is the place in the source that the report names; take it as a default argument of the instruction's function.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <string>
#include <vector>

#include "tests/emulator/races.h"
#include "tests/emulator/vector_types.h"

namespace emulator {

using Site = std::source_location;

// The thread that runs: its number in the block, its lane, its warp, and the number of threads of the block.
int thread();
inline int lane() { return thread() % 32; }
inline int warp() { return thread() / 32; }
int threads();
std::string thread_name(int thread);  // "(x,y,z)"
bool in_kernel();                     // false on the program's own stack
bool on_stack(const void* pointer);   // of the running fiber

// Ends the launch: the report names the kernel, block, thread, `what` (the instruction), its place, and says `message`.
// Unwinds the fiber with an exception of no public type.
[[noreturn]] void fail(const char* what, const std::string& message, Site site);
// The same without leaving: the thread goes on until it next waits or exits.
void report_failure(const std::string& message);

// Threads that execute one instruction together. Each brings a slot of its own (its operands and room for its results)
// and waits; the last to arrive calls complete(Slot* const* slots), slots by lane (0 to 31; null for lanes outside the
// mask) or by thread of the warpgroup (0 to 127), which writes the results into the slots, and goes on at once. It
// fails where a named thread does not exist, has exited, or stands at another instruction, place or mask. `complete` is
// a lambda without captures.
using Complete = void (*)(void* const* slots);
void meet_warp(const char* what, uint32_t mask, void* slot, Complete complete, Site site);
void meet_warpgroup(const char* what, void* slot, Complete complete, Site site);

template <class Slot, class F>
void meet_warp(const char* what, uint32_t mask, Slot& slot, F, Site site) {
  meet_warp(
      what, mask, static_cast<void*>(&slot), [](void* const* slots) { F{}(reinterpret_cast<Slot* const*>(slots)); },
      site);
}
template <class Slot, class F>
void meet_warpgroup(const char* what, Slot& slot, F, Site site) {
  meet_warpgroup(
      what, static_cast<void*>(&slot), [](void* const* slots) { F{}(reinterpret_cast<Slot* const*>(slots)); }, site);
}

// Returns once done() is true; done() must not wait, and may be called from other fibers while this thread waits, many
// times. A block in which nobody can go on is a deadlock: it fails, with the list of who waits where.
void wait_until(const char* what, bool (*done)(const void*), const void* state, Site site);
template <class F>
void wait_until(const char* what, const F& done, Site site) {
  wait_until(
      what, [](const void* state) { return static_cast<bool>((*static_cast<const F*>(state))()); }, &done, site);
}
// Lets other threads run.
void yield();

// Barrier `id` (0 to 15) over `count` threads. Of all that arrive with `value`, returns how many had a nonzero one; 0
// at once where the thread does not wait. Whole warps arrive, at one place in the source; at barrier 0 the whole block.
int barrier(const char* what, int id, int count, bool wait, int value, Site site);

// The block's dynamic shared memory: exactly the size asked for, aligned to 1024, 0xff in each byte when a block
// begins.
char* shared_memory();
size_t shared_size();
// The 32-bit shared address of `bytes` bytes at `pointer`, which must lie in shared memory and be aligned to `align`.
// Dynamic shared memory starts at kSharedBase (on the device the first KB is the system's).
constexpr uint32_t kSharedBase = 1024;
uint32_t shared_address(const char* what, const void* pointer, size_t bytes, size_t align, Site site);
// And back.
char* shared_pointer(const char* what, uint32_t address, size_t bytes, size_t align, Site site);
// Fails where `pointer` is not aligned.
inline void check_aligned(const char* what, const void* pointer, size_t align, Site site) {
  if (reinterpret_cast<uintptr_t>(pointer) % align != 0)
    fail(what, "address is not aligned to " + std::to_string(align) + " bytes", site);
}

// What an instruction keeps from call to call: one T per block or per thread, default-constructed when a block first
// asks for it, destroyed when the block ends.
using Destroy = void (*)(void*);
void*& block_slot(size_t index, Destroy destroy);
size_t new_block_slot();
template <class T>
T& per_block() {
  static const size_t index = new_block_slot();
  void*& slot = block_slot(index, [](void* object) { delete static_cast<T*>(object); });
  if (!slot) slot = new T();
  return *static_cast<T*>(slot);
}
template <class T>
struct PerThread {
  std::vector<T> of = std::vector<T>(static_cast<size_t>(threads()));
};
template <class T>
T& per_thread() {
  return per_block<PerThread<T>>().of[static_cast<size_t>(thread())];
}

// Random numbers of the schedule, from QENG_EMULATOR_SEED. arrives_early: whether an asynchronous copy that starts now
// lands at once (the earliest legal moment) or only when it is waited for (the latest). A block draws its inclination.
uint32_t random_bits();
bool arrives_early();

// Runs a grid: the body once per thread. False where it failed; the report is then in last_report().
bool run_grid(const char* name, dim3 grid, dim3 block, size_t shared, const std::function<void()>& body,
              bool ahead = false);

// A grid that is launched ahead may begin before the kernel before it has ended. Each of its threads calls begin_ahead,
// which waits for that, or else the launch fails; and the race check finds device memory that one touches before.
void begin_ahead();
bool has_begun();  // the running thread; always, where the grid is not ahead

void set_seed(uint64_t seed);  // as QENG_EMULATOR_SEED does at the start (1 where it is not set)
uint64_t seed();
// What the last failure was; empty before the first.
const std::string& last_report();
void set_report(std::string text);

// What the emulator did so far: fibers entered, and meetings and barriers completed.
struct Counts {
  uint64_t switches = 0, meetings = 0, barriers = 0;
};
Counts counts();

}  // namespace emulator
