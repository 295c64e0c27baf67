// What the parts of Matmul share.
#pragma once
#include "kernels/cpu/cpu.h"

namespace qeng {

// Columns first .. first + n of row r of c, from alpha times the products: adds the bias and what is there, rounds
// once. Changes dots.
void finish_row(const Matmul& op, int64_t r, int64_t first, int64_t n, float* dots, const CpuContext& context);

// A product that the calling thread makes by itself; false: out of memory.
bool multiply_tile(const Tile& tile, const CpuContext& context);

// Matmul where b is one_bit (sign_matmul.cpp).
void multiply_signs(const Matmul& op, CpuContext& context);

// Rows that are read in step and lie a multiple of 1 KB apart share few sets of the first-level cache: oneDNN's f32
// product of such operands, which walks down the columns, takes up to three times as long as that of a copy.
inline bool is_bad_stride(int64_t columns) { return columns % 256 == 0; }
// Elements from one f32 row of the copy to the next: an odd number of cache lines, so that rows fall into different sets.
inline int64_t good_stride(int64_t columns) { return (columns + 31) / 32 * 32 + 16; }

}  // namespace qeng
