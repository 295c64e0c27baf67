// The second half of sums over rows: blocks of rows have each left a partial sum in memory, and these are added in an
// order that the shape alone determines.
#pragma once
#include "kernels/cuda/cuda.h"

namespace qeng {

constexpr int kSumColumns = 32;  // a block adds 32 columns, 128 bytes a row

// With `lanes` threads to a column:
// total[j] (+)= sum over b of partial[b, j]     partial: [blocks, columns]   total: [columns]
template <int lanes>
__global__ void __launch_bounds__(kSumColumns* lanes)
    add_partial_sums(const float* partial, int64_t blocks, int64_t columns, float* total, bool acc) {
  float* sums = reinterpret_cast<float*>(shared_memory());  // [lanes, kSumColumns]
  const int64_t column = int64_t{blockIdx.x} * kSumColumns + threadIdx.x % kSumColumns;
  float sum = 0;
  if (column < columns)
    for (int64_t block = threadIdx.x / kSumColumns; block < blocks; block += lanes)
      sum += partial[block * columns + column];
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x >= kSumColumns || column >= columns) return;
  for (int lane = 1; lane < lanes; ++lane) sum += sums[lane * kSumColumns + threadIdx.x];
  total[column] = acc ? total[column] + sum : sum;
}

inline void launch_add_partial_sums(CudaContext& context, const char* name, const float* partial, int64_t blocks,
                                    int64_t columns, float* total, bool acc) {
  const int lanes = blocks <= 64 ? 8 : 32;  // a thread's reads follow each other at the pace of the memory's latency
  launch(context, name, lanes == 8 ? add_partial_sums<8> : add_partial_sums<32>,
         dim3(static_cast<unsigned>(ceil_div(columns, kSumColumns))), dim3(static_cast<unsigned>(kSumColumns * lanes)),
         sizeof(float) * static_cast<size_t>(kSumColumns * lanes), partial, blocks, columns, total, acc);
}

}  // namespace qeng
