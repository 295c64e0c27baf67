#include "kernels/cpu/cpu.h"
namespace qeng {
void run(const GroupedMatmul& op, CpuContext&) { fail("unsupported", op.name); }
void run(const GroupedMatmulGrad& op, CpuContext&) { fail("unsupported", op.name); }
void run(const Route& op, CpuContext&) { fail("unsupported", op.name); }
}
