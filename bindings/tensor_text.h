// How a tensor prints: dtype, shape and label, then its values as NumPy shows them, in aligned columns.
//
//   f32 [3, 1000]  weights
//   [[ 0.0312 -0.0210  0.0007 ...  0.0145  0.0091 -0.0333]
//    ...
//
// Of more than 1000 elements the first and last three of each dimension are shown, and only those are read.
#pragma once
#include <string>

#include "engine/tensor/tensor.h"

namespace qeng {

std::string tensor_text(const TensorPtr& x);  // x is computed, and on a device that captures no program

}  // namespace qeng
