// SumSquares, ClipScale, AdamW.
#include <algorithm>

#include "kernels/math/adamw_codes.h"
#include "kernels/opencl/opencl.h"

namespace qeng::opencl {

namespace {

constexpr int64_t kChunk = 16384;  // CHUNK of optimizer.cl

cl_kernel kernel_of(Context& context, const char* name, const View& x) {
  return context.programs->kernel("optimizer.cl", name, {{"X", x ? type_of(x) : "f32"}});
}

struct Twofold {
  float high, low;
};

}  // namespace

void run(const SumSquares& op, Context& context) {
  int64_t most = 0;
  for (const View& x : op.x) most = std::max(most, ceil_div(x.elements(), kChunk));
  Twofold* partial = context.scratch.take<Twofold>(most);
  for (size_t i = 0; i < op.x.size(); ++i) {
    const int64_t count = op.x[i].elements(), chunks = ceil_div(count, kChunk);
    launch(context, kernel_of(context, "chunk_squares", op.x[i]), groups(chunks), op.x[i], partial, count);
    launch(context, kernel_of(context, "sum_chunks", View()), groups(1), partial, op.out, chunks,
           static_cast<int64_t>(i));
  }
}

void run(const ClipScale& op, Context& context) {
  launch(context, kernel_of(context, "clip_scale", View()), groups(1), op.partials, op.out, op.partials.elements(),
         op.max_norm);
}

void run(const AdamW& op, Context& context) {
  for (size_t i = 0; i < op.w.size(); ++i) {
    const View model = op.model.empty() ? View() : op.model[i];
    const int64_t count = op.w[i].elements();
    const int clear = op.clear, has_model = bool(model);
    if (op.scales.empty()) {
      launch(context, kernel_of(context, "adamw", op.grad[i]), items(count), op.w[i], op.grad[i], op.m[i], op.v[i],
             model, op.hyper, op.clip, op.beta1, op.beta2, op.eps, op.decay, clear, has_model, count);
      continue;
    }
    const int64_t blocks = ceil_div(count, kMomentBlock);
    launch(context, kernel_of(context, "adamw_of_codes", op.grad[i]), groups(blocks), op.w[i], op.grad[i], op.m[i],
           op.v[i], model, op.scales[i], op.hyper, op.clip, op.beta1, op.beta2, op.eps, op.decay, clear, has_model,
           count, blocks);
  }
}

}  // namespace qeng::opencl
