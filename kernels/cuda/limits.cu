#include <algorithm>
#include <cstring>

#include "kernels/cuda/limits.h"

namespace qeng {

namespace {

constexpr int kTries = 5;
#ifdef QENG_EMULATED
constexpr bool kEmulated = true;  // nothing is measured there
#else
constexpr bool kEmulated = false;
#endif

// Seconds of the fastest try, by the device's clock.
template <class Work>
double fastest(cudaStream_t stream, Work work) {
  cudaEvent_t begin, end;
  check_cuda(cudaEventCreate(&begin), "creating an event");
  check_cuda(cudaEventCreate(&end), "creating an event");
  work();  // the first run loads code and chooses algorithms
  float best = 1e30f;
  for (int i = 0; i < kTries; ++i) {
    check_cuda(cudaEventRecord(begin, stream), "recording an event");
    work();
    check_cuda(cudaEventRecord(end, stream), "recording an event");
    check_cuda(cudaEventSynchronize(end), "measuring the device");
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, begin, end), "measuring the device");
    best = std::min(best, milliseconds);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return std::max(1e-9, best / 1e3);
}

// Numbers of [-1, 1), a block of them repeated: products of zeros draw less power and run faster than any real ones.
void fill_random(Backend& backend, CudaContext& context, void* memory, DType dtype, size_t bytes) {
  std::vector<unsigned char> block(std::min<size_t>(bytes, size_t{1} << 20));
  uint32_t state = 1;
  for (size_t i = 0; i < block.size(); i += dtype_size(dtype)) {
    state = state * 1664525u + 1013904223u;
    const float x = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
    const bf16 rounded = to_bf16(x);
    if (dtype == DType::f32)
      std::memcpy(&block[i], &x, sizeof x);
    else
      std::memcpy(&block[i], &rounded, sizeof rounded);
  }
  backend.upload(memory, block.data(), block.size());
  for (size_t done = block.size(); done < bytes; done *= 2)
    check_cuda(cudaMemcpyAsync(static_cast<char*>(memory) + done, memory, std::min(done, bytes - done),
                               cudaMemcpyDeviceToDevice, context.stream),
               "measuring the device");
}

double matmul_rate(Backend& backend, CudaContext& context, DType dtype, int64_t size) {
  const size_t bytes = static_cast<size_t>(size * size) * dtype_size(dtype);
  void* memory[3];
  for (void*& block : memory) {
    block = backend.allocate(bytes);
    fill_random(backend, context, block, dtype, bytes);
  }
  Matmul op;
  op.a = View(memory[0], dtype, {size, size}), op.b = View(memory[1], dtype, {size, size});
  op.c = View(memory[2], dtype, {size, size}), op.trans_b = true;
  const double seconds = fastest(context.stream, [&] { backend.run(op); });
  for (void* block : memory) backend.release(block, bytes);
  return 2.0 * static_cast<double>(size) * static_cast<double>(size) * static_cast<double>(size) / seconds;
}

double copy_rate(Backend& backend, CudaContext& context) {
  const size_t bytes = kEmulated ? 4096 : std::min<size_t>(kLimitMemory / 2, backend.memory().free / 16);
  void *from = backend.allocate(bytes), *to = backend.allocate(bytes);
  const double seconds = fastest(context.stream, [&] {
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, context.stream), "measuring the device");
  });
  backend.release(from, bytes);
  backend.release(to, bytes);
  return 2.0 * static_cast<double>(bytes) / seconds;
}

}  // namespace

double measure_limit(Limit which, Backend& backend, CudaContext& context) {
  if (which == &Limits::bandwidth) return copy_rate(backend, context);
  if (which == &Limits::flops_bf16) return matmul_rate(backend, context, DType::bf16, kEmulated ? 16 : 8192);
  return matmul_rate(backend, context, DType::f32, kEmulated ? 16 : 4096);
}

}  // namespace qeng
