// What the device was measured to do.
#pragma once
#include "kernels/backend.h"
#include "kernels/cuda/cuda.h"

namespace qeng {

// Bytes/s (read and written) of a copy within the device's memory, or FLOP/s of Matmul in f32 or bf16, the best of a few
// tries. Uses up to an eighth of the free memory for a moment.
constexpr size_t kLimitMemory = size_t{1} << 30;  // two blocks of ten times the second-level cache
double measure_limit(Limit which, Backend& backend, CudaContext& context);

}  // namespace qeng
