// Rings of buffers in shared memory between warps that fill them by TMA and warps that use them.
#pragma once
#include "kernels/cuda/ptx/ptx_sm90.h"

namespace qeng {

// A place in a ring of `stages` buffers, each with two mbarriers: full (one arrival, and the bytes) and empty (an
// arrival of each warp that uses it). Who uses the n-th filling waits for full with `parity`; who fills waits for empty
// with the opposite one, which on a fresh ring passes.
template <int stages>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void next() {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};
__device__ inline void init_ring(uint64_t* full, uint64_t* empty, int stages, int user_warps) {
  for (int i = 0; i < stages; ++i) {
    ptx::mbarrier_init(full + i, 1);
    ptx::mbarrier_init(empty + i, static_cast<uint32_t>(user_warps));
  }
}
// By all lanes of a warp, together, after they last used the buffer.
__device__ inline void release(uint64_t* empty) {
  __syncwarp();  // lane 0 speaks for what the others read
  if (threadIdx.x % kWarp == 0) ptx::mbarrier_arrive(empty);
}

}  // namespace qeng
