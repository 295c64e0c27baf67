// Rows of stored dtypes as f32, on the host: element by element, for what must be exact rather than fast (kernels/cpu
// has the fast one). Formats: kernels/math/blocks.
#pragma once
#include "kernels/view.h"

namespace qeng {

// out[i] = element first + i of the row, i < count. dtype: f32, bf16, f16 or a block format; row: whole blocks, aligned
// to two bytes; the range lies inside it. Other dtypes are Error("dtype").
void decode_row(DType dtype, const void* row, int64_t first, int64_t count, float* out);

}  // namespace qeng
