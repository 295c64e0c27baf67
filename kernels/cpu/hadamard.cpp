#include "kernels/cpu/cpu.h"

namespace qeng {

void run(const Hadamard& op, CpuContext&) { fail("unsupported", op.name, " is not supported by the cpu backend"); }

}  // namespace qeng
