// EmbeddingNoise, row by row: a row's strength follows from the document it is in.
#include "kernels/math/embedding_noise.h"

#include "kernels/cpu/cpu.h"

namespace qeng {

void run(const EmbeddingNoise& op, CpuContext& context) {
  const uint64_t seed = op.rng.as<uint64_t>()[0], step = op.rng.as<uint64_t>()[1];
  const int64_t n = op.x.columns(), rows = op.x.rows();
  const int32_t* cu = op.cu.as<int32_t>();
  const int documents = static_cast<int>(op.cu.elements()) - 1;
  parallel_for(context.threads, rows, grain_rows(n), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float strength = noise_of_row(op.strength, cu, documents, row, rows, n);
      context.isa->embedding_noise(float_type(op.x), at(op.x, row * n), at(op.y, row * n), row * n, n, seed, step,
                                   op.subsequence, strength);
    }
  });
}

}  // namespace qeng
