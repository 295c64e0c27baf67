// The inside of the CUDA backend: what an operation gets to work with, the one way to launch a kernel, and one overload
// of run per operation. Each is defined in kernels/cuda/NAME.cu, kernel first, launcher under it: shapes are checked
// already (kernels/check_shapes.h); the launcher queues work, and never waits for the device.
#pragma once
#include <tuple>
#include <vector>

#include "kernels/check_shapes.h"
#include "kernels/cuda/device.h"

namespace qeng {

// Throws Error("memory") for want of memory, Error("cuda") otherwise, with the runtime's words and `doing`.
void check_cuda(cudaError_t status, const char* doing);

// Where memory of the device that belongs to no tensor comes from: the backend.
class SpareMemory {
 public:
  virtual ~SpareMemory() = default;
  // Before it is refused, what lies idle is let go. Throws Error("memory").
  virtual void* allocate(size_t bytes, const char* doing) = 0;
  virtual void grows(size_t bytes) = 0;  // scratch is about to, and keeps it; may throw
};

// Temporary memory of one operation. Operations follow each other on one stream, so all share the same blocks. A block
// that is too small is replaced by a larger one; the old one stays while a recorded graph may use it.
class CudaScratch {
 public:
  explicit CudaScratch(SpareMemory& spare) : spare_(spare) {}
  ~CudaScratch();
  // 256-byte aligned, not cleared, valid for what this operation queues. Throws Error("memory").
  void* take(size_t bytes);
  template <class T>
  T* take(int64_t count) {
    return static_cast<T*>(take(sizeof(T) * static_cast<size_t>(count)));
  }
  void reset() { used_ = 0; }
  void freeze(bool on) { frozen_ = on; }  // while recording: a block that would have to grow is an error
  bool frozen() const { return frozen_; }

 private:
  struct Block {
    void* memory = nullptr;
    size_t bytes = 0;
  };
  SpareMemory& spare_;
  bool frozen_ = false;
  std::vector<Block> blocks_;    // the i-th take of an operation uses block i, which grows to the largest wish
  std::vector<void*> outgrown_;  // recorded graphs may hold their addresses
  size_t used_ = 0;
};

class CublasLt;  // cublaslt.h

constexpr int kMostArrived = 4096;
struct RecordedOps;  // recorded.h

struct CudaContext {
  explicit CudaContext(SpareMemory& memory_source) : spare(memory_source) {}

  int device = 0;
  int multiprocessors = 0;
  int capability = 0;       // 75, 80, 86, 89, 90, ...
  size_t shared_limit = 0;  // bytes of shared memory that a block may ask for
  size_t memory = 0;        // bytes of the device
  cudaStream_t stream = nullptr;
  Fault* fault = nullptr;  // device memory, for kernels to report into
  SpareMemory& spare;
  bool tensor_bf16() const { return capability >= 80; }  // tensor cores multiply bf16 (ptx::from_sm80())
  CudaScratch scratch{spare};
  // Of recordings, whose operations hand things on (recorded.cu): x rounded for the next product, in turns; plans of
  // paged attention; and counters, 0 between kernels.
  CudaScratch rounded[2]{CudaScratch(spare), CudaScratch(spare)}, plans{spare};
  int* arrived = nullptr;             // [kMostArrived]
  bool reserving = false;             // launches are left out, and their kernels loaded
  RecordedOps* recorded = nullptr;    // while a recording is described: what is to be queued goes there
  CublasLt* cublas = nullptr;         // opened by the first product that wants it, never in the emulator
  std::vector<const void*> prepared;  // kernels whose shared memory limit is raised, sorted
  bool ahead = false;                 // kernels may begin before the one before them has ended (QENG_CUDA_AHEAD)
  bool synchronous = false;           // QENG_CUDA_SYNC=1: wait for each kernel, so that an error names the right one
};

// Configuration errors carry the kernel's name. Nothing is queued for an empty grid.
void check_launch(CudaContext& context, const char* name, const void* kernel, dim3 grid, dim3 block, size_t shared);
// Brings a kernel to the device, which its first launch would do: that may not be while a graph is recorded.
void load_kernel(const char* name, const void* kernel);
void finish_launch(CudaContext& context, const char* name, cudaError_t status);

// ahead: the kernel calls ptx::begin_ahead() first, and may begin while the one before it still runs.
enum class Launch { in_turn, ahead };
template <class... Params, class... Args>
void launch(Launch how, CudaContext& context, const char* name, void (*kernel)(Params...), dim3 grid, dim3 block,
            size_t shared, Args&&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  check_launch(context, name, reinterpret_cast<const void*>(kernel), grid, block, shared);
  if (context.reserving) return load_kernel(name, reinterpret_cast<const void*>(kernel));
  std::tuple<Params...> values(static_cast<Params>(args)...);
#ifdef QENG_EMULATED
  finish_launch(context, name,
                emulator::launch(
                    name, reinterpret_cast<const void*>(kernel), grid, block, shared, context.stream,
                    [kernel, values] { std::apply(kernel, values); }, how == Launch::ahead && context.ahead));
#else
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = block, config.stream = context.stream;
  config.dynamicSmemBytes =
      (shared + 15) / 16 * 16;  // ptxas may read the last elements as 16 bytes, which memcheck sees
  cudaLaunchAttribute ahead{};
  ahead.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  ahead.val.programmaticStreamSerializationAllowed = 1;
  if (how == Launch::ahead && context.ahead) config.attrs = &ahead, config.numAttrs = 1;
  std::apply(
      [&](auto&... value) {
        void* pointers[] = {const_cast<void*>(static_cast<const void*>(&value))..., nullptr};
        finish_launch(context, name, cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), pointers));
      },
      values);
#endif
}
template <class... Params, class... Args>
void launch(CudaContext& context, const char* name, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared,
            Args&&... args) {
  launch(Launch::in_turn, context, name, kernel, grid, block, shared, std::forward<Args>(args)...);
}
// kernel: a __global__ function; in brackets where it has several template arguments.
#define QENG_LAUNCH(context, kernel, grid, block, shared, ...) \
  ::qeng::launch(context, #kernel, kernel, grid, block, shared, ##__VA_ARGS__)
#define QENG_LAUNCH_AHEAD(context, kernel, grid, block, shared, ...) \
  ::qeng::launch(::qeng::Launch::ahead, context, #kernel, kernel, grid, block, shared, ##__VA_ARGS__)

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
// The element at index, as an untyped pointer.
inline char* at(const View& view, int64_t index) {
  return static_cast<char*>(view.data) + index * static_cast<int64_t>(dtype_size(view.dtype));
}
inline bool aligned(const void* pointer, size_t bytes) { return reinterpret_cast<uintptr_t>(pointer) % bytes == 0; }

// Calls f with a null pointer to the view's element type, float or bf16: f(auto* type).
template <class F>
void for_float(const View& view, F f) {
  if (view.dtype == DType::f32)
    f(static_cast<float*>(nullptr));
  else
    f(static_cast<bf16*>(nullptr));
}

#define QENG_RUN(Name) void run(const Name&, CudaContext&);
QENG_OPERATIONS(QENG_RUN)
#undef QENG_RUN
inline void run(const UseWeights& op, CudaContext&) {
  if (op.stream) op.stream->use(op.unit, op.pass);
}

}  // namespace qeng
