// Bank conflicts of reads and writes of shared memory, counted from the addresses that the lanes of a warp use.
//
// Shared memory has 32 banks of 4-byte words. In one turn a bank gives one word, to all lanes that want it; an access
// of 8 bytes goes by half warps, one of 16 by quarters. So an access of a warp takes, for each such part with lanes, as
// many turns as there are words that lie in one bank; the least is the number of its words over 32, rounded up.
//
// Fibers do not run in step, so which accesses are one access of the warp is found afterwards: the n-th of each lane at
// one instruction, since the lanes last met (at a barrier, a shuffle or the like). Kernels are compiled with calls at
// each load and store (races.h); instructions with a meaning of their own call note_access. Atomics are not counted.
#pragma once
#include <cstddef>
#include <cstdint>
#include <source_location>
#include <vector>

namespace emulator {

// Whether accesses are counted: $QENG_EMULATOR_BANKS names the file that gets a line for each kernel and place when the
// process ends. Races are not looked for then.
extern bool count_banks;
bool banks_wanted();  // by the environment

void note_access(const void* pointer, size_t bytes, bool writes, const void* pc);
void note_access(const void* pointer, size_t bytes, bool writes, const std::source_location& site);

// For the emulator's own use: the running thread comes to where lanes meet; all lanes of a warp or of a block have met;
// a grid of this kernel begins.
void bank_meeting();
void bank_warp_met(int warp);
void bank_block_met();
void bank_kernel(const void* kernel);

struct BankCount {
  uint32_t place = 0, bytes = 0;
  bool writes = false;
  uint64_t accesses = 0, turns = 0, least = 0;
};
// Of a kernel, by place; forgets them.
std::vector<BankCount> take_bank_counts(const void* kernel);

}  // namespace emulator
