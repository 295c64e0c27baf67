// Dense matrix products on the device, for Matmul and LmHeadLoss (matmul.cu).
#pragma once
#include "kernels/cuda/cuda.h"

namespace qeng {

// c = alpha op(a) op(b) + bias + (acc ? c : 0), row-major; see Matmul in kernels/ops.h.
// a, b: f32 or bf16, of type in. c: in or f32, of type out. bias: null, or [n] of type in or f32.
// Or a, b: u8, numbers in E4M3 that count scale_a[0] and scale_b[0] times, for cuBLASLt alone.
// b may also be of a stored type, f16, a block format, or bf16 where a is f32, dense (its rows are whole blocks one
// after the other).
struct CudaGemm {
  int64_t m = 0, n = 0, k = 0;
  const void *a = nullptr, *b = nullptr, *bias = nullptr;
  void* c = nullptr;
  DType in = DType::f32, out = DType::f32, bias_type = DType::f32;
  DType stored = DType::f32;                           // b's, where it is not `in`
  const float *scale_a = nullptr, *scale_b = nullptr;  // in the device's memory
  void* panel = nullptr;                               // memory of panel_bytes for a stored b; null: scratch is taken
  bool trans_a = false, trans_b = false, acc = false;
  float alpha = 1;
  int64_t lda = 0, ldb = 0, ldc = 0;  // elements from one stored row to the next
};

CudaGemm gemm_of(const Matmul& op);

// By cuBLASLt, or by kernels of our own: one row by a transposed matrix, what cuBLASLt has no algorithm for, and
// everything in the emulator. A stored b is decoded into scratch memory, to type in, a panel of c's columns at a time.
void run_gemm(const CudaGemm& gemm, CudaContext& context);
// By cuBLASLt; false, and nothing is queued, where it has no algorithm. Always so in the emulator.
bool run_by_library(const CudaGemm& gemm, CudaContext& context);
size_t panel_bytes(const CudaGemm& gemm);  // 0 where b is not stored; m does not matter
// In bf16 by tensor cores for IEEE half, for GPUs before sm_80 (gemm_half.cu); false, and nothing is queued, where rows
// are not whole 16-byte vectors, or the GPU or the type is another.
bool gemm_half(const CudaGemm& gemm, CudaContext& context);

// Which matrices of a, b and c product i has, counted over a space of up to kMaxRank dimensions: its distance in
// elements from that of the CudaGemm, where all strides are.
struct GemmBatch {
  int64_t count = 1;
  int rank = 0;
  struct Dimension {
    int64_t size, a, b, c;
  } dimensions[kMaxRank] = {};
  __host__ __device__ Dimension place(int64_t i) const {
    Dimension at{0, 0, 0, 0};
    for (int d = rank - 1; d >= 0; --d) {
      const Dimension& each = dimensions[d];
      const int64_t index = i % each.size;
      at.a += index * each.a, at.b += index * each.b, at.c += index * each.c;
      i /= each.size;
    }
    return at;
  }
};

// Without tensor cores, for any size, stride and alignment (gemm_simt.cu). With a batch all products as one, where c is of
// type in.
void gemm_simt(const CudaGemm& gemm, CudaContext& context, const GemmBatch* batch = nullptr);

// Element i of memory of type f32 or bf16.
__device__ inline float read_float(const void* memory, bool is_f32, int64_t i) {
  return is_f32 ? static_cast<const float*>(memory)[i] : to_f32(static_cast<const bf16*>(memory)[i]);
}

// Where sums over k go, and what becomes of them.
struct GemmResult {
  void* c;
  const void* bias;  // or null
  bool bias_f32, acc;
  float alpha;
  int64_t ldc;
  template <class Out>
  __device__ void write(int64_t row, int64_t column, float sum) const {
    Out* to = static_cast<Out*>(c) + row * ldc + column;
    float value = alpha * sum;
    if (bias) value += read_float(bias, bias_f32, column);
    if (acc) value += to_f32(*to);
    put(to, value);
  }
};
inline GemmResult result_of(const CudaGemm& gemm) {
  return {gemm.c, gemm.bias, gemm.bias_type == DType::f32, gemm.acc, gemm.alpha, gemm.ldc};
}

// Calls f(in, out) with null pointers to the element types of a (and b) and of c.
template <class F>
void for_gemm_types(const CudaGemm& gemm, F f) {
  if (gemm.in == DType::f32)
    f(static_cast<float*>(nullptr), static_cast<float*>(nullptr));
  else if (gemm.out == DType::f32)
    f(static_cast<bf16*>(nullptr), static_cast<float*>(nullptr));
  else
    f(static_cast<bf16*>(nullptr), static_cast<bf16*>(nullptr));
}

}  // namespace qeng
