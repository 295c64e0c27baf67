#include "kernels/cpu/cpu.h"
namespace qeng {
void run(const LayerNorm& op, CpuContext&) { fail("unsupported", op.name); }
void run(const LayerNormGrad& op, CpuContext&) { fail("unsupported", op.name); }
void run(const CausalConv& op, CpuContext&) { fail("unsupported", op.name); }
void run(const CausalConvGrad& op, CpuContext&) { fail("unsupported", op.name); }
}
