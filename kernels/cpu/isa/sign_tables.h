// Rows of x as one_bit and ternary weights read them: rounded to int8 codes q as kernels/math/blocks/activations.h
// says, and as tables of what each run of as many elements as four bits of a weight hold (4 of one_bit, 2 of ternary)
// adds to a dot product, by those four bits v. Over the runs of a group of activations
//   sum_i w_i q_i = twice sum_run (tables[run, 0, v] + 32 tables[run, 1, v]) - sizes,   twice: 2 of one_bit, 1 of
//   ternary
// as an entry counts from the least that its run can add. An entry of a byte table fits five bits, so that eight of
// them add in a byte, and all the runs of a group in 16 bits.
#pragma once
#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/math/blocks/activations.h"

namespace qeng::isa {

constexpr int64_t kSignRows = 32;     // of w that are read together: a lane of bytes each
constexpr int64_t kSignUnit = 16;     // bytes of a row of w that are read together: 32 runs
constexpr int64_t kMostSignRows = 8;  // of x: their sums and a group of their tables stay in the first-level cache
constexpr bool is_signs(DType format) { return format == DType::one_bit || format == DType::ternary; }
constexpr int64_t sign_run(DType format) { return format == DType::one_bit ? 4 : 2; }  // elements
// Runs of a row, with those of zeros that fill its last unit.
constexpr int64_t sign_runs(DType format, int64_t k) {
  const int64_t unit = kSignUnit * 2 * sign_run(format);
  return (k + unit - 1) / unit * kSignUnit * 2;
}
constexpr int64_t sign_groups(int64_t k) { return (k + blocks::kSignGroup - 1) / blocks::kSignGroup; }

// Memory is the caller's.
struct SignTables {
  int64_t k = 0;
  uint8_t* tables = nullptr;  // [rows, sign_runs, 2, 16], aligned to 32 bytes
  float* scales = nullptr;    // [rows, sign_groups]
  int32_t* sizes = nullptr;   // [rows, sign_groups]: sums of |q|
};

}  // namespace qeng::isa
