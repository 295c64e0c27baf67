// What the device was measured to do.
#pragma once
#include "kernels/cuda/cuda.h"

namespace qeng {

// Bytes/s (read and written) of a copy within the device's memory, and FLOP/s of Matmul in f32 and bf16, each the best
// of a few tries. Uses up to an eighth of the free memory for a moment.
constexpr size_t kLimitsMemory = size_t{1} << 30;  // two blocks of ten times the second-level cache
Limits measure_limits(Backend& backend, CudaContext& context);

}  // namespace qeng
