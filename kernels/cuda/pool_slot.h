// Where a new token of a paged cache goes.
#pragma once
#include "kernels/cuda/cuda.h"

namespace qeng {

// The slot of a pool that token t is stored to; -1: nowhere. tells: whether this thread reports one that is wrong.
__device__ inline int64_t pool_slot(const int32_t* slots, int64_t t, int64_t pool_slots, bool tells, Fault* fault) {
  const int64_t slot = slots[t];
  if (slot >= -1 && slot < pool_slots) return slot;
  if (tells) report(fault, FaultKind::slot, t, slot, pool_slots);
  return -1;
}

}  // namespace qeng
