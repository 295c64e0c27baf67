// SumSquares, ClipScale, AdamW.
#include <cmath>

#include "kernels/cpu/cpu.h"
#include "kernels/math/adamw_step.h"

namespace qeng {

void run(const SumSquares& op, CpuContext& context) {
  constexpr int64_t kBlock = 16384;  // sums of blocks, then their sum in order: the same whatever the threads
  for (size_t tensor = 0; tensor < op.x.size(); ++tensor) {
    const float* x = op.x[tensor].as<float>();
    const int64_t n = op.x[tensor].elements(), blocks = (n + kBlock - 1) / kBlock;
    context.scratch.reset();
    double* partial = context.scratch.take<double>(blocks);
    parallel_for(context.threads, blocks, 1, [&](int64_t first, int64_t last) {
      for (int64_t block = first; block < last; ++block)
        partial[block] = context.isa->sum_squares(x + block * kBlock, std::min(kBlock, n - block * kBlock));
    });
    double total = 0;
    for (int64_t block = 0; block < blocks; ++block) total += partial[block];
    op.out.as<float>()[tensor] = static_cast<float>(total);
  }
}

void run(const ClipScale& op, CpuContext&) {
  double total = 0;
  for (int64_t i = 0; i < op.partials.elements(); ++i) total += op.partials.as<float>()[i];
  const float norm = static_cast<float>(std::sqrt(total));
  const bool finite = std::isfinite(norm);
  float* out = op.out.as<float>();
  out[0] = norm;
  out[1] = !finite ? 0.0f : op.max_norm > 0 ? std::min(1.0f, op.max_norm / (norm + 1e-6f)) : 1.0f;
  out[2] = finite ? 0.0f : 1.0f;
}

void run(const AdamW& op, CpuContext& context) {
  const float *hyper = op.hyper.as<float>(), *clip = op.clip.as<float>();
  const AdamWStep step = adamw_step(hyper[0], hyper[1], clip[1], op.beta1, op.beta2, op.eps, op.decay);
  for (size_t i = 0; i < op.w.size(); ++i) {
    const int64_t n = op.w[i].elements();
    float *w = op.w[i].as<float>(), *grad = op.grad[i].as<float>(), *m = op.m[i].as<float>(), *v = op.v[i].as<float>();
    bf16* model = op.model.empty() ? nullptr : op.model[i].as<bf16>();
    parallel_for(context.threads, n, kGrainElements, [&](int64_t begin, int64_t end) {
      if (clip[2] == 0)
        context.isa->adamw(step, w + begin, grad + begin, m + begin, v + begin, model ? model + begin : nullptr,
                           end - begin);
      if (op.clear) std::fill(grad + begin, grad + end, 0.0f);
    });
  }
}

}  // namespace qeng
