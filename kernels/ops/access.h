// What an operation does with a view, where in it, and what it costs.
#pragma once
#include "kernels/view.h"

namespace qeng {

enum class Access : uint8_t { read, write, update };  // update: read and written (an accumulated gradient, a state)

// Bytes that must move to and from memory and floating-point operations that must be done, from the shapes alone.
struct Cost {
  double bytes = 0;
  double flops = 0;
};

// Where the indices of a space lie in a view: index i at element first + sum_d i_d stride_d. Strides may be 0 or less.
struct Strides {
  int64_t first = 0, stride[kMaxRank] = {};
};

}  // namespace qeng
