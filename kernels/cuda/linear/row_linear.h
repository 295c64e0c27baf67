// What the kernels of RowLinear share: bf16 and f16 weights by tensor cores (row_tensor.h), other floats (row_dense.cu),
// block formats for few rows of x (row_blocks.cu, row_bits.cu) and for many (row_tiles.cu). The weight, which is what
// takes time, is read once for as many rows of x as a kernel has at a time. How a row of x is summed does not depend on
// how many there are: each operation on floats is written so that it is rounded as it stands.
#pragma once
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/ptx/ptx.h"

namespace qeng {

constexpr int kRowWarps = 4;     // of a thread block, each with rows of its own
constexpr int kBatchRows = 8;    // rows of x to a pass over the weight
constexpr int kMostWeights = 4;  // of one launch: q, k, v; gate, up
constexpr int kScaleStep = 32;   // elements of x to a scale as they are stored; those of a larger group repeat
constexpr int kSumStep = 16;     // elements of x to a sum of codes

struct RowWeight {
  const void *w, *bias;  // bias: or null
  const float* scale;    // or null
  void* y;
  int64_t n;
  int number;            // among those of the operation
  bool bias_f32, y_f32;  // otherwise of x's dtype
  bool y_vectors;        // rows of y lie at multiples of 16 bytes
};
// Weights of one dtype that read one x.
struct RowProducts {
  RowWeight weight[kMostWeights];
  int count;
  int64_t rows, k;
  float alpha;
  bool acc;
  const void* x;  // for dense weights: [rows, k]
  bool x_f32;
  const int8_t* codes;  // for block formats, as RoundedRows has them: [rows, k], in the order of the format
  const float* scales;  // [rows, k / kScaleStep]
  const int* sums;      // of codes: [rows, k / kSumStep]
  const uint8_t* planes;
  const int* totals;
  bool vectors;  // dense: whether all rows start at multiples of 16 bytes
};

// Bytes are copied from global to shared memory by whole 16-byte vectors, from that in which the first lies; so they
// begin as far into a vector as in memory, which is this.
__device__ inline int vector_offset(const void* from) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(from) % 16);
}
constexpr int vector_room(int bytes) { return (bytes + 15 + 15) / 16 * 16; }

// The row of which weight a warp makes: j is counted over all weights of the launch.
__device__ inline const RowWeight& weight_of(const RowProducts& p, int64_t& j) {
  int i = 0;
  while (i + 1 < p.count && j >= p.weight[i].n) j -= p.weight[i++].n;
  return p.weight[i];
}

// y[r, j] from the sum over k, before it is added to what is there.
__device__ inline float row_value(const RowProducts& p, const RowWeight& weight, int64_t j, float total) {
  float value = __fmul_rn(p.alpha, weight.scale ? __fmul_rn(weight.scale[j], total) : total);
  if (weight.bias)
    value = __fadd_rn(value, weight.bias_f32 || p.x_f32 ? static_cast<const float*>(weight.bias)[j]
                                                        : to_f32(static_cast<const bf16*>(weight.bias)[j]));
  return value;
}
__device__ inline void finish_row(const RowProducts& p, const RowWeight& weight, int64_t r, int64_t j, float total) {
  const float value = row_value(p, weight, j, total);
  const int64_t i = r * weight.n + j;
  if (weight.y_f32) {
    float* y = static_cast<float*>(weight.y) + i;
    *y = p.acc ? __fadd_rn(value, *y) : value;
  } else {
    bf16* y = static_cast<bf16*>(weight.y) + i;
    put(y, p.acc ? __fadd_rn(value, to_f32(*y)) : value);
  }
}

// How sums over the groups of a row of x are ordered, whichever kernel makes them. A span of 256 elements gives one
// number: the products of its groups (one of 256, or eight of 32), added in pairs of neighbours, and those in pairs.
// Span s goes to sum s % kSpanSums, in order of s; the end is (sum 0 + sum 2) + (sum 1 + sum 3).
constexpr int kSpan = 256, kSpanSums = 4;
constexpr int kPlanes = 8, kSpanBytes = kSpan / 8;  // of the codes of a span
// The product of one group, from its exact integers (kernels/math/blocks/activations.h). d: the scale of x.
__device__ inline float block_product(float factor, float d, int dot) {
  return __fmul_rn(__fmul_rn(factor, d), static_cast<float>(dot));
}
__device__ inline float block_product(float factor, float d, int dot, float minimum, int less) {
  return __fmaf_rn(-__fmul_rn(minimum, d), static_cast<float>(less), block_product(factor, d, dot));
}

// How a weight of a block format wants x: in groups of as many elements that share a scale, and in which order codes
// follow each other. Formats of one and two bits in order have every eighth, or fourth, in the bytes of a word:
//   crumbs: of 16, code e lies at e % 4 * 4 + e / 4   bits: of 32, code e lies at e % 8 * 4 + e / 8
enum class CodeOrder : uint8_t { natural, crumbs, bits };
// planes: instead of codes and their sums, the bit planes of codes (row_bits.cu).
struct Rounding {
  int group;
  CodeOrder order;
  bool planes = false;
  bool operator==(const Rounding&) const = default;
};
Rounding rounding_of(DType dtype);
Rounding rounding_of(DType dtype, int64_t rows);  // for a RowLinear of so many rows
// x rounded to int8, in scratch memory.
struct RoundedRows {
  Rounding how;
  int8_t* codes;  // [rows, k]
  float* scales;  // [rows, k / kScaleStep]
  int* sums;      // [rows, k / kSumStep], of codes in natural order
  // [rows, spans, kPlanes, kSpanBytes]: element 8 i + e of a span as bit e of byte i; zeros past the row's end
  uint8_t* planes;
  int* totals;                                                           // [rows, spans]: sums of codes
  __host__ __device__ explicit operator bool() const { return scales; }  // whether there are any
};
RoundedRows take_rounded(CudaScratch& memory, int64_t rows, int64_t k, Rounding how);
RoundedRows round_rows(const char* name, const View& x, Rounding how, CudaContext& context);

// RowLinear, given x as the operation before rounded it (or no codes), and what follows.
struct RowEnd;
void row_linear(const RowLinear& op, const RoundedRows& given, const RowEnd& end, CudaContext& context);

// Queue the products, all weights of `dtype`, and what `end` says of their results (row_end.h).
void dense_products(const char* name, const RowProducts& p, const RowEnd& end, DType dtype, CudaContext& context);
void block_products(const char* name, const RowProducts& p, const RowEnd& end, DType dtype, CudaContext& context);
bool block_ends_inside(DType dtype);  // whether its kernels for few rows do what `end` says; else none may be given
// The same for one_bit and up to kBatchRows rows of x, with the same bits (row_bits.cu).
void bit_products(const RowProducts& p, const RowEnd& end, CudaContext& context);
// The same for many rows of x, by tensor cores: the same bits (row_tiles.cu).
void block_tiles(const char* name, const RowProducts& p, DType dtype, CudaContext& context);

// One thread block to kRowWarps rows of weights and kBatchRows rows of x.
dim3 row_grid(const char* name, const RowProducts& p);

}  // namespace qeng
