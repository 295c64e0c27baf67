#include <chrono>
#include <cstring>

#include "kernels/cpu/cpu.h"

namespace qeng {

namespace {

// Two blocks of three times the last-level cache of a large desktop processor.
constexpr size_t kCopyMemory = size_t{192} << 20;
constexpr int64_t kSizes[] = {1024, 2048};  // of square matrices

// Memory that is given back when the measurement ends.
struct Buffer {
  void* data;
  size_t bytes;
  explicit Buffer(size_t size) : data(allocate_memory(size)), bytes(size) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { release_memory(data, bytes); }
};

// Least seconds of body in tries, or in fewer where they exceed limit seconds together, but after one to warm up.
template <class Body>
double best_seconds(int tries, double limit, Body&& body) {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::time_point from) {
    return std::chrono::duration<double>(Clock::now() - from).count();
  };
  body();
  const auto start = Clock::now();
  double best = 1e30;
  for (int i = 0; i < tries && (i == 0 || seconds(start) < limit); ++i) {
    const auto from = Clock::now();
    body();
    best = std::min(best, seconds(from));
  }
  return std::max(best, 1e-9);
}

double measure_copy(CpuContext& context) {
  constexpr int64_t kBytes = kCopyMemory / 2;
  const Buffer from(kBytes), to(kBytes);
  std::memset(from.data, 1, kBytes);
  const double seconds = best_seconds(8, 0.25, [&] {
    parallel_for(context.threads, kBytes, 1 << 16, [&](int64_t begin, int64_t end) {
      std::memcpy(static_cast<char*>(to.data) + begin, static_cast<char*>(from.data) + begin,
                  static_cast<size_t>(end - begin));
    });
  });
  return 2 * kBytes / seconds;
}

double measure_gemm(CpuContext& context, DType dtype) {
  double best = 0;
  for (const int64_t size : kSizes) {
    const size_t bytes = static_cast<size_t>(size * size) * dtype_size(dtype);
    const Buffer a(bytes), b(bytes), c(bytes);
    std::memset(a.data, 0, bytes);  // zeros: no subnormals, and no slower nor faster than other numbers
    std::memset(b.data, 0, bytes);
    GemmShape shape;
    shape.m = shape.n = shape.k = size, shape.in = shape.out = dtype;
    const double seconds = best_seconds(6, 0.12, [&] { multiply(shape, a.data, b.data, nullptr, c.data, context); });
    best = std::max(best,
                    2.0 * static_cast<double>(size) * static_cast<double>(size) * static_cast<double>(size) / seconds);
    if (seconds > 0.005) break;  // long enough for the threads to begin and end beside it
  }
  return best;
}

}  // namespace

double measure_limit(Limit which, CpuContext& context) {
  if (which == &Limits::bandwidth) return measure_copy(context);
  return measure_gemm(context, which == &Limits::flops_bf16 ? DType::bf16 : DType::f32);
}

size_t cpu_limit_memory(Limit which) {
  if (which == &Limits::bandwidth) return kCopyMemory;
  const size_t elements = static_cast<size_t>(kSizes[1] * kSizes[1]);
  return 3 * elements * (which == &Limits::flops_bf16 ? 2 : 4);
}

}  // namespace qeng
