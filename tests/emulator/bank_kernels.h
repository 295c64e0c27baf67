// Kernels with and without bank conflicts, compiled with the calls that the counts are made from.
#pragma once
#include <cuda_runtime.h>

namespace emulator_test {

// Each thread reads or writes number threadIdx.x * apart of shared memory.
__global__ void read_words(float* out, int apart);
__global__ void read_pairs(float* out, int apart);
__global__ void read_fours(float* out, int apart);
__global__ void write_bytes(int apart);
__global__ void write_fours(int apart);
__global__ void copy_fours(const uint4* in, int apart);       // by cp.async
__global__ void read_rows(float* out, int count, int apart);  // the lanes of a warp take `count` words by turns

}  // namespace emulator_test
