// The inside of the OpenCL backend: what an operation gets to work with, the one way to launch a kernel, and one
// overload of run per operation that it has. Each is defined in a file of this folder, beside its kernels (NAME.cpp,
// NAME.cl).
// Shapes are checked already (kernels/check_shapes.h); run() queues work, and waits for nothing.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/check_shapes.h"
#include "kernels/error.h"
#include "kernels/fault.h"
#include "kernels/opencl/programs.h"
#include "kernels/view.h"

namespace qeng::opencl {

// Throws Error("memory") for want of memory, Error("opencl") otherwise, with OpenCL's name of the status and `doing`.
void check_cl(cl_int status, const char* doing);

class Context;

// Memory for the intermediate values of one operation, which those after it use again.
class Scratch {
 public:
  explicit Scratch(Context& context) : context_(context) {}
  template <class T>
  T* take(int64_t count) {
    return static_cast<T*>(take_bytes(sizeof(T) * static_cast<size_t>(count)));
  }
  void reset() { used_ = 0; }
  void clear();
  std::function<void(size_t bytes)> grows;
  std::function<void()> reclaim;

 private:
  void* take_bytes(size_t bytes);
  struct Block {
    void* memory = nullptr;
    size_t bytes = 0;
  };
  Context& context_;
  std::vector<Block> blocks_;  // the i-th take of an operation uses block i, which grows to the largest wish
  size_t used_ = 0;
};

// A device, its queue, in whose order everything happens, and its kernels. Memory is shared virtual memory, coarse
// grained: views are pointers into it, and kernels take them as they are.
class Context {
 public:
  explicit Context(cl_device_id device);
  ~Context();
  Context(const Context&) = delete;
  void* allocate(size_t bytes);  // aligned to 64 bytes; null where there is no room
  void release(void* memory, size_t bytes);
  void fill(void* memory, const void* pattern, size_t pattern_bytes, size_t bytes);  // whole patterns
  void copy(void* to, const void* from, size_t bytes, bool wait);                    // of the device or the host

  cl_device_id device;
  cl_context context = nullptr;
  cl_command_queue queue = nullptr;
  std::unique_ptr<Programs> programs;
  size_t total_memory = 0, most_at_once = 0, allocated = 0;  // bytes
  Fault* fault = nullptr;                                    // for kernels to report into
  Scratch scratch{*this};
};

// Items of a kernel: of as many as are there, in groups; one group's dimensions divide the global ones.
struct Range {
  size_t global[3] = {1, 1, 1}, local[3] = {1, 1, 1};
};
constexpr int kLanes = 64;  // LANES of common.cl
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline Range items(int64_t count) {  // FOR_ITEM
  return {{static_cast<size_t>(ceil_div(count, kLanes)) * kLanes, 1, 1}, {kLanes, 1, 1}};
}
inline Range groups(int64_t count, int64_t more = 1) {  // of LANES items
  return {{static_cast<size_t>(count) * kLanes, static_cast<size_t>(more), 1}, {kLanes, 1, 1}};
}

// What a kernel takes: a view, which may be absent, or another pointer into the device's memory, or a value.
void set_argument(Context& context, cl_kernel kernel, cl_uint index, const void* memory);
inline void set_argument(Context& context, cl_kernel kernel, cl_uint index, const View& view) {
  set_argument(context, kernel, index, static_cast<const void*>(view.data));
}
template <class T>
requires(!std::is_pointer_v<T>) void set_argument(Context&, cl_kernel kernel, cl_uint index, const T& value) {
  check_cl(clSetKernelArg(kernel, index, sizeof value, &value), "setting an argument");
}
void enqueue(Context& context, cl_kernel kernel, const Range& range);

// Queues the kernel; nothing where there are no items. int64_t is long, int is int, float is float in a kernel.
template <class... Arguments>
void launch(Context& context, cl_kernel kernel, const Range& range, const Arguments&... arguments) {
  cl_uint index = 0;
  (set_argument(context, kernel, index++, arguments), ...);
  enqueue(context, kernel, range);
}

// The dtype as kernels are told it; of a view that may be absent.
inline std::string type_of(const View& view) { return view ? dtype_name(view.dtype) : "absent"; }

// The operations that this backend has.
// clang-format off
#define QENG_OPENCL_OPERATIONS(OP) \
  OP(Matmul) OP(MatmulSum) OP(LoraDown) OP(LoraDownGrad) OP(LoraUpGrad) OP(BatchedMatmul) OP(BiasGrad) OP(RowLinear) \
  OP(Pointwise) OP(Rearrange) OP(Gather) OP(ScatterAdd) OP(Sort) OP(CumulativeSum) OP(Add) OP(Scale) OP(Cast) OP(Copy) \
  OP(Fill) OP(Embedding) OP(EmbeddingGrad) OP(DecodePackets) \
  OP(RmsNorm) OP(AddRmsNorm) OP(RmsNormGrad) OP(SwiGlu) OP(SwiGluGrad) OP(Dropout) OP(EmbeddingNoise) OP(ScaleColumns) \
  OP(Rope) OP(Attention) OP(AttentionGrad) OP(KvStore) OP(CopyPages) OP(PagedAttention) \
  OP(LmHeadLoss) OP(SumSquares) OP(ClipScale) OP(AdamW)
// clang-format on
#define QENG_RUN(Name) void run(const Name&, Context&);
QENG_OPENCL_OPERATIONS(QENG_RUN)
#undef QENG_RUN
inline void run(const UseWeights& op, Context&) {
  if (op.stream) op.stream->use(op.unit, op.pass);
}
// All others.
template <class Op>
void run(const Op& op, Context&) {
  fail("unsupported", "opencl: this backend has no ", op.name, "; the CPU (device cpu) and CUDA have it");
}

// c (+)= alpha scale op(a) op(b) + bias of matrices given by their strides, as kernels have it (matmul.cpp).
struct Product {
  View a, b, bias, c, scale;
  int64_t m, n, k;
  int64_t a_row, a_column, b_row, b_column;  // strides: of op(a) [m, k] and op(b) [k, n]
  int64_t c_row;
  float alpha = 1;
  bool acc = false;
  bool round_a = false;  // to bf16
};
void multiply(const Product& product, Context& context);

}  // namespace qeng::opencl
