// Sums of products, one or several, by one kernel, on Hopper.
#pragma once
#include "kernels/cuda/linear/gemm.h"

namespace qeng {

// Whether it takes the operation: bf16 whose rows lie at multiples of 16 bytes; c in f32 where it is added to; and
// results of as many rows, or with trans_a of as many columns.
bool suits_matmul_sum(const MatmulSum& op, const CudaContext& context);
void matmul_sum_sm90(const MatmulSum& op, CudaContext& context);

}  // namespace qeng
