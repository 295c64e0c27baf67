// The race check: two threads of a grid touch the same byte of shared or device memory, one of them writes, and nothing
// orders the two, whatever the order they happened to run in. Kernels are compiled with g++'s -fsanitize=thread for it,
// whose calls at each load and store are answered in tsan_hooks.cpp; without that, all of this does nothing.
//
// What orders, as CUDA's memory model has it: the program's order in a thread, barriers, __syncwarp; between blocks, a
// __threadfence followed by an atomic on a word whose value the other block then takes with an atomic. Shuffles, votes
// and matrix instructions order nothing. An instruction with a meaning of its own calls touch, release and acquire.
#pragma once
#include <cstddef>
#include <cstdint>
#include <source_location>
#include <vector>

namespace emulator {

enum class Touch { read, write, atomic };
// The running thread touches memory, in a way that the compiler's calls do not show.
void touch(const void* pointer, size_t bytes, Touch kind, std::source_location site);
// The compiler's calls, from the instruction before `pc`. aligned: it takes the address for a multiple of the size, as the
// device will.
void touch_at(const void* pointer, size_t bytes, Touch kind, const void* pc, bool aligned = false);

// What an instruction like an mbarrier carries from threads to threads: all that a releasing thread did so far comes
// before all that an acquiring thread does from now on.
struct Order {
  std::vector<uint32_t> clocks;
  uint32_t block = 0;
};
void release(Order& order);
void acquire(const Order& order);

// A warpgroup's tensor cores touch memory beside its threads. What all threads of the running thread's warpgroup know
// when they start, the cores know; what the cores touched before a mark, the threads know once they waited for it.
void start_cores();
void touch_by_cores(const void* pointer, size_t bytes, Touch kind, std::source_location site);
uint32_t mark_cores();
void wait_for_cores(uint32_t mark);

// For the emulator's own use: __syncwarp, a barrier of the whole block, __threadfence; and the start of a block.
void order_warp(uint32_t mask);
void order_block();
void order_fence();
void begin_block(bool of_new_launch);

// The plain accesses in its scope are part of one atomic on `pointer`.
struct Atomic {
  Atomic(const void* pointer, size_t bytes);
  ~Atomic();
};

extern bool check_races;

}  // namespace emulator
