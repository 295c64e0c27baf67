// MatmulSum: by one kernel where that takes it and is the faster (matmul_sum_sm90.cu), else sum after sum, and a sum
// product after product, of which each but the first adds to what is there.
#include <algorithm>
#include <memory>
#include <string>

#include "kernels/cuda/linear/cublaslt.h"
#include "kernels/cuda/linear/matmul_sum.h"

namespace qeng {

namespace {

// A stored b is decoded into memory that all products share.
void one_after_another(const MatmulSum& op, const MatmulSum::Sum& sum, CudaContext& context) {
  std::vector<CudaGemm> products;
  size_t panel = 0;
  for (size_t i = 0; i < sum.a.size(); ++i) {
    products.push_back(gemm_of(product_of(op, sum, i)));
    panel = std::max(panel, panel_bytes(products.back()));
  }
  void* const memory = panel ? context.scratch.take(panel) : nullptr;
  for (CudaGemm& product : products) {
    product.panel = memory;
    run_gemm(product, context);
  }
}

// Each of several sums goes its own way again.
void sum_after_sum(const MatmulSum& op, CudaContext& context) {
  for (const MatmulSum::Sum& sum : op.sums) {
    context.scratch.reset();  // of the sum before, and of the time before where ways are compared
    if (op.sums.size() == 1)
      one_after_another(op, sum, context);
    else if (sum.c.elements() > 0)
      run(MatmulSum{.sums = {sum}, .trans_a = op.trans_a, .trans_b = op.trans_b}, context);
  }
}

// "sums nt of bf16: 8192x1536 of 16 1536 to bf16 bias, 8192x256 of 16 1536 to bf16 bias"
std::string shape_of(const MatmulSum& op) {
  std::string text = op.sums.size() > 1 ? "sums " : "sum ";
  text += op.trans_a ? "t" : "n";
  text += op.trans_b ? "t of " : "n of ";
  text += dtype_name(op.sums[0].a[0].dtype);
  for (const MatmulSum::Sum& sum : op.sums) {
    text += (&sum == op.sums.data() ? ": " : ", ") + std::to_string(sum.c.rows()) + "x";
    text += std::to_string(sum.c.columns()) + " of";
    for (const View& a : sum.a) text += " " + std::to_string(op.trans_a ? a.rows() : a.columns());
    text += std::string(" to ") + dtype_name(sum.c.dtype) + (sum.bias ? " bias" : "") + (sum.acc ? " added" : "");
  }
  return text;
}

// What is timed in place of the operation: a result that is added to must be added to once only.
struct Trial {
  MatmulSum op;
  std::vector<std::unique_ptr<void, decltype(&cudaFree)>> results;

  // Whether there is memory for it.
  bool begins(const MatmulSum& meant, CudaContext& context) {
    if (!op.sums.empty()) return true;
    MatmulSum other = meant;
    for (MatmulSum::Sum& sum : other.sums) {
      if (!sum.acc) continue;
      if (cudaMalloc(&sum.c.data, sum.c.bytes()) != cudaSuccess) {
        cudaGetLastError();
        return false;
      }
      results.emplace_back(sum.c.data, &cudaFree);
      check_cuda(cudaMemsetAsync(sum.c.data, 0, sum.c.bytes(), context.stream), "choosing a kernel");
    }
    op = other;
    return true;
  }
};

bool one_kernel_is_faster(const MatmulSum& op, CudaContext& context) {
  if (!context.cublas) context.cublas = open_cublaslt(context);
  if (!context.cublas) return true;
  Trial trial;
  const auto timed = [&](void (*queue)(const MatmulSum&, CudaContext&)) {
    return [&op, &trial, &context, queue] {
      const bool begins = trial.begins(op, context);
      if (begins) queue(trial.op, context);
      return begins;
    };
  };
  return context.cublas->is_faster(shape_of(op), timed(matmul_sum_sm90), timed(sum_after_sum), op.flops(), context);
}

}  // namespace

void run(const MatmulSum& op, CudaContext& context) {
  if (suits_matmul_sum(op, context) && one_kernel_is_faster(op, context))
    matmul_sum_sm90(op, context);
  else
    sum_after_sum(op, context);
}

}  // namespace qeng
