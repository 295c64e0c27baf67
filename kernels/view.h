// What operations work on: element types and views of memory. Kernels know views, never who owns the memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "kernels/dtype.h"

namespace qeng {

struct DTypeInfo {
  const char* name;
  int elements;  // of a block; 1 for a plain type
  int bytes;     // of a block
};
constexpr DTypeInfo kDTypes[] = {
    {"f32", 1, 4},       {"bf16", 1, 2},      {"f16", 1, 2},        {"i32", 1, 4},        {"i64", 1, 8},
    {"u8", 1, 1},        {"q4_0", 32, 18},    {"q4_1", 32, 20},     {"q5_0", 32, 22},     {"q5_1", 32, 24},
    {"q8_0", 32, 34},    {"q2_k", 256, 84},   {"q3_k", 256, 110},   {"q4_k", 256, 144},   {"q5_k", 256, 176},
    {"q6_k", 256, 210},  {"iq4_nl", 32, 18},  {"mxfp4", 32, 17},    {"iq4_xs", 256, 136}, {"iq2_xxs", 256, 66},
    {"iq2_xs", 256, 74}, {"iq2_s", 256, 82},  {"iq3_xxs", 256, 98}, {"iq3_s", 256, 110},  {"iq1_s", 256, 50},
    {"iq1_m", 256, 56},  {"tq1_0", 256, 54},  {"tq2_0", 256, 66},   {"q1_0", 128, 18},    {"q2_0", 64, 18},
    {"pq2_0", 128, 34},  {"ptq1_0", 128, 28}, {"int4", 32, 20},     {"one_bit", 32, 4},   {"ternary", 32, 8},
};
static_assert(sizeof kDTypes / sizeof *kDTypes == kDTypeCount);
constexpr const DTypeInfo& dtype_info(DType dtype) { return kDTypes[static_cast<size_t>(dtype)]; }
constexpr bool is_block(DType dtype) { return dtype_info(dtype).elements > 1; }

// Bytes of an element; 0 for a block format, whose elements have no address of their own.
constexpr size_t dtype_size(DType dtype) { return is_block(dtype) ? 0 : static_cast<size_t>(dtype_info(dtype).bytes); }
// Bytes of `elements` in a row: whole blocks.
constexpr size_t dtype_bytes(DType dtype, int64_t elements) {
  return static_cast<size_t>(elements / dtype_info(dtype).elements) * static_cast<size_t>(dtype_info(dtype).bytes);
}
inline const char* dtype_name(DType dtype) { return dtype_info(dtype).name; }

constexpr int kMaxRank = 4;  // [tokens, heads, head_dim] and one to spare

// A dense row-major view of memory that somebody else owns. A default view is absent: ops use that for "no bias".
struct View {
  void* data = nullptr;
  DType dtype = DType::f32;
  bool interleaved = false;  // its rows, in groups (kernels/interleave.h): read as stored weights, refused elsewhere
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
  int64_t columns() const { return rank ? shape[rank - 1] : 1; }           // the last dimension
  int64_t rows() const { return columns() ? elements() / columns() : 0; }  // all the others
  size_t bytes() const { return dtype_bytes(dtype, elements()); }          // a row of a block format is whole blocks
  bool same_shape(const View& other) const {
    return rank == other.rank && std::memcmp(shape, other.shape, sizeof(int64_t) * static_cast<size_t>(rank)) == 0;
  }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// Whether they share memory.
inline bool overlap(const View& a, const View& b) {
  const char *begin = a.as<char>(), *other = b.as<char>();
  return begin < other + b.bytes() && other < begin + a.bytes();
}

}  // namespace qeng
