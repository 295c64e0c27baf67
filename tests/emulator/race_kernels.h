// Kernels with and without races, compiled with the calls that the race check answers.
#pragma once
#include <cuda_runtime.h>

namespace emulator_test {

__global__ void pass_on(int* out, int barriers);  // through shared memory; 1 bit: a barrier before the reads,
                                                  // 2: one before the next round's writes
__global__ void pass_on_in_warp(int* out, bool with_syncwarp);
__global__ void pass_on_after_shuffle(int* out);        // which orders nothing
__global__ void add_one_ahead(int* numbers, int when);  // when: 0 after begin_ahead, 1 before, -1 without it
__global__ void read_word(const char* in, uint32_t* out, int at);
__global__ void same_element(int* out, int stride);  // thread i of each block writes out[block * stride + i]
__global__ void last_block(int* sums, int* count, int* total, bool with_fence);
__global__ void copy_then_read(const uint4* in, uint4* out, bool with_barrier);
__global__ void overwrite_by_copy(const uint4* in, uint4* out, bool with_barrier);
__global__ void named_hand_over(int* out, bool with_barrier);
__global__ void count_atomically(int* out, bool read_plainly);

}  // namespace emulator_test
