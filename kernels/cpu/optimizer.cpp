// SumSquares, ClipScale, AdamW.
#include <cmath>

#include "kernels/cpu/cpu.h"

namespace qeng {

void run(const SumSquares& op, CpuContext& context) {
  const Check check{op.name};
  check.dtype("x", op.x, {DType::f32});
  check.dtype("out", op.out, {DType::f32});
  check.that(op.slot >= 0 && op.slot < op.out.elements(),
             "slot " + std::to_string(op.slot) + " is outside out, " + shape_text(op.out));
  constexpr int64_t kBlock = 16384;  // sums of blocks, then their sum in order: the same whatever the threads
  const int64_t n = op.x.elements(), blocks = (n + kBlock - 1) / kBlock;
  double* partial = context.scratch.take<double>(blocks);
  parallel_for(context.threads, blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block)
      partial[block] =
          context.isa->sum_squares(op.x.as<float>() + block * kBlock, std::min(kBlock, n - block * kBlock));
  });
  double total = 0;
  for (int64_t block = 0; block < blocks; ++block) total += partial[block];
  op.out.as<float>()[op.slot] = static_cast<float>(total);
}

void run(const ClipScale& op, CpuContext&) {
  const Check check{op.name};
  check.dtype("partials", op.partials, {DType::f32});
  check.is("out", op.out, DType::f32, {3});
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
  const Check check{op.name};
  check.dtype("w", op.w, {DType::f32});
  const int64_t n = op.w.elements();
  check.count("grad", op.grad, DType::f32, n);
  check.count("m", op.m, DType::f32, n);
  check.count("v", op.v, DType::f32, n);
  if (op.model) check.count("model", op.model, DType::bf16, n);
  check.is("hyper", op.hyper, DType::f32, {2});
  check.is("clip", op.clip, DType::f32, {3});
  const float *hyper = op.hyper.as<float>(), *clip = op.clip.as<float>();
  if (clip[2] != 0) return;
  const double lr = hyper[0], t = hyper[1];
  AdamWStep step;
  step.beta1 = op.beta1, step.beta2 = op.beta2, step.eps = op.eps, step.clip = clip[1];
  step.keep = static_cast<float>(1 - lr * op.decay);
  step.rate = static_cast<float>(lr / (1 - std::pow(static_cast<double>(op.beta1), t)));
  step.correction2 = static_cast<float>(1 / (1 - std::pow(static_cast<double>(op.beta2), t)));
  parallel_for(context.threads, n, kGrainElements, [&](int64_t begin, int64_t end) {
    context.isa->adamw(step, op.w.as<float>() + begin, op.grad.as<float>() + begin, op.m.as<float>() + begin,
                       op.v.as<float>() + begin, op.model ? op.model.as<bf16>() + begin : nullptr, end - begin);
  });
}

}  // namespace qeng
