#include "kernels/cuda/cuda.h"
#include "kernels/error.h"

namespace qeng {

void run(const RowLinear& op, CudaContext&) { fail("unsupported", op.name, " is not supported by the cuda backend"); }
void run(const KvStore& op, CudaContext&) { fail("unsupported", op.name, " is not supported by the cuda backend"); }
void run(const CopyPages& op, CudaContext&) { fail("unsupported", op.name, " is not supported by the cuda backend"); }
void run(const PagedAttention& op, CudaContext&) {
  fail("unsupported", op.name, " is not supported by the cuda backend");
}

}  // namespace qeng
