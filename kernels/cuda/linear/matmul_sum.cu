// MatmulSum: by one kernel where that takes it and is the faster (matmul_sum_sm90.cu), else product after product, of which
// each but the first adds to what is there.
#include <algorithm>
#include <string>

#include "kernels/cuda/linear/cublaslt.h"
#include "kernels/cuda/linear/matmul_sum.h"

namespace qeng {

namespace {

// A stored b is decoded into memory that all products share.
void one_after_another(const MatmulSum& op, CudaContext& context) {
  std::vector<CudaGemm> products;
  size_t panel = 0;
  for (size_t i = 0; i < op.a.size(); ++i) {
    products.push_back(gemm_of(product_of(op, i)));
    panel = std::max(panel, panel_bytes(products.back()));
  }
  void* const memory = panel ? context.scratch.take(panel) : nullptr;
  for (CudaGemm& product : products) {
    product.panel = memory;
    run_gemm(product, context);
  }
}

// "sum 8192x1536 of 16 1536 nt bf16 to bf16, bias"
std::string shape_of(const MatmulSum& op) {
  std::string text = "sum " + std::to_string(op.c.rows()) + "x" + std::to_string(op.c.columns()) + " of";
  for (const View& a : op.a) text += " " + std::to_string(a.columns());
  text += op.trans_b ? " nt " : " nn ";
  text += std::string(dtype_name(op.a[0].dtype)) + " " + dtype_name(op.c.dtype);
  if (op.bias) text += " bias";
  return text;
}

}  // namespace

void run(const MatmulSum& op, CudaContext& context) {
  if (op.c.elements() == 0) return;
  if (!suits_matmul_sum(op, context)) return one_after_another(op, context);
  const auto one = [&] { matmul_sum_sm90(op, context); };
  const auto each = [&] {
    context.scratch.reset();  // of the time before, where ways are compared
    one_after_another(op, context);
  };
  if (!context.cublas) context.cublas = open_cublaslt(context);
  if (!context.cublas || context.cublas->is_faster(shape_of(op), one, each, op.flops(), context)) return one();
  each();
}

}  // namespace qeng
