// A device that runs operations. One backend per kind of device (backends.h says which there are); the CPU's is built
// in (kernels/cpu), others are shared objects. A backend is used from one thread.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/op.h"

namespace qeng {

// What the device was measured to do, for shares of the limit. Units: bytes/s and FLOP/s.
struct Limits {
  double bandwidth = 0;
  double flops_f32 = 0;
  double flops_bf16 = 0;
};
using Limit = double Limits::*;  // one of them, as &Limits::bandwidth

// Operations that the device kept and runs again as one, with the addresses and scalars they were recorded with.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void replay() = 0;
  virtual size_t nodes() const = 0;  // kernels, copies and clears of a replay
};

// Copies from the host and back that run beside the operations, one after the other, for weights that are streamed.
// `place` is a small number that stands for their memory on the device: a copy waits for what was queued before the
// place's last release(). They are recorded where operations are; synchronize() waits for them as well.
class SideCopies {
 public:
  virtual ~SideCopies() = default;
  // What writes the pinned memory before it is copied, on a thread of the device's and in the order of the copies,
  // which it must not ask for anything. Null, or why it failed: synchronize() and download() throw that as Error("io").
  // Stays where it is as long as a recording has its copy.
  struct Fill {
    std::function<const char*()> write;
    std::atomic<const char*>* failure = nullptr;  // set by copy()
  };
  virtual void* pin(size_t bytes) = 0;  // host memory for copies, until unpin(); Error("memory")
  virtual void unpin(void* memory) = 0;
  virtual void copy(int place, void* device, const void* pinned, size_t bytes, Fill* fill = nullptr) = 0;
  virtual void copy_back(int place, void* pinned, const void* device, size_t bytes) = 0;
  virtual void await(int place) = 0;    // what is queued from now on finds there what was copied
  virtual void release(int place) = 0;  // what was queued until now is all that uses it
  // Seconds that copies took, and that operations waited for them, since the last call; blocking. Of a recording that
  // was replayed more than once since then, the last time alone counts.
  struct Times {
    double copying = 0, waiting = 0;
  };
  virtual Times times() = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;         // "cpu", "cuda:0"
  virtual std::string description() const = 0;  // "AMD EPYC, 2 threads, avx512"

  // Runs op to completion or queues it in order. Throws Error("shape" | "dtype" | "value") before touching any output,
  // except for what only the values tell (a token outside the table, boundaries that do not rise): the CPU finds that
  // while running, others at the next synchronize() or download().
  virtual void run(const Op& op) = 0;
  // An operation that has run before with the same views: their shapes need not be checked again.
  virtual void repeat(const Op& op) { run(op); }
  virtual void synchronize() = 0;

  // Calls fn, whose calls of run() are recorded and not executed. Each op has to have run once before, at these shapes.
  // Null, with nothing called, where the device has no such thing.
  virtual std::unique_ptr<Recording> record(const std::function<void()>& fn) { return (void)fn, nullptr; }

  // Calls fn, whose uploads and operations run beside what is queued already; what is queued later comes after them.
  // They may use only memory that nothing queued since the previous call of ahead() uses.
  virtual void ahead(const std::function<void()>& fn) { fn(); }

  // Null where operations read the host's memory as it lies.
  virtual std::unique_ptr<SideCopies> side_copies() { return nullptr; }

  // Memory of the device, aligned to 64 bytes; throws Error("memory").
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* memory, size_t bytes) = 0;
  // Called where an operation finds no memory for its own intermediate values, to release() what lies idle.
  virtual void set_reclaim(std::function<void()> reclaim) { (void)reclaim; }
  // Called with the bytes by which memory for intermediate values is to grow; the backend keeps it. What it throws is
  // the operation's Error.
  virtual void set_on_scratch(std::function<void(size_t bytes)> grows) { (void)grows; }
  // Copies in order with the operations. The host's memory may be changed or freed when they return.
  virtual void upload(void* device, const void* host, size_t bytes) = 0;
  virtual void download(void* host, const void* device, size_t bytes) = 0;
  virtual bool host_memory() const { return true; }  // the host may use the device's memory at its addresses
  // Operations, and copies as well, may use any memory of the process, files that it has mapped too, as fast as the
  // device's own. The device still has a queue, and memory that the host may not touch, where host_memory() is false.
  virtual bool reads_host_memory() const { return host_memory(); }
  struct Memory {
    size_t free = 0, total = 0;
  };
  virtual Memory memory() = 0;  // of the device, in bytes

  // False for a rehearsal (engine/program/rehearsal.h): memory is address space, and values mean nothing.
  virtual bool computes() const { return true; }

  // Rows of logits for LmHeadLoss to hold at once: the more, the less often it reads the head's weight.
  virtual int head_chunk(int64_t tokens, int64_t vocab) const { return (void)tokens, (void)vocab, LmHeadLoss{}.chunk; }

  // Measured on first use, each on its own (up to half a second), and kept.
  virtual double limit(Limit which) = 0;
  virtual size_t limit_memory(Limit) { return 0; }  // bytes that limit() will take meanwhile; none once it is known
  Limits limits() { return {limit(&Limits::bandwidth), limit(&Limits::flops_f32), limit(&Limits::flops_bf16)}; }
};

// threads: 0 means the cores this process may use. isa: "" picks the best; "baseline", "avx2" or "avx512" forces one
// (Error("unsupported") where the machine lacks it).
std::unique_ptr<Backend> make_cpu_backend(int threads = 0, const std::string& isa = "");

// What an operation needs, where its index lists (document boundaries, targets) lie in the backend's memory.
Cost cost(const Op& op, Backend& backend);

}  // namespace qeng
