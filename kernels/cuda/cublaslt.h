// Dense matrix products by cuBLASLt, opened at run time.
#pragma once
#include <memory>

#include "kernels/cuda/cuda.h"

namespace qeng {

// Null in the emulator, where matmul.cu computes products itself.
std::shared_ptr<CublasLt> open_cublaslt(int device);

}  // namespace qeng
