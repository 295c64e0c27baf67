// Stand-ins for operations whose file is not written yet.
#include "kernels/cuda/attention.h"
namespace qeng {
#define QENG_ABSENT(Operation) \
  __attribute__((weak)) void run(const Operation& op, CudaContext&) { fail("unsupported", op.name, ": not on cuda yet"); }
QENG_ABSENT(Attention)
QENG_ABSENT(AttentionGrad)
__attribute__((weak)) void attention_delta(const AttentionGrad& op, const AttentionShape&, CudaContext&) {
  fail("unsupported", op.name, ": not on cuda yet");
}
}  // namespace qeng
