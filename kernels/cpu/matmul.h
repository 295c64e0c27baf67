// What the parts of Matmul share.
#pragma once
#include "kernels/cpu/cpu.h"

namespace qeng {

// Columns first .. first + n of row r of c, from alpha times the products: adds the bias and what is there, rounds
// once. Changes dots.
void finish_row(const Matmul& op, int64_t r, int64_t first, int64_t n, float* dots, const CpuContext& context);

// Matmul where b is one_bit (sign_matmul.cpp).
void multiply_signs(const Matmul& op, CpuContext& context);

}  // namespace qeng
