#include "tests/emulator/race_kernels.h"

#include "kernels/cuda/ptx/ptx.h"

namespace emulator_test {

using qeng::shared_memory;
namespace ptx = qeng::ptx;

__global__ void pass_on(int* out, int barriers) {
  int* numbers = reinterpret_cast<int*>(shared_memory());
  const unsigned t = threadIdx.x;
  int mine = static_cast<int>(t);
  for (int round = 0; round < 2; ++round) {
    numbers[t] = mine;
    if (barriers & 1) __syncthreads();
    mine = numbers[(t + 1) % blockDim.x];
    if (barriers & 2) __syncthreads();
  }
  out[t] = mine;
}

__global__ void pass_on_in_warp(int* out, bool with_syncwarp) {
  int* numbers = reinterpret_cast<int*>(shared_memory());
  numbers[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (with_syncwarp) __syncwarp();
  out[threadIdx.x] = numbers[threadIdx.x ^ 1];
}

__global__ void pass_on_after_shuffle(int* out) {
  int* numbers = reinterpret_cast<int*>(shared_memory());
  numbers[threadIdx.x] = static_cast<int>(threadIdx.x);
  const int other = __shfl_xor_sync(~0u, static_cast<int>(threadIdx.x), 1);
  out[threadIdx.x] = numbers[other];
}

__global__ void add_one_ahead(int* numbers, int when) {
  if (when == 1) numbers[threadIdx.x] += 1;
  if (when >= 0) ptx::begin_ahead();
  if (when == 0) numbers[threadIdx.x] += 1;
}

__global__ void read_word(const char* in, uint32_t* out, int at) { *out = *reinterpret_cast<const uint32_t*>(in + at); }

__global__ void same_element(int* out, int stride) {
  out[static_cast<int>(blockIdx.x) * stride + static_cast<int>(threadIdx.x)] = 1;
}

__global__ void last_block(int* sums, int* count, int* total, bool with_fence) {
  int* last = reinterpret_cast<int*>(shared_memory());
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = static_cast<int>(blockIdx.x);
    if (with_fence) __threadfence();
    *last = atomicAdd(count, 1) == static_cast<int>(gridDim.x) - 1;
    if (with_fence) __threadfence();
  }
  __syncthreads();
  if (*last && threadIdx.x == 1) {
    int sum = 0;
    for (unsigned i = 0; i < gridDim.x; ++i) sum += sums[i];
    *total = sum;
  }
}

__global__ void copy_then_read(const uint4* in, uint4* out, bool with_barrier) {
  auto* place = reinterpret_cast<uint4*>(shared_memory());
  ptx::cp_async_16(place + threadIdx.x, in + threadIdx.x);
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  if (with_barrier) __syncthreads();
  out[threadIdx.x] = place[threadIdx.x ^ 1];
}

__global__ void overwrite_by_copy(const uint4* in, uint4* out, bool with_barrier) {
  auto* place = reinterpret_cast<uint4*>(shared_memory());
  place[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = place[threadIdx.x ^ 33];
  if (with_barrier) __syncthreads();
  ptx::cp_async_16(place + threadIdx.x, in + threadIdx.x);
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
}

__global__ void named_hand_over(int* out, bool with_barrier) {
  int* number = reinterpret_cast<int*>(shared_memory());
  if (threadIdx.x < 32) {
    if (threadIdx.x == 5) *number = 7;
    if (with_barrier) ptx::barrier_arrive(1, 64);
  } else {
    if (with_barrier) ptx::barrier_sync(1, 64);
    out[threadIdx.x] = *number;
  }
}

__global__ void count_atomically(int* out, bool read_plainly) {
  atomicAdd(out, 1);
  if (read_plainly && threadIdx.x == 3) out[1] = out[0];
}

}  // namespace emulator_test
