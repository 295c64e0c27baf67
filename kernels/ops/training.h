// Operations: loss and optimizer. Conventions: kernels/ops.h.
#pragma once
#include <vector>

#include "kernels/ops/access.h"

namespace qeng {

// Cross-entropy fused with the LM head; logits exist for one chunk of rows at a time, in f32.
//   z = h W^T;  nll[t] = logsumexp(z[t]) - z[t, targets[t]];  loss = loss_scale * sum of nll over trained rows
//   [dh] = loss_scale * (softmax(z) - onehot) W;   [dw] += loss_scale * (softmax(z) - onehot)^T h
// softcap > 0: logits z become softcap * tanh(z / softcap) before (Gemma 2), and (softmax(z) - onehot) is multiplied by
// 1 - (z / softcap)^2 of the capped ones.
// Rows whose target is -1 are not trained: their nll and dh are 0. Trained rows are gathered, in order, and computed
// `chunk` at a time. A GPU, whose products have sizes that the host gives, computes as many rows as `trained` says, of
// which those beyond the last trained one are 0 and add 0: the sums of dw are the same for any value.
// h, dh: [tokens, hidden]   w: [vocab, hidden] of h's dtype, or without dw of a stored one as in Matmul
// targets: [tokens] i32   trained: at most so many are not -1, else Error("value"); -1: any number
// loss_scale: [1] f32, read when the op runs
// nll: [tokens] f32   loss: [1] f32   dw: [vocab, hidden] f32, absent where the head is frozen
// workspace: u8 of at least lm_head_workspace(...) bytes. With dh absent only nll and loss are computed (evaluation).
struct LmHeadLoss {
  static constexpr const char* name = "lm_head_loss";
  View h, w, targets, loss_scale, nll, loss, dh, dw, workspace;
  int chunk = 256;  // rows of logits held at once
  float softcap = 0;
  int64_t trained = -1;
  template <class F>
  void views(F f) {
    f("h", h, Access::read), f("w", w, Access::read), f("targets", targets, Access::read),
        f("loss_scale", loss_scale, Access::read);
    f("nll", nll, Access::write), f("loss", loss, Access::write), f("dh", dh, Access::write),
        f("dw", dw, Access::update);
    f("workspace", workspace, Access::write);
  }
};
// Bytes for: logits [chunk, vocab] in f32, gathered h and dh rows [tokens, hidden], trained row numbers and the places
// of rows among them [tokens] i32 each, slack. They do not depend on `trained`.
int64_t lm_head_workspace(int64_t tokens, int64_t hidden, int64_t vocab, int chunk, DType dtype);

// out[i] = sum of x[i]^2, fixed order     x: tensors of any shape, f32 or bf16   out: [number of tensors] f32
struct SumSquares {
  static constexpr const char* name = "sum_squares";
  std::vector<View> x;
  View out;
  template <class F>
  void views(F f) {
    for (View& each : x) f("x", each, Access::read);
    f("out", out, Access::write);
  }
};

// out[0] = norm = sqrt(sum(partials)),  out[1] = min(1, max_norm / (norm + 1e-6)); max_norm <= 0 means no clipping
// (out[1] = 1). If norm is not finite, out[1] = 0 and out[2] = 1 (the caller skips the step), else out[2] = 0.
// partials: [n] f32   out: [3] f32
struct ClipScale {
  static constexpr const char* name = "clip_scale";
  View partials, out;
  float max_norm = 1;
  int64_t flops() const { return partials.elements(); }
  template <class F>
  void views(F f) {
    f("partials", partials, Access::read), f("out", out, Access::write);
  }
};

// Decoupled weight decay (Loshchilov & Hutter 2019). With g = clip[1] * grad, t = step + 1:
//   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  w = w (1 - lr decay) - lr (m / (1 - b1^t)) / (sqrt(v / (1 -
//   b2^t)) + eps)
// Lists of tensors, one for each parameter, of the same element count: w f32, grad f32 or bf16, m and v f32. Or m and v
// are u8, all of them, with scales [2, blocks] f32 of m and of v, as kernels/math/adamw_codes.h has them; else that list
// is empty.   model: bf16 copies of w, written with the new value; an empty list, or absent views, where there are none.
// clear: grad = 0 afterwards.
// hyper: [2] f32 = {lr, t}, read when the op runs.   clip: [3] f32 from ClipScale; if clip[2] != 0 only grad is
// changed.
struct AdamW {
  static constexpr const char* name = "adamw";
  std::vector<View> w, grad, m, v, model, scales;
  View hyper, clip;
  float beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, decay = 0;
  bool clear = false;
  template <class F>
  void views(F f) {
    for (View& each : w) f("w", each, Access::update);
    for (View& each : grad) f("grad", each, clear ? Access::update : Access::read);
    for (View& each : m) f("m", each, Access::update);
    for (View& each : v) f("v", each, Access::update);
    for (View& each : model) f("model", each, Access::write);
    for (View& each : scales) f("scales", each, Access::update);
    f("hyper", hyper, Access::read), f("clip", clip, Access::read);
  }
};

// clang-format off
#define QENG_TRAINING_OPERATIONS(OP) OP(LmHeadLoss) OP(SumSquares) OP(ClipScale) OP(AdamW)
// clang-format on

}  // namespace qeng
