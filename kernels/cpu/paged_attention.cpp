#include "kernels/cpu/cpu.h"

namespace qeng {

void run(const KvStore& op, CpuContext&) { fail("unsupported", op.name, " is not supported by the cpu backend"); }
void run(const CopyPages& op, CpuContext&) { fail("unsupported", op.name, " is not supported by the cpu backend"); }
void run(const PagedAttention& op, CpuContext&) { fail("unsupported", op.name, " is not supported by the cpu backend"); }

}  // namespace qeng
