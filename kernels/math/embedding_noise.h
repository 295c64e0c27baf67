// The strength of NEFTune's noise in a packed row of tokens.
#pragma once
#include <cstdint>

#include "kernels/math/host_device.h"

namespace qeng {

// strength / sqrt(length * n) for row `row` of `rows`; cu: [documents + 1], ascending. Rows past the last document
// share what is left, which nothing reads.
QENG_HD float noise_of_row(float strength, const int32_t* cu, int documents, int64_t row, int64_t rows, int64_t n) {
  int low = 0, high = documents;  // the first boundary past the row is in (low, high]
  if (documents < 1 || row >= cu[documents])
    return strength / __builtin_sqrtf(static_cast<float>(rows) * static_cast<float>(n));
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (cu[middle] <= row)
      low = middle;
    else
      high = middle;
  }
  return strength / __builtin_sqrtf(static_cast<float>(cu[high] - cu[low]) * static_cast<float>(n));
}

}  // namespace qeng
