// What the parts of RowLinear share.
#pragma once
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/signs/sign_tables.h"

namespace qeng {

// Columns first .. first + n of row r of y_i, from the products of x with those rows of w_i, which it writes over.
void finish_row(const RowLinear& op, size_t i, int64_t r, int64_t first, int64_t n, float* dots, const isa::Table& isa);

constexpr int64_t kFewRows = 16;  // of x, for which repacking a panel of w costs more than it gains

// x rounded for weights of a block format, in scratch memory; `few`: for block_dots.
isa::Activations round_rows(const View& x, DType format, bool few, CpuContext& context);
// x in f32 for weights of a float dtype: itself, or in scratch memory; for bf16 rounded to bf16.
const float* float_rows(const View& x, DType weight, CpuContext& context);
// Whether w is multiplied by tiles: bf16, where the processor has them.
inline bool has_tiles(const View& w, const isa::Table& isa) { return w.dtype == DType::bf16 && isa.bf16_tiles; }
// Rows of a weight that a thread takes at a time for few rows of x, where the weights have total_bytes and it has so
// many of a row.
int64_t rows_of_piece(bool interleaved, int64_t total_bytes, int64_t row_bytes, int threads);

// The products of those weights that are one_bit or ternary (sign_linear.cpp).
void sign_products(const RowLinear& op, CpuContext& context);

}  // namespace qeng
