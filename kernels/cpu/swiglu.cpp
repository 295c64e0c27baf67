#include "kernels/cpu/cpu.h"

namespace qeng {

void run(const SwiGlu& op, CpuContext& context) {
  // A quarter of the grain: each element has an exponential, and one row of a model has a few thousand.
  parallel_for(context.threads, op.gate.elements(), kGrainElements / 4, [&](int64_t begin, int64_t end) {
    context.isa->swiglu(float_type(op.gate), op.gelu, at(op.gate, begin), at(op.up, begin), at(op.y, begin),
                        end - begin);
  });
}

void run(const SwiGluGrad& op, CpuContext& context) {
  parallel_for(context.threads, op.gate.elements(), kGrainElements, [&](int64_t begin, int64_t end) {
    context.isa->swiglu_grad(float_type(op.gate), op.gelu, at(op.gate, begin), at(op.up, begin), at(op.dy, begin),
                             at(op.dgate, begin), at(op.dup, begin), end - begin);
  });
}

}  // namespace qeng
