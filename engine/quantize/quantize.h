// Tensors into block formats. Decoding is Cast (q: tensor:to).
#pragma once
#include "engine/tensor/tensor.h"

namespace qeng {

// x in the block format: each row of columns() weights as whole blocks, nearest to x by least squares
// (kernels/blocks.h). x: f32, bf16 or f16, of any rank. importance: [columns()] f32, not negative, what the squared
// error of a column weighs, or null; mean squares of a linear's inputs over a calibration text are such weights. The
// bytes do not depend on the threads. Error("dtype") for another type; Error("shape") for rows that are not whole
// blocks, naming what does fit them; Error("value") for weights that are not finite or that a half-precision scale
// cannot hold (above 65504).
TensorPtr quantize(const TensorPtr& x, DType type, const TensorPtr& importance = nullptr,
                   const std::string& account = "weights");

}  // namespace qeng
