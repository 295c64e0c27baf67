// Which struct a block format's bytes are.
#pragma once
#include "kernels/dtype.h"
#include "kernels/math/blocks/int4.h"
#include "kernels/math/blocks/iq.h"
#include "kernels/math/blocks/iq4_xs.h"
#include "kernels/math/blocks/one_bit.h"
#include "kernels/math/blocks/q2_0.h"
#include "kernels/math/blocks/q3_k.h"
#include "kernels/math/blocks/q4_k.h"
#include "kernels/math/blocks/q5.h"
#include "kernels/math/blocks/q6_k.h"
#include "kernels/math/blocks/q8_0.h"
#include "kernels/math/blocks/tables.h"
#include "kernels/math/blocks/ternary.h"

namespace qeng::blocks {

// Calls f with a block of the format: with_block(dtype, [&](auto tag) { using Block = decltype(tag); ... }).
// The dtype has to be one (is_block).
template <class F>
static inline auto with_block(DType dtype, F f) {
  switch (dtype) {
    case DType::q4_0: return f(Q4_0{});
    case DType::q4_1: return f(Q4_1{});
    case DType::q5_0: return f(Q5_0{});
    case DType::q5_1: return f(Q5_1{});
    case DType::q8_0: return f(Q8_0{});
    case DType::q2_k: return f(Q2_K{});
    case DType::q3_k: return f(Q3_K{});
    case DType::q4_k: return f(Q4_K{});
    case DType::q5_k: return f(Q5_K{});
    case DType::q6_k: return f(Q6_K{});
    case DType::iq4_nl: return f(IQ4_NL{});
    case DType::mxfp4: return f(MXFP4{});
    case DType::iq4_xs: return f(IQ4_XS{});
    case DType::iq2_xxs: return f(IQ2_XXS{});
    case DType::iq2_xs: return f(IQ2_XS{});
    case DType::iq2_s: return f(IQ2_S{});
    case DType::iq3_xxs: return f(IQ3_XXS{});
    case DType::iq3_s: return f(IQ3_S{});
    case DType::iq1_s: return f(IQ1_S{});
    case DType::iq1_m: return f(IQ1_M{});
    case DType::tq1_0: return f(TQ1_0{});
    case DType::tq2_0: return f(TQ2_0{});
    case DType::q1_0: return f(Q1_0{});
    case DType::q2_0: return f(Q2_0{});
    case DType::pq2_0: return f(PQ2_0{});
    case DType::ptq1_0: return f(PTQ1_0{});
    case DType::int4: return f(Int4{});
    case DType::one_bit: return f(OneBit{});
    case DType::ternary: return f(Ternary{});
    default: __builtin_trap();
  }
}

}  // namespace qeng::blocks
