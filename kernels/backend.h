// A device that runs operations. One backend per kind of device; the CPU's is built in (kernels/cpu), others are shared
// objects. A backend is used from one thread.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/ops.h"

namespace qeng {

// What the device was measured to do, for shares of the limit. Units: bytes/s and FLOP/s.
struct Limits {
  double bandwidth = 0;
  double flops_f32 = 0;
  double flops_bf16 = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;         // "cpu", "cuda:0"
  virtual std::string description() const = 0;  // "AMD EPYC, 2 threads, avx512"

  // Runs op to completion or queues it in order. Throws Error("shape" | "dtype" | "value") before touching any output,
  // except for a token outside the table, found while running.
  virtual void run(const Op& op) = 0;
  virtual void synchronize() = 0;

  // Memory of the device, aligned to 64 bytes; throws Error("memory").
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* memory, size_t bytes) = 0;
  virtual void upload(void* device, const void* host, size_t bytes) = 0;
  virtual void download(void* host, const void* device, size_t bytes) = 0;

  // Measured on first use (about a second) and kept.
  virtual const Limits& limits() = 0;
};

// threads: 0 means the cores this process may use. isa: "" picks the best; "baseline", "avx2" or "avx512" forces one
// (Error("unsupported") where the machine lacks it).
std::unique_ptr<Backend> make_cpu_backend(int threads = 0, const std::string& isa = "");

}  // namespace qeng
