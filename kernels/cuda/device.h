// What device code is written with. The sources of this folder are compiled twice: by nvcc, and by g++ against the
// stand-in for <cuda_runtime.h> in tests/emulator, which runs each thread of a block as a fiber. So device code uses
//   - CUDA's names for thread indices, barriers, shuffles, votes and integer atomics, nothing of cooperative_groups;
//   - shared_memory() for all shared memory (dynamic, carved by the kernel; never a static __shared__ array, which the
//     emulator could neither poison nor bound);
//   - the named wrappers of ptx.h (and ptx_sm90.h) for every instruction that C++ has no word for;
//   - no atomics on floats, no printf, no recursion, no dynamic allocation.
// A collective (barrier, shuffle, vote, mma, ldmatrix) is met by all threads it names, at the same place in the source.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/fault.h"
#include "kernels/math/bf16.h"

namespace qeng {

#ifndef QENG_EMULATED
// Start of the block's dynamic shared memory, aligned to 1024 bytes (the period of the 128-byte swizzle).
__device__ inline char* shared_memory() {
  extern __shared__ __align__(1024) char memory[];
  return memory;
}
#else
using emulator::shared_memory;
#endif

constexpr int kWarp = 32;
constexpr uint32_t kAllLanes = 0xffffffffu;

__device__ inline void report(Fault* fault, FaultKind kind, int64_t place, int64_t value, int64_t limit) {
  if (atomicCAS(reinterpret_cast<int*>(&fault->kind), 0, static_cast<int>(kind)) != 0) return;
  fault->place = place, fault->value = value, fault->limit = limit;
}

// Sums and maxima over the lanes of a warp, the same in every lane; a fixed tree, so the same bits each time.
template <class T>
__device__ T warp_sum(T x) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}
__device__ inline float warp_max(float x) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, offset));
  return x;
}

}  // namespace qeng
