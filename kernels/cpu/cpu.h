// The inside of the CPU backend: what an operation gets to work with, and one overload of run per operation. Each is
// defined in kernels/cpu/NAME.cpp: its shapes are checked already (kernels/check_shapes.h); it checks values before it
// touches outputs, splits the work with kernels/parallel.h and calls inner loops through context.isa
// (kernels/cpu/isa/table.h).
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "kernels/check_shapes.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/isa/table.h"
#include "kernels/error.h"
#include "kernels/math/bf16.h"
#include "kernels/ops.h"
#include "kernels/parallel.h"

namespace qeng {

// Temporary memory of one operation: blocks that stay with the backend, so that a step in its stride allocates nothing.
class Scratch {
 public:
  // 64-byte aligned, not cleared, valid until the operation or the ScratchFrame around it ends. Throws Error("memory").
  void* take(size_t bytes);
  template <class T>
  T* take(int64_t count) {
    return static_cast<T*>(take(sizeof(T) * static_cast<size_t>(count)));
  }
  void reset() { used_ = 0; }
  void set_on_grow(std::function<void(size_t bytes)> grows) { grows_ = std::move(grows); }
  ~Scratch();

 private:
  struct Block {
    void* memory = nullptr;
    size_t bytes = 0;
  };
  friend class ScratchFrame;
  std::vector<Block> blocks_;  // the i-th take of an operation uses block i, which grows to the largest wish
  size_t used_ = 0;
  std::function<void(size_t bytes)> grows_;
};

// Gives back at its end what was taken since its start: an operation of many products takes the memory of one.
class ScratchFrame {
 public:
  explicit ScratchFrame(Scratch& scratch) : scratch_(scratch), used_(scratch.used_) {}
  ~ScratchFrame() { scratch_.used_ = used_; }
  ScratchFrame(const ScratchFrame&) = delete;
  ScratchFrame& operator=(const ScratchFrame&) = delete;

 private:
  Scratch& scratch_;
  size_t used_;
};

struct CpuContext {
  int threads;
  const isa::Table* isa;
  Scratch scratch;
  Gemm gemm;
};

// Rows of work per thread below which a second thread costs more than it brings (about 2 us of waking it).
constexpr int64_t kGrainElements = 8192;
inline int64_t grain_rows(int64_t columns) {
  return std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, columns));
}

inline isa::Float float_type(const View& view) {
  return view.dtype == DType::f32 ? isa::Float::f32 : view.dtype == DType::bf16 ? isa::Float::bf16 : isa::Float::f16;
}
// The element at index, as an untyped pointer.
inline char* at(const View& view, int64_t index) {
  return static_cast<char*>(view.data) + index * static_cast<int64_t>(dtype_size(view.dtype));
}

// Row r of a view whose rows lie in order.
inline const char* row_at(const View& view, int64_t r) {
  return static_cast<const char*>(view.data) + r * static_cast<int64_t>(dtype_bytes(view.dtype, view.columns()));
}
// y = elements of row r of a stored view from the given one on (stored.cpp); decode_into rounds them to y's dtype.
void decode_row(const View& stored, int64_t r, int64_t first, int64_t count, float* y, const CpuContext& context);
void decode_into(const View& stored, int64_t r, int64_t first, int64_t count, DType dtype, void* y,
                 const CpuContext& context);

// Memory of the backend: 64-byte aligned; large blocks are mapped on their own and ask for huge pages. Error("memory").
void* allocate_memory(size_t bytes);
void release_memory(void* memory, size_t bytes);

// Bytes/s of a copy or FLOP/s of matrix products with all the context's threads: the best of a few tries (limits.cpp).
double measure_limit(Limit which, CpuContext& context);
size_t cpu_limit_memory(Limit which);  // bytes that it takes meanwhile

#define QENG_RUN(Name) void run(const Name&, CpuContext&);
QENG_OPERATIONS(QENG_RUN)
#undef QENG_RUN
inline void run(const UseWeights& op, CpuContext&) {
  if (op.stream) op.stream->use(op.unit, op.pass);
}

}  // namespace qeng
