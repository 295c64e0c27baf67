#include "tests/emulator/bank_kernels.h"

#include "kernels/cuda/ptx/ptx.h"

namespace emulator_test {

namespace {
template <class T>
__device__ T* mine(int apart) {
  return reinterpret_cast<T*>(qeng::shared_memory()) + static_cast<int>(threadIdx.x) * apart;
}
}  // namespace

__global__ void read_words(float* out, int apart) { out[threadIdx.x] = *mine<float>(apart); }

__global__ void read_pairs(float* out, int apart) {
  const float2 pair = *mine<float2>(apart);
  out[threadIdx.x] = pair.x + pair.y;
}

__global__ void read_fours(float* out, int apart) {
  const float4 four = *mine<float4>(apart);
  out[threadIdx.x] = four.x + four.y + four.z + four.w;
}

__global__ void write_bytes(int apart) { *mine<uint8_t>(apart) = 1; }

__global__ void write_fours(int apart) {
  const float4 four = make_float4(1, 2, 3, 4);
  *mine<float4>(apart) = four;
}

__global__ void copy_fours(const uint4* in, int apart) {
  qeng::ptx::cp_async_16(mine<uint4>(apart), in + threadIdx.x);
  qeng::ptx::cp_async_commit();
  qeng::ptx::cp_async_wait<0>();
}

__global__ void read_rows(float* out, int count, int apart) {
  const float* numbers = reinterpret_cast<const float*>(qeng::shared_memory());
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += 32) sum += numbers[i * apart];
  if (threadIdx.x < 4) sum += numbers[threadIdx.x];
  out[threadIdx.x] = sum;
}

}  // namespace emulator_test
