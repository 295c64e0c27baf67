// Sums over rows whose order does not depend on the threads: blocks of rows each make a partial sum, and the partial
// sums are added in order.
#pragma once
#include <algorithm>

#include "kernels/cpu/cpu.h"

namespace qeng {

constexpr int64_t kSumRows = 64;  // rows of a partial sum: adds 1/64 of a row's bytes to what a row moves anyway

// body(begin, end, sum) adds rows begin .. end to sum: [n], cleared. total: [n], set or, with acc, added to.
template <class Body>
void column_sums(CpuContext& context, int64_t rows, int64_t n, float* total, bool acc, Body&& body) {
  const int64_t blocks = (rows + kSumRows - 1) / kSumRows;
  float* partial = context.scratch.take<float>(blocks * n);
  parallel_for(context.threads, blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      float* sum = partial + block * n;
      std::fill(sum, sum + n, 0.0f);
      body(block * kSumRows, std::min(rows, (block + 1) * kSumRows), sum);
    }
  });
  parallel_for(context.threads, n, 1024, [&](int64_t begin, int64_t end) {
    if (!acc) std::fill(total + begin, total + end, 0.0f);
    for (int64_t block = 0; block < blocks; ++block)
      context.isa->accumulate(isa::Float::f32, partial + block * n + begin, total + begin, end - begin);
  });
}

}  // namespace qeng
