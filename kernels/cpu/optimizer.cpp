// SumSquares, ClipScale, AdamW.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu.h"
#include "kernels/math/adamw_codes.h"
#include "kernels/math/adamw_step.h"

namespace qeng {

namespace {

// Elements first .. first + n of a float view as f32: where they lie, or in `wide`.
const float* widened(const View& view, int64_t first, int64_t n, float* wide, const CpuContext& context) {
  if (view.dtype == DType::f32) return view.as<float>() + first;
  context.isa->scale(float_type(view), at(view, first), isa::Float::f32, wide, 1.0f, n);
  return wide;
}

}  // namespace

void run(const SumSquares& op, CpuContext& context) {
  constexpr int64_t kBlock = 16384;  // sums of blocks, then their sum in order: the same whatever the threads
  constexpr int64_t kPiece = 1024;   // of one, as f32 on the stack
  for (size_t tensor = 0; tensor < op.x.size(); ++tensor) {
    const View& x = op.x[tensor];
    const int64_t n = op.x[tensor].elements(), blocks = (n + kBlock - 1) / kBlock;
    context.scratch.reset();
    double* partial = context.scratch.take<double>(blocks);
    parallel_for(context.threads, blocks, 1, [&](int64_t first, int64_t last) {
      float wide[kPiece];
      for (int64_t block = first; block < last; ++block) {
        const int64_t begin = block * kBlock, end = std::min(begin + kBlock, n);
        if (x.dtype == DType::f32) {
          partial[block] = context.isa->sum_squares(x.as<float>() + begin, end - begin);
          continue;
        }
        partial[block] = 0;
        for (int64_t i = begin; i < end; i += kPiece)
          partial[block] += context.isa->sum_squares(widened(x, i, std::min(kPiece, end - i), wide, context),
                                                     std::min(kPiece, end - i));
      }
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
    const View& grad = op.grad[i];
    const int64_t n = op.w[i].elements(), blocks = (n + kMomentBlock - 1) / kMomentBlock;
    float* w = op.w[i].as<float>();
    bf16* model = op.model.empty() ? nullptr : op.model[i].as<bf16>();
    const bool codes = !op.scales.empty();
    const auto update = [&](int64_t begin, int64_t count, float* wide) {
      const float* g = widened(grad, begin, count, wide, context);
      bf16* copy = model ? model + begin : nullptr;
      if (!codes) {
        context.isa->adamw(step, w + begin, g, op.m[i].as<float>() + begin, op.v[i].as<float>() + begin, copy, count);
        return;
      }
      float* largest = op.scales[i].as<float>() + begin / kMomentBlock;
      context.isa->adamw_codes(step, w + begin, g, op.m[i].as<uint8_t>() + begin, op.v[i].as<uint8_t>() + begin,
                               largest, largest + blocks, copy, count);
    };
    // f32 as they are come in one piece, others in blocks.
    const int64_t unit = codes || grad.dtype != DType::f32 ? kMomentBlock : 1;
    parallel_for(context.threads, (n + unit - 1) / unit, std::max<int64_t>(1, kGrainElements / unit),
                 [&](int64_t first, int64_t last) {
                   const int64_t begin = first * unit, end = std::min(last * unit, n);
                   float wide[kMomentBlock];
                   if (clip[2] == 0 && unit == 1) update(begin, end - begin, wide);
                   for (int64_t at = begin; clip[2] == 0 && unit > 1 && at < end; at += unit)
                     update(at, std::min(unit, end - at), wide);
                   if (op.clear) {
                     char* from = at(grad, begin);
                     std::fill(from, from + static_cast<size_t>(end - begin) * dtype_size(grad.dtype), 0);
                   }
                 });
  }
}

}  // namespace qeng
