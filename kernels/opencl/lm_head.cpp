// LmHeadLoss: rows with a target are gathered, and computed a chunk at a time.
#include "kernels/lm_head.h"

#include <algorithm>

#include "kernels/opencl/opencl.h"

namespace qeng::opencl {

void run(const LmHeadLoss& op, Context& context) {
  const int64_t tokens = op.h.shape[0], hidden = op.h.shape[1], vocab = op.w.shape[0];
  const int64_t all = op.trained < 0 ? tokens : std::min(tokens, op.trained);
  const LmHeadParts parts(tokens, hidden, vocab, op.chunk, op.h.dtype);
  char* base = LmHeadParts::base(op.workspace);
  const View logits(base + parts.logits, DType::f32, {op.chunk, vocab});
  const View h(base + parts.h, op.h.dtype, {all, hidden}), dh(base + parts.dh, op.h.dtype, {all, hidden});
  const View rows(base + parts.rows, DType::i32, {all}), places(base + parts.places, DType::i32, {tokens});
  const auto kernel = [&](const char* name) {
    return context.programs->kernel("lm_head.cl", name, {{"X", type_of(op.h)}});
  };
  const float zero = 0;
  context.fill(op.nll.data, &zero, sizeof zero, op.nll.bytes());
  launch(context, kernel("list_rows"), groups(1), op.targets, rows, places, tokens, vocab, all, context.fault);
  launch(context, kernel("gather_rows"), items(all * hidden), op.h, rows, h, hidden, all * hidden);
  const auto part = [&](const View& view, int64_t first, int64_t count) {  // rows of a view
    return View(view.as<char>() + first * view.columns() * static_cast<int64_t>(dtype_size(view.dtype)), view.dtype,
                {count, view.columns()});
  };
  for (int64_t first = 0; first < all; first += op.chunk) {
    const int64_t count = std::min<int64_t>(op.chunk, all - first);
    const View some = part(h, first, count), z = part(logits, 0, count);
    run(Matmul{.a = some, .b = op.w, .c = z, .trans_b = true}, context);
    launch(context, kernel("row_loss"), groups(count), z, part(View(rows.data, DType::i32, {all, 1}), first, count),
           op.targets, op.loss_scale, op.nll, vocab, op.softcap, int{bool(op.dh)});
    if (op.dh) run(Matmul{.a = z, .b = op.w, .c = part(dh, first, count)}, context);
    if (op.dw) run(Matmul{.a = z, .b = some, .c = op.dw, .trans_a = true, .acc = true}, context);
  }
  if (op.dh)
    launch(context, kernel("scatter_rows"), items(tokens * hidden), dh, places, op.dh, hidden, tokens * hidden);
  launch(context, kernel("sum_loss"), groups(1), op.nll, op.loss_scale, op.loss, tokens);
}

}  // namespace qeng::opencl
