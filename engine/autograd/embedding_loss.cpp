// The two ends of a language model: token embedding and the LM head with its loss.
#include "engine/autograd/expression.h"
#include "engine/autograd/functions.h"
#include "kernels/lm_head.h"
#include "kernels/view_text.h"

namespace qeng {

TensorPtr embedding(Tape& tape, const TensorPtr& table, const TensorPtr& tokens, DType out) {
  if (table->view.rank != 2 || tokens->view.rank != 1)
    fail("shape", "embedding: table is ", shape_text(table->view), ", tokens ", shape_text(tokens->view),
         "; expected [vocab, hidden] and [t]");
  Device& device = tape.device();
  TensorPtr y = make_tensor(device, {tokens->view.elements(), table->view.columns()}, out);
  device.run(Embedding{tokens->view, table->view, y->view});
  if (!tape.wants({table})) return y;
  tape.record({y}, [=, &tape, &device] {
    if (table->frozen) return;
    if (!table->requires_grad) fail("unsupported", "embedding: the table has to be a parameter, not a computed tensor");
    device.run(EmbeddingGrad{tokens->view, y->grad->view, tape.gradient_of(table).view});
  });
  return y;
}

namespace {

// The op on tensors of its own for nll and loss; dh: where the gradient of h goes, or null; dw likewise.
HeadLoss run_head(Device& device, const TensorPtr& h, const TensorPtr& w, const TensorPtr& targets,
                  const TensorPtr& loss_scale, const HeadOptions& options, const View& dh, const View& dw) {
  if (h->view.rank != 2 || w->view.rank != 2 || h->view.shape[1] != w->view.shape[1])
    fail("shape", "lm_head_loss: h is ", shape_text(h->view), ", w ", shape_text(w->view),
         "; expected [tokens, hidden] and [vocab, hidden]");
  const int64_t tokens = h->view.shape[0], hidden = h->view.shape[1], vocab = w->view.shape[0];
  HeadLoss result{make_tensor(device, {1}, DType::f32), make_tensor(device, {tokens}, DType::f32)};
  LmHeadLoss op{.h = h->view, .w = w->view, .targets = targets->view, .loss_scale = loss_scale->view};
  op.nll = result.nll->view, op.loss = result.loss->view;
  op.softcap = options.softcap, op.chunk = device.backend().head_chunk(tokens, vocab);
  if (!device.capturing()) op.trained = head_rows(tokens, options.trained);
  const TensorPtr workspace =
      make_tensor(device, {lm_head_workspace(tokens, hidden, vocab, op.chunk, h->view.dtype)}, DType::u8, "workspace");
  op.workspace = workspace->view;
  op.dh = dh, op.dw = dw;
  device.run(op);
  return result;
}

}  // namespace

HeadLoss lm_head_loss(Tape& tape, const TensorPtr& h, const TensorPtr& w, const TensorPtr& targets,
                      const TensorPtr& loss_scale, const HeadOptions& options) {
  Device& device = tape.device();
  if (!tape.wants({h, w})) return run_head(device, h, w, targets, loss_scale, options, {}, {});
  if (w->tracked) fail("unsupported", "lm_head_loss: w has to be a parameter, not a computed tensor");
  const TensorPtr dh = make_like(*h);
  const bool trained = w->needs_grad();
  const HeadLoss result =
      run_head(device, h, w, targets, loss_scale, options, dh->view, trained ? w->grad->view : View());
  tape.record({result.loss}, [&tape, h, w, dh, trained, loss = result.loss] {
    if (loss->grad->label != "one")
      fail("unsupported", "lm_head_loss: backward has to start from this loss itself; put weights into its scale");
    if (trained) w->reached = true;  // its gradient was written with the loss
    if (h->needs_grad()) tape.pass(h, dh);
  });
  return result;
}

TensorPtr token_nll(Tape& tape, const TensorPtr& h, const TensorPtr& w, const TensorPtr& targets,
                    const HeadOptions& options) {
  Device& device = tape.device();
  if (tape.wants({w}))
    fail("unsupported", "token_nll: the head is trained: take logits and their log_softmax, or lm_head_loss");
  // Rows of h have nothing to do with each other: under one loss of scale 1, the gradient of each is that of its nll.
  const TensorPtr one = make_constant(device, {1}, DType::f32, {1}), dh = tape.wants({h}) ? make_like(*h) : nullptr;
  const TensorPtr nll = run_head(device, h, w, targets, one, options, dh ? dh->view : View(), {}).nll;
  if (!dh) return nll;
  tape.record({nll}, [=, &tape] {
    const TensorPtr by_row = reshape_view(nll->grad, {nll->view.shape[0], 1});
    const TensorPtr dx = make_like(*h);
    copy_into(*dx, *settled(pointwise(tape, Fn::mul, {{dh}, {by_row}})));
    tape.pass(h, dx);
  });
  return nll;
}

}  // namespace qeng
