// What an operation does with a view, and what it costs.
#pragma once
#include "kernels/view.h"

namespace qeng {

enum class Access : uint8_t { read, write, update };  // update: read and written (an accumulated gradient, a state)

// Bytes that must move to and from memory and floating-point operations that must be done, from the shapes alone.
struct Cost {
  double bytes = 0;
  double flops = 0;
};
}  // namespace qeng
