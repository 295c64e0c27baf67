// What quantizing needs to know: which inputs of a linear layer matter, and what rounding cost.
#pragma once
#include "engine/tensor/tensor.h"

namespace qeng {

// sums[c] += sum over rows of x[r, c]^2     x: [..., columns], any dtype that can be decoded   sums: [columns] f32 on
// the host
void add_column_squares(Tensor& sums, const Tensor& x);

struct SquaredError {
  double error = 0;  // sum (x - y)^2
  double total = 0;  // sum x^2
};
// x, y: same shape, dtypes that can be decoded. Does not depend on the threads.
SquaredError squared_error(const TensorPtr& x, const TensorPtr& y);

}  // namespace qeng
