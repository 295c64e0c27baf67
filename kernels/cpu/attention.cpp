#include "kernels/cpu/cpu.h"

namespace qeng {

void run(const Attention& op, CpuContext&) {
  fail("unsupported", op.name, ": the cpu backend does not have this operation");
}
void run(const AttentionGrad& op, CpuContext&) {
  fail("unsupported", op.name, ": the cpu backend does not have this operation");
}

}  // namespace qeng
