// Weights as signs and a scale for each row.
#pragma once
#include "engine/quantize/one_bit.h"

namespace qeng {

// The signs of w's rows and the mean of |w| over each, which with them errs least: one_bit [rows, columns] and f32
// [rows].
// w: f32, bf16 or f16 [rows, columns], columns a multiple of 32; Error("dtype" | "shape") otherwise, Error("value") for
// weights that are not finite.
RowScaled binarize(const TensorPtr& w, const std::string& account = "weights");

}  // namespace qeng
