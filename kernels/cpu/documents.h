// Documents that lie end to end in rows: their boundaries cu [documents + 1] i32.
#pragma once
#include <cstring>

#include "kernels/cpu/cpu.h"

namespace qeng {

// The boundaries are data: they must rise from 0 and stay within the rows.
inline void check_boundaries(const char* op, const char* label, const View& cu, int64_t rows) {
  const int32_t* bounds = cu.as<int32_t>();
  for (int64_t i = 0; i < cu.elements(); ++i)
    if (bounds[i] < (i ? bounds[i - 1] : 0) || bounds[i] > rows || bounds[0] != 0)
      fail("value", op, ": ", label, "[", i, "] is ", bounds[i], "; expected ascending from 0 to at most ", rows);
}

// Zeros in the rows from the given one on, which are past the last document.
inline void clear_rows(const View& view, int64_t from) {
  const int64_t width = view.rows() ? view.elements() / view.shape[0] : 0;
  if (from < view.shape[0])
    std::memset(at(view, from * width), 0,
                static_cast<size_t>((view.shape[0] - from) * width) * dtype_size(view.dtype));
}

}  // namespace qeng
