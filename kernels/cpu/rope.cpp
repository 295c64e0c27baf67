#include "kernels/cpu/cpu.h"

namespace qeng {

void run(const Rope& op, CpuContext&) {
  fail("unsupported", op.name, ": the cpu backend does not have this operation");
}

}  // namespace qeng
