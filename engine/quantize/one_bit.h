// One-bit and ternary weights: figures of them, and the formats of GGUF that hold them with their scales.
#pragma once
#include "engine/tensor/tensor.h"

namespace qeng {

// How many elements of x are +1; in how many x and y differ. one_bit of any shape, the same for both; Error("dtype")
// and Error("shape") otherwise. Tensors of another device than the CPU are copied to the host.
int64_t count_set_bits(const Tensor& x);
int64_t count_differing_bits(const Tensor& x, const Tensor& y);

// Weights w times the scale of their row. As GGUF has them: one_bit as q1_0 (blocks of 128) and ternary as tq2_0 (of
// 256), each block with its row's scale rounded to f16; or as f32, bf16 or f16. w: one_bit or ternary [rows, columns],
// scale: [rows] f32. Error("dtype") for another type; Error("shape") for rows that are not whole blocks, naming what
// fits them; Error("value") for a scale that f16 does not hold (not finite, or above 65504).
TensorPtr join_row_scale(const TensorPtr& w, const TensorPtr& scale, DType type,
                         const std::string& account = "weights");

// The other way: w and scale. Error("value") where the blocks of a row differ in scale, or one has tq2_0's code 3. What
// scale a block of zeros has does not matter.
struct RowScaled {
  TensorPtr w, scale;
};
RowScaled split_row_scale(const TensorPtr& packed, const std::string& account = "weights");

}  // namespace qeng
