// Rows of x as one_bit and ternary weights read them: rounded to int8 codes q, as kernels/math/blocks/activations.h
// says.
//   one_bit   tables of what each run of 4 codes adds to a dot product, by the four bits v that a weight has there.
//   Over
//             the runs of a group of activations
//               sum_i w_i q_i = 2 sum_run (tables[run, 0, v] + 32 tables[run, 1, v]) - sum_i |q_i|
//             as an entry counts from the least that its run can add. An entry of a byte table fits five bits, so that
//             eight of them add in a byte, and all the runs of a group in 16 bits. With GFNI the codes themselves
//             (sign_planes_gfni.h)
//   ternary   the codes, those of a group as [4, 64]: element 4 i + j at [j, i], as bits 2 j of byte i of a weight are
//             its factor:  sum_i w_i q_i = sum_i (w_i + 1) q_i - sum_i q_i
#pragma once
#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/math/blocks/activations.h"

namespace qeng::isa {

constexpr int64_t kSignRows = 32;     // of a one_bit w that are read together: a lane of bytes each
constexpr int64_t kSignUnit = 16;     // bytes of a row of it that are read together: 32 runs
constexpr int64_t kMostSignRows = 8;  // of x: their sums and a group of their tables stay in the first-level cache
constexpr int64_t kSumRows = 16;      // of f32 x whose sums are taken together: a cache line
constexpr int64_t kSumRuns = 16;  // of four elements whose tables are made together: 16 KB, half a first-level cache
constexpr int64_t kSumColumns = 4 * kSumRuns;
constexpr bool is_signs(DType format) { return format == DType::one_bit || format == DType::ternary; }
constexpr int64_t sign_groups(int64_t k) { return (k + blocks::kSignGroup - 1) / blocks::kSignGroup; }
// Runs of a row, with those of zeros that fill its last unit.
constexpr int64_t sign_runs(int64_t k) { return (k + 8 * kSignUnit - 1) / (8 * kSignUnit) * (2 * kSignUnit); }
constexpr int64_t sign_row_bytes(DType format, int64_t k) {
  return format == DType::one_bit ? sign_runs(k) * 32 : sign_groups(k) * blocks::kSignGroup;
}

// Memory is the caller's.
struct SignTables {
  int64_t k = 0;
  uint8_t* tables = nullptr;  // [rows, sign_row_bytes], aligned to 32 bytes
  float* scales = nullptr;    // [rows, sign_groups]
  int32_t* less = nullptr;    // [rows, sign_groups]: what to take off, sums of |q| or of q
};

}  // namespace qeng::isa
