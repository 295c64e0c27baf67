#include "kernels/cuda/cuda.h"
namespace qeng {
void run(const GroupedMatmul& op, CudaContext&) { fail("unsupported", op.name); }
void run(const GroupedMatmulGrad& op, CudaContext&) { fail("unsupported", op.name); }
void run(const Route& op, CudaContext&) { fail("unsupported", op.name); }
}
