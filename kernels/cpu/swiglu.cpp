#include "kernels/cpu/cpu.h"

namespace qeng {

void run(const SwiGlu& op, CpuContext& context) {
  const Check check{op.name};
  check.is_float("gate", op.gate);
  check.like("up", op.up, "gate", op.gate);
  check.like("y", op.y, "gate", op.gate);
  parallel_for(context.threads, op.gate.elements(), kGrainElements, [&](int64_t begin, int64_t end) {
    context.isa->swiglu(float_type(op.gate), at(op.gate, begin), at(op.up, begin), at(op.y, begin), end - begin);
  });
}

void run(const SwiGluGrad& op, CpuContext& context) {
  const Check check{op.name};
  check.is_float("gate", op.gate);
  check.like("up", op.up, "gate", op.gate);
  check.like("dy", op.dy, "gate", op.gate);
  check.like("dgate", op.dgate, "gate", op.gate);
  check.like("dup", op.dup, "gate", op.gate);
  parallel_for(context.threads, op.gate.elements(), kGrainElements, [&](int64_t begin, int64_t end) {
    context.isa->swiglu_grad(float_type(op.gate), at(op.gate, begin), at(op.up, begin), at(op.dy, begin),
                             at(op.dgate, begin), at(op.dup, begin), end - begin);
  });
}

}  // namespace qeng
