// Rows of stored dtypes from and to f32, on the host. Decoding goes element by element, for what must be exact rather
// than fast (kernels/cpu has the fast decoder); encoding by kernels/cpu/isa, the same bytes with any instruction set.
// Formats: kernels/math/blocks.
#pragma once
#include "kernels/view.h"

namespace qeng {

// out[i] = element first + i of the row, i < count. dtype: f32, bf16, f16 or a block format; row: whole blocks, aligned
// to two bytes; the range lies inside it. Other dtypes are Error("dtype").
void decode_row(DType dtype, const void* row, int64_t first, int64_t count, float* out);

// The blocks nearest to x: [count] f32, finite and at most 65504 in size; count: whole blocks. importance: [count], not
// negative, what the squared error of each element weighs; or null. Formats of a scale of largest magnitudes alone
// (q8_0, the ternary ones) do not heed it. Without importance the simple formats give the bytes of llama.cpp's
// reference.
void encode_row(DType dtype, const float* x, const float* importance, int64_t count, void* row);

// How many bits are set of a, or of a xor b where b is not null.
int64_t count_bits(const void* a, const void* b, int64_t bytes);

}  // namespace qeng
