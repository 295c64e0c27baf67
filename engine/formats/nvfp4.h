// GGUF's NVFP4 as f16, which holds all its numbers: w = d v[q], groups of 16; v: FP4 E2M1 doubled
// (kernels/math/blocks/tables.h), d: half of an E4M3 without sign (of exponent bias 7; 0 and 0x7f are zero). A block
// has 64 weights in 36 bytes: d of four groups, then eight bytes a group, byte j of which holds weight j low and weight
// j + 8 high. Its groups' factors are no integers, as those of the formats that RowLinear computes with are, so it is
// decoded when it is read. (llama.cpp: block_nvfp4. What multiplies a whole tensor stands beside it in a file, and is
// the caller's.)
#pragma once
#include <cstddef>

#include "kernels/math/bf16.h"

namespace qeng {

constexpr int kNvfp4Elements = 64, kNvfp4Bytes = 36;

// out: [kNvfp4Elements * blocks]
void decode_nvfp4(const std::byte* from, int64_t blocks, f16* out);

}  // namespace qeng
