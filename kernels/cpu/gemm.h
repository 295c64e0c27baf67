// Dense matrix products. Operations call multiply; Gemm and run_tile are what oneDNN does of it (onednn.cpp is the only
// file that knows it). Primitives are built once per shape and kept.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "kernels/cpu/tile.h"
#include "kernels/view.h"

namespace qeng {

struct CpuContext;

// c = alpha * op(a) op(b) + bias + (acc ? c : 0), row-major and dense (but see lda); see Matmul in kernels/ops.h.
// a, b: f32 or bf16; or b of a stored dtype, whose rows are decoded: to f32, or blocks to bf16 where a is bf16. c,
// bias: a's dtype or f32. bias may be null. Sums are f32 and are rounded once, to c.
struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  DType in = DType::f32, out = DType::f32, bias = DType::f32;
  bool trans_a = false, trans_b = false, acc = false, has_bias = false;
  float alpha = 1;
  std::optional<DType> stored;        // b's dtype where it is not a's
  bool interleaved = false;           // the rows of a stored b (kernels/interleave.h)
  int64_t lda = 0, ldb = 0, ldc = 0;  // elements from one stored row to the next; 0: dense
  int64_t lda_of() const { return lda ? lda : trans_a ? m : k; }
  int64_t ldb_of() const { return ldb ? ldb : trans_b ? k : n; }
  int64_t ldc_of() const { return ldc ? ldc : n; }
  bool operator==(const GemmShape&) const = default;
};

// Any dense c, with all the context's threads: by Gemm where it can, else by tiles.
void multiply(const GemmShape& shape, const void* a, const void* b, const void* bias, void* c, CpuContext& context);
// Any shape by f32 products of tiles (multiply.cpp). The result does not depend on the number of threads.
void multiply_tiles(const GemmShape& shape, const void* a, const void* b, const void* bias, void* c,
                    CpuContext& context);
// A product of bf16 by instructions for it, oneDNN's or our own; false, and nothing done, where there are none.
bool multiply_bf16(const GemmShape& shape, const void* a, const void* b, const void* bias, void* c,
                   CpuContext& context);

class Gemm {
 public:
  Gemm();
  ~Gemm();
  // False, and nothing done, where oneDNN has no good kernel for the shape on this machine.
  bool run(const GemmShape& shape, const void* a, const void* b, const void* bias, void* c, CpuContext& context);
  bool has(const GemmShape& shape, int threads);  // whether run() would
  bool multiplies_bf16_by_tiles() const;          // with AMX: several times as fast as f32

 private:
  struct Primitives;
  std::unique_ptr<Primitives> primitives_;
};

// By oneDNN, on the calling thread alone; false: out of memory
bool run_tile(const Tile& tile);

}  // namespace qeng
