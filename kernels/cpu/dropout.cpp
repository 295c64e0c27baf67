#include "kernels/cpu/cpu.h"

namespace qeng {

void run(const Dropout& op, CpuContext& context) {
  const Check check{op.name};
  check.is_float("x", op.x);
  check.like("y", op.y, "x", op.x);
  check.is("rng", op.rng, DType::i64, {2});
  if (!(op.p >= 0 && op.p < 1)) fail("value", op.name, ": p is ", op.p, ", expected 0 <= p < 1");
  const uint64_t seed = op.rng.as<uint64_t>()[0], step = op.rng.as<uint64_t>()[1];
  static_assert(kGrainElements % 4 == 0);  // a range starts at a Philox counter
  parallel_for(context.threads, op.x.elements(), kGrainElements, [&](int64_t begin, int64_t end) {
    context.isa->dropout(float_type(op.x), at(op.x, begin), at(op.y, begin), begin, end - begin, seed, step, op.stream,
                         op.p);
  });
}

}  // namespace qeng
