#include "kernels/check.h"
#include "kernels/check_shapes.h"
#include "kernels/lm_head.h"
#include "kernels/math/adamw_codes.h"
#include "kernels/view_text.h"

namespace qeng {

int64_t lm_head_workspace(int64_t tokens, int64_t hidden, int64_t vocab, int chunk, DType dtype) {
  return LmHeadParts(tokens, hidden, vocab, chunk, dtype).bytes();
}

void check_shapes(const LmHeadLoss& op) {
  const Check check{op.name};
  check.is_float("h", op.h);
  check.that(op.h.rank == 2, [&] { return "h is " + shape_text(op.h) + ", expected [tokens, hidden]"; });
  check.that(op.w.rank == 2, [&] { return "w is " + shape_text(op.w) + ", expected [vocab, hidden]"; });
  const DType dtype = op.h.dtype;
  const int64_t tokens = op.h.rows(), hidden = op.h.columns(), vocab = op.w.rows();
  const bool stored = op.w.dtype != dtype;
  check.is_weight("w", op.w, dtype);
  check.that(op.w.columns() == hidden,
             [&] { return "w is " + shape_text(op.w) + ", h is " + shape_text(op.h) + "; their columns differ"; });
  if (stored && op.dw)
    fail("dtype", op.name, ": w is ", shape_text(op.w), ", which is only read, and dw was asked for");
  check.count("targets", op.targets, DType::i32, tokens);
  check.is("loss_scale", op.loss_scale, DType::f32, {1});
  check.count("nll", op.nll, DType::f32, tokens);
  check.is("loss", op.loss, DType::f32, {1});
  if (op.dh) check.like("dh", op.dh, "h", op.h);
  if (op.dw) check.is("dw", op.dw, DType::f32, {vocab, hidden});
  if (op.dw && !op.dh) fail("value", op.name, ": dw without dh: gradients are computed where dh is given");
  if (op.chunk < 1) fail("value", op.name, ": chunk is ", op.chunk, ", expected at least 1");
  if (!(op.softcap >= 0)) fail("value", op.name, ": softcap is ", op.softcap, ", expected 0 (none) or more");
  if (op.trained < -1 || op.trained > tokens)
    fail("value", op.name, ": trained is ", op.trained, ", expected at most the ", tokens,
         " rows of h (-1: any number)");
  check.dtype("workspace", op.workspace, {DType::u8});
  const int64_t needed = lm_head_workspace(tokens, hidden, vocab, op.chunk, dtype);
  check.that(op.workspace.elements() >= needed, [&] {
    return "workspace is " + shape_text(op.workspace) + ", expected at least " + std::to_string(needed) + " bytes";
  });
}

void check_shapes(const SumSquares& op) {
  const Check check{op.name};
  for (const View& x : op.x) check.dtype("x", x, {DType::f32, DType::bf16});
  check.is("out", op.out, DType::f32, {static_cast<int64_t>(op.x.size())});
}

void check_shapes(const ClipScale& op) {
  const Check check{op.name};
  check.dtype("partials", op.partials, {DType::f32});
  check.is("out", op.out, DType::f32, {3});
}

void check_shapes(const AdamW& op) {
  const Check check{op.name};
  const size_t count = op.w.size();
  check.that(op.grad.size() == count && op.m.size() == count && op.v.size() == count &&
                 (op.model.empty() || op.model.size() == count) && (op.scales.empty() || op.scales.size() == count),
             [&] {
               return "the lists differ in length: w " + std::to_string(count) + ", grad " +
                      std::to_string(op.grad.size()) + ", m " + std::to_string(op.m.size()) + ", v " +
                      std::to_string(op.v.size()) + ", model " + std::to_string(op.model.size()) + ", scales " +
                      std::to_string(op.scales.size());
             });
  for (size_t i = 0; i < count; ++i) {
    const int64_t n = op.w[i].elements();
    check.dtype("w", op.w[i], {DType::f32});
    check.dtype("grad", op.grad[i], {DType::f32, DType::bf16});
    check.count("grad", op.grad[i], op.grad[i].dtype, n);
    const DType moments = op.scales.empty() ? DType::f32 : DType::u8;
    check.count("m", op.m[i], moments, n);
    check.count("v", op.v[i], moments, n);
    if (!op.scales.empty()) check.is("scales", op.scales[i], DType::f32, {2, (n + kMomentBlock - 1) / kMomentBlock});
    if (!op.model.empty() && op.model[i]) check.count("model", op.model[i], DType::bf16, n);
  }
  check.is("hyper", op.hyper, DType::f32, {2});
  check.is("clip", op.clip, DType::f32, {3});
}

}  // namespace qeng
