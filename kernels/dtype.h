// The names of element types alone, for files that include no standard header (kernels/cpu/isa); the rest is in view.h.
#pragma once
#include <cstdint>

namespace qeng {

// The block formats after u8 pack the elements of a row in blocks with their scales (kernels/math/blocks); they are
// named as GGUF does, except int4 (AWQ's and GPTQ's 4 bits with a zero point), one_bit and ternary (our own, which have
// no scale). f16 and the block formats are read, not computed in.
enum class DType : uint8_t {
  f32,
  bf16,
  f16,
  i32,
  i64,
  u8,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_0,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
  iq4_nl,
  mxfp4,
  iq4_xs,
  iq2_xxs,
  iq2_xs,
  iq2_s,
  iq3_xxs,
  iq3_s,
  iq1_s,
  iq1_m,
  tq1_0,
  tq2_0,
  q1_0,
  q2_0,
  pq2_0,
  ptq1_0,
  int4,
  one_bit,
  ternary,
};
constexpr int kDTypeCount = static_cast<int>(DType::ternary) + 1;
// Block formats that are read, and that nothing here writes.
constexpr bool is_read_only(DType dtype) { return dtype >= DType::iq2_xxs && dtype <= DType::iq1_m; }

}  // namespace qeng
