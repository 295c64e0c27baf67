// How many counters of one-bit weights stand at each level.
#pragma once
#include <vector>

#include "engine/tensor/tensor.h"

namespace qeng {

// state: as the op CountLevels has it. Of planes one count for each of 2^planes levels; of u8 16 counts, of bytes 0 ..
// 15, 16 .. 31 and so on. Error("dtype" | "value") otherwise.
std::vector<int64_t> counter_levels(const Tensor& state);

}  // namespace qeng
