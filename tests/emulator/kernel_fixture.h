// Kernels of the emulator's own tests: to run one, and memory to give it.
#pragma once
#include <cuda_runtime.h>

#include <string>
#include <vector>

namespace emulator_test {

#ifdef QENG_EMULATED
// Runs the kernel to its end under a seed.
template <class... Params, class... Args>
cudaError_t run(uint64_t seed, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared, Args... args) {
  emulator::set_seed(seed);
  cudaDeviceReset();
  const cudaError_t status = emulator::launch("kernel", reinterpret_cast<const void*>(kernel), grid, block, shared,
                                              nullptr, [=] { kernel(args...); });
  return status ? status : cudaDeviceSynchronize();
}
// What a launch of one block, which should fail, reports.
template <class... Params, class... Args>
std::string report_of(void (*kernel)(Params...), dim3 block, size_t shared, Args... args) {
  const cudaError_t status = run(1, kernel, 1, block, shared, args...);
  cudaDeviceReset();
  return status == cudaErrorLaunchFailure ? emulator::last_report() : "no failure";
}
#else
// The same on a GPU, where there is no seed.
template <class... Params, class... Args>
cudaError_t run(uint64_t, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared, Args... args) {
  if (shared > 48 * 1024)
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
  kernel<<<grid, block, shared>>>(args...);
  const cudaError_t status = cudaGetLastError();
  return status ? status : cudaDeviceSynchronize();
}
#endif

// Memory of the device, read and written through copies.
template <class T>
struct Device {
  explicit Device(size_t count_) : count(count_) { cudaMalloc(&data, count * sizeof(T)); }
  explicit Device(const std::vector<T>& values) : Device(values.size()) {
    cudaMemcpy(data, values.data(), count * sizeof(T), cudaMemcpyHostToDevice);
  }
  ~Device() { cudaFree(data); }
  Device(const Device&) = delete;
  std::vector<T> read() const {
    std::vector<T> values(count);
    cudaMemcpy(values.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost);
    return values;
  }
  T* data = nullptr;
  size_t count;
};

}  // namespace emulator_test
