#include "kernels/cuda/cuda.h"
#include "kernels/error.h"

namespace qeng {

void run(const RowLinear& op, CudaContext&) { fail("unsupported", op.name, " is not supported by the cuda backend"); }

}  // namespace qeng
