// What the values of a tensor are like: extremes, moments, quantiles, and what is not finite. Exact, in two passes that
// hold a piece of the tensor at a time. Values count as f32; an i64 beyond 2^24 is rounded.
#pragma once
#include <array>
#include <cstdint>

#include "engine/tensor/tensor.h"

namespace qeng {

struct Description {
  static constexpr std::array<double, 5> kQuantiles = {0.01, 0.25, 0.5, 0.75, 0.99};

  int64_t elements = 0, zeros = 0, nan = 0, inf = 0;
  // Of the finite elements; NaN where there are none. std is divided by their number, not by one less.
  double min = 0, max = 0, mean = 0, std = 0;
  std::array<double, kQuantiles.size()> quantiles{};  // between two values linearly, as NumPy does
};

Description describe(const TensorPtr& x);

}  // namespace qeng
