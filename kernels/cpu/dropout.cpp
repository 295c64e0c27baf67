#include "kernels/cpu/cpu.h"

namespace qeng {

void run(const Dropout& op, CpuContext& context) {
  const uint64_t seed = op.rng.as<uint64_t>()[0], step = op.rng.as<uint64_t>()[1];
  static_assert(kGrainElements % 4 == 0);  // a range starts at a Philox counter
  parallel_for(context.threads, op.x.elements(), kGrainElements, [&](int64_t begin, int64_t end) {
    context.isa->dropout(float_type(op.x), at(op.x, begin), at(op.y, begin), begin, end - begin, seed, step,
                         op.subsequence, op.p);
  });
}

}  // namespace qeng
