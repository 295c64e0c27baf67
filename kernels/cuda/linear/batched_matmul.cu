// BatchedMatmul: many small products in one launch, large ones a launch each, which cuBLASLt fills the device with.
#include "kernels/cuda/linear/gemm.h"

namespace qeng {

namespace {

// Multiplications of a product that is worth a launch of its own.
#ifdef QENG_EMULATED
constexpr int64_t kLarge = 1 << 14;
#else
constexpr int64_t kLarge = int64_t{1} << 25;
#endif

GemmBatch batch_of(const BatchedMatmul& op, int64_t a, int64_t b, int64_t c) {
  GemmBatch batch;
  batch.count = op.batch.elements(), batch.rank = op.batch.rank;
  for (int d = 0; d < batch.rank; ++d)
    batch.dimensions[d] = {op.batch.shape[d], a * op.of_a.stride[d], b * op.of_b.stride[d], c * op.of_c.stride[d]};
  return batch;
}

template <class Data>
Data* moved(Data* data, DType dtype, int64_t elements) {
  using Byte = std::conditional_t<std::is_const_v<Data>, const char, char>;
  return static_cast<Byte*>(data) + elements * static_cast<int64_t>(dtype_size(dtype));
}

}  // namespace

void run(const BatchedMatmul& op, CudaContext& context) {
  if (op.batch.elements() == 0 || op.c.elements() == 0) return;
  const MatrixSizes a = matrix_sizes(op.a, op.trans_a), b = matrix_sizes(op.b, op.trans_b);
  CudaGemm gemm;
  gemm.m = a.rows, gemm.n = b.columns, gemm.k = a.columns;
  const int64_t of_a = gemm.m * gemm.k, of_b = gemm.k * gemm.n, of_c = gemm.m * gemm.n;
  const DType dtype = op.a.dtype;
  gemm.a = moved<const void>(op.a.data, dtype, op.of_a.first * of_a);
  gemm.b = moved<const void>(op.b.data, dtype, op.of_b.first * of_b);
  gemm.c = moved(op.c.data, dtype, op.of_c.first * of_c);
  gemm.in = gemm.out = gemm.stored = dtype;
  gemm.trans_a = op.trans_a, gemm.trans_b = op.trans_b, gemm.acc = op.acc;
  gemm.lda = op.a.columns(), gemm.ldb = op.b.columns(), gemm.ldc = gemm.n;
  const GemmBatch batch = batch_of(op, of_a, of_b, of_c);
  if (batch.count > 1 && of_a * gemm.n < kLarge) return gemm_simt(gemm, context, &batch);
  for (int64_t i = 0; i < batch.count; ++i) {
    const GemmBatch::Dimension at = batch.place(i);
    CudaGemm one = gemm;
    one.a = moved(gemm.a, dtype, at.a), one.b = moved(gemm.b, dtype, at.b), one.c = moved(gemm.c, dtype, at.c);
    run_gemm(one, context);
  }
}

}  // namespace qeng
