// What the parts of RowLinear share.
#pragma once
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/signs/sign_tables.h"

namespace qeng {

// Columns first .. first + n of row r of y_i, from the products of x with those rows of w_i, which it writes over.
void finish_row(const RowLinear& op, size_t i, int64_t r, int64_t first, int64_t n, float* dots, const isa::Table& isa);

// The products of those weights that are one_bit or ternary (sign_linear.cpp).
void sign_products(const RowLinear& op, CpuContext& context);

}  // namespace qeng
