// LmHeadLoss. Trained rows are gathered; each chunk of them makes f32 logits, which become their own gradient in place.
// Logits stay in f32 also where h is bf16: rounding a logit of 20 to bf16 moves a row's loss by up to 0.06, and the
// memory is bounded by the chunk. The gradient of a row is written in h's dtype at the start of its row of logits.
#include "kernels/lm_head.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu.h"

namespace qeng {

void run(const LmHeadLoss& op, CpuContext& context) {
  const DType dtype = op.h.dtype;
  const int64_t tokens = op.h.rows(), hidden = op.h.columns(), vocab = op.w.rows();
  const std::optional<DType> stored = op.w.dtype == dtype ? std::nullopt : std::optional(op.w.dtype);
  const LmHeadParts parts(tokens, hidden, vocab, op.chunk, dtype);

  const int32_t* targets = op.targets.as<int32_t>();
  for (int64_t t = 0; t < tokens; ++t)
    if (targets[t] < -1 || targets[t] >= vocab)
      fail("value", op.name, ": target ", targets[t], " at position ", t, " is outside the vocabulary of ", vocab,
           " (-1: not trained)");

  char* base = LmHeadParts::base(op.workspace);
  const auto padded = [](int64_t count) { return LmHeadParts::padded(count); };
  int32_t* rows = reinterpret_cast<int32_t*>(base + parts.rows);
  int64_t trained = 0;
  for (int64_t t = 0; t < tokens; ++t)
    if (targets[t] >= 0) rows[trained++] = static_cast<int32_t>(t);
  if (op.trained >= 0 && trained > op.trained)
    fail("value", op.name, ": ", trained, " rows have a target, and at most ", op.trained,
         " were expected: where targets were changed, say how many are trained, or leave that out");

  const int64_t element = static_cast<int64_t>(dtype_size(dtype)), row_bytes = hidden * element;
  char *h = base + parts.h, *dh = base + parts.dh;
  for (int64_t i = 0; i < trained; ++i)
    std::memcpy(h + i * row_bytes, at(op.h, rows[i] * hidden), static_cast<size_t>(row_bytes));
  std::memset(h + trained * row_bytes, 0, static_cast<size_t>((padded(trained) - trained) * row_bytes));

  const float scale = op.loss_scale.as<float>()[0];
  float* nll = op.nll.as<float>();
  std::fill(nll, nll + tokens, 0.0f);
  float* logits = reinterpret_cast<float*>(base + parts.logits);
  const int64_t chunk = padded(op.chunk);
  for (int64_t begin = 0; begin < trained; begin += chunk) {
    const int64_t count = std::min(chunk, trained - begin), m = padded(count);
    GemmShape product;
    product.m = m, product.n = vocab, product.k = hidden, product.trans_b = true, product.in = dtype,
    product.stored = stored, product.interleaved = op.w.interleaved;
    multiply(product, h + begin * row_bytes, op.w.data, nullptr, logits, context);
    parallel_for(context.threads, m, 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        float* z = logits + i * vocab;
        if (i >= count) {
          std::fill(z, z + vocab, 0.0f);
          continue;
        }
        const int32_t t = rows[begin + i];
        if (op.softcap > 0) context.isa->softcap(z, op.softcap, vocab);
        const float lse = context.isa->logsumexp(z, vocab);
        nll[t] = lse - z[targets[t]];
        if (op.dh) context.isa->softmax_grad(z, lse, targets[t], scale, op.softcap, float_type(op.h), z, vocab);
      }
    });
    if (!op.dh) continue;
    GemmShape back;  // dh = dz W
    back.m = m, back.n = hidden, back.k = vocab, back.in = back.out = dtype;
    back.stored = stored, back.interleaved = op.w.interleaved;
    back.lda = vocab * 4 / element;
    multiply(back, logits, op.w.data, nullptr, dh + begin * row_bytes, context);
    if (!op.dw) continue;
    GemmShape weight;  // dw += dz^T h
    weight.m = vocab, weight.n = hidden, weight.k = m, weight.in = dtype, weight.trans_a = weight.acc = true;
    weight.lda = back.lda;
    multiply(weight, logits, h + begin * row_bytes, nullptr, op.dw.data, context);
  }

  if (op.dh) {
    std::memset(op.dh.data, 0, op.dh.bytes());
    for (int64_t i = 0; i < trained; ++i)
      std::memcpy(at(op.dh, rows[i] * hidden), dh + i * row_bytes, static_cast<size_t>(row_bytes));
  }
  double total = 0;
  for (int64_t t = 0; t < tokens; ++t) total += nll[t];
  op.loss.as<float>()[0] = static_cast<float>(scale * total);
}

}  // namespace qeng
