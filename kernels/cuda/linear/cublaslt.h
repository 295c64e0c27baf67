// Dense matrix products by NVIDIA's cuBLASLt, which is opened at run time: libqeng_cuda.so loads without it.
#pragma once
#include <functional>
#include <string>

#include "kernels/cuda/linear/gemm.h"

namespace qeng {

// "[8192, 1536] x [8960, 1536]^T -> [8192, 8960], bf16 to f32, bias, added": for messages.
std::string gemm_text(const CudaGemm& gemm);

class CublasLt {
 public:
  virtual ~CublasLt() = default;
  // Queues the product on the context's stream. False, and nothing is queued, where the library has no algorithm for
  // it. The bias has c's dtype and is aligned to 16 bytes. Sums are in f32 and partial sums are never rounded below it;
  // f32 inputs stay f32 (no TF32).
  //
  // The first product of each shape chooses its algorithm: it times the library's candidates, waiting for the device,
  // unless a graph is being recorded, QENG_CUBLASLT_TUNE=0, or an earlier run's choice is on disk. The choice stays for
  // the life of this object, so that eager and recorded runs give the same bits.
  virtual bool run(const CudaGemm& gemm, CudaContext& context) = 0;

  // Whether a kernel of ours is faster than the library's products at what both leave the same memory with. Chosen and
  // kept as algorithms are, under the name of the shape; where nothing was timed, ours is for little work alone. Both
  // say whether they could queue the work.
  virtual bool is_faster(const std::string& shape, const std::function<bool()>& ours,
                         const std::function<bool()>& library, int64_t flops, CudaContext& context) = 0;
};

// Opens the library. Null in the emulator, where a wrong QENG_CUBLASLT is refused all the same. Throws
// Error("unsupported") naming where the library was looked for and what to do. The backend's to delete.
CublasLt* open_cublaslt(CudaContext& context);

}  // namespace qeng
