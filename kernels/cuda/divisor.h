// Division of many numbers by one that the host knows: a product and a correction, where the device's takes twenty
// instructions.
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/cuda.h"

namespace qeng {

struct Divisor {
  uint32_t by = 1, inverse = UINT32_MAX;  // 2^32 / by, rounded down

  Divisor() = default;
  explicit Divisor(int divisor)  // at least 1
      : by(static_cast<uint32_t>(divisor)),
        inverse(static_cast<uint32_t>(std::min<uint64_t>((uint64_t{1} << 32) / by, UINT32_MAX))) {}
  bool operator==(const Divisor&) const = default;

  struct Parts {
    int quotient, rest;
  };
  // Of a number that is not negative. The product is x / by less than one short of it.
  __device__ Parts divide(int x) const {
    const auto number = static_cast<uint32_t>(x);
    uint32_t quotient = __umulhi(number, inverse), rest = number - quotient * by;
    if (rest >= by) ++quotient, rest -= by;
    return {static_cast<int>(quotient), static_cast<int>(rest)};
  }
};

}  // namespace qeng
