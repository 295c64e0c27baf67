// Rows of stored dtypes, f16, bf16 and the block formats (kernels/math/blocks), as floats on the device.
#pragma once
#include "kernels/cuda/cuda.h"

namespace qeng {

// bf16 is a dtype of arithmetic too.
inline bool is_stored_only(DType dtype) { return is_block(dtype) || dtype == DType::f16; }

// y[i, j] = table[row(i), column + j], rounded to y's dtype, for i < rows, j < columns;
// row(i) = tokens ? tokens[i] : row + i. A token outside the table is reported, and gives row 0.
struct DecodeRows {
  View table;  // [.., width] of f16, bf16 or a block format
  int64_t row = 0, rows = 0;
  int64_t column = 0, columns = 0;  // of whole blocks
  const int32_t* tokens = nullptr;
  void* y = nullptr;  // [rows, columns] f32, bf16 or f16
  DType out = DType::f32;
};
void decode_rows(const char* name, const DecodeRows& rows, CudaContext& context);

}  // namespace qeng
