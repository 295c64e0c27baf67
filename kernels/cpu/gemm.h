// Dense matrix products, by oneDNN (onednn.cpp is the only file that knows it). Primitives are built once per shape and
// kept.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/view.h"

namespace qeng {

class Scratch;

// c = alpha * op(a) op(b) + bias + (acc ? c : 0), row-major and dense (but see lda); see Matmul in kernels/ops.h.
// a, b: f32 or bf16. c, bias: that or f32. bias may be null.
struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  DType in = DType::f32, out = DType::f32, bias = DType::f32;
  bool trans_a = false, trans_b = false, acc = false, has_bias = false;
  float alpha = 1;
  int64_t lda = 0;  // elements from one stored row of a to the next; 0: dense
  bool operator==(const GemmShape&) const = default;
};

class Gemm {
 public:
  Gemm();
  ~Gemm();
  void run(const GemmShape& shape, const void* a, const void* b, const void* bias, void* c, Scratch& scratch);
  // The kernel that runs the shape, in oneDNN's words ("brg:avx512_core_bf16"), for reports.
  std::string kernel(const GemmShape& shape);

 private:
  struct Primitives;
  std::unique_ptr<Primitives> primitives_;
};

}  // namespace qeng
