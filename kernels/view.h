// What operations work on: element types and views of memory. Kernels know views, never who owns the memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>

namespace qeng {

enum class DType : uint8_t { f32, bf16, f16, i32, i64, u8 };

constexpr size_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::f32: case DType::i32: return 4;
    case DType::bf16: case DType::f16: return 2;
    case DType::i64: return 8;
    case DType::u8: return 1;
  }
  return 0;
}
const char* dtype_name(DType dtype);
DType dtype_from_name(const std::string& name);  // throws Error("dtype")

constexpr int kMaxRank = 4;  // [tokens, heads, head_dim] and one to spare

// A dense row-major view of memory that somebody else owns. A default view is absent: ops use that for "no bias".
struct View {
  void* data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  int64_t shape[kMaxRank] = {};

  View() = default;
  View(void* memory, DType type, std::initializer_list<int64_t> dims) : data(memory), dtype(type) {
    for (int64_t dim : dims) shape[rank++] = dim;
  }
  explicit operator bool() const { return data != nullptr; }

  int64_t elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }
  int64_t columns() const { return rank ? shape[rank - 1] : 1; }                     // the last dimension
  int64_t rows() const { return columns() ? elements() / columns() : 0; }            // all the others
  size_t bytes() const { return static_cast<size_t>(elements()) * dtype_size(dtype); }
  bool same_shape(const View& other) const {
    return rank == other.rank && std::memcmp(shape, other.shape, sizeof(int64_t) * static_cast<size_t>(rank)) == 0;
  }
  template <class T>
  T* as() const { return static_cast<T*>(data); }
};

std::string shape_text(const View& view);  // "bf16 [512, 14, 64]"

}  // namespace qeng
