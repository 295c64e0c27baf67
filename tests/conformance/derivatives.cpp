// Which gradient ops belong to which forward op. The derivative test takes the forward reference's central differences
// for the truth about the gradient references.
#include "tests/conformance/table.h"

namespace qeng::conformance {
namespace {

constexpr DType kF32 = DType::f32;

Chain linear(Draw& draw) {
  Matmul forward;
  const int64_t m = draw.size(6), k = draw.size(7), n = draw.size(5);
  forward.alpha = 0.75f, forward.trans_b = true;
  forward.a = draw.tensor(kF32, {m, k}), forward.b = draw.tensor(kF32, {n, k}), forward.bias = draw.tensor(kF32, {n});
  forward.c = draw.empty(kF32, {m, n});
  Chain chain{forward, {}, forward.c, draw.like(forward.c), {}, {}};
  Matmul da, db;
  da.alpha = db.alpha = forward.alpha;
  da.a = chain.dout, da.b = forward.b, da.c = draw.empty_like(forward.a);
  db.a = chain.dout, db.b = forward.a, db.c = draw.empty_like(forward.b), db.trans_a = true;
  BiasGrad bias;
  bias.dy = chain.dout, bias.db = draw.empty_like(forward.bias);
  chain.gradients = {da, db, bias};
  chain.pairs = {{forward.a, da.c}, {forward.b, db.c}, {forward.bias, bias.db}};
  return chain;
}

// The frozen weights of a block format: the gradient of their product's input.
Chain stored_linear(Draw& draw) {
  Matmul forward, da;
  forward.alpha = da.alpha = -0.5f, forward.trans_b = true;
  forward.a = draw.tensor(kF32, {draw.size(4), 256});
  forward.b = draw.tensor(draw.block_format(), {draw.size(5), 256});
  forward.c = draw.empty(kF32, {forward.a.shape[0], forward.b.shape[0]});
  Chain chain{forward, {}, forward.c, draw.like(forward.c), {}, {}};
  da.a = chain.dout, da.b = forward.b, da.c = draw.empty_like(forward.a);
  chain.gradients = {da};
  chain.pairs = {{forward.a, da.c}};
  return chain;
}

Chain scaled_columns(Draw& draw) {
  ScaleColumns forward;
  forward.x = draw.tensor(kF32, {draw.size(5), draw.size(7)}), forward.scale = draw.tensor(kF32, {forward.x.columns()});
  forward.bias = draw.tensor(kF32, {forward.x.columns()}), forward.y = draw.empty_like(forward.x);
  Chain chain{forward, {}, forward.y, draw.like(forward.y), {}, {}};
  ScaleColumnsGrad gradient{forward.x, forward.scale, chain.dout, draw.empty_like(forward.x),
                            draw.empty_like(forward.scale)};
  BiasGrad bias;
  bias.dy = chain.dout, bias.db = draw.empty_like(forward.bias);
  chain.gradients = {gradient, bias};
  chain.pairs = {{forward.x, gradient.dx}, {forward.scale, gradient.dscale}, {forward.bias, bias.db}};
  return chain;
}

Chain hadamard(Draw& draw) {
  Hadamard forward;
  forward.block = 8, forward.inverse = draw.flip();
  forward.x = draw.tensor(kF32, {draw.size(4), 24}), forward.y = draw.empty_like(forward.x);
  forward.signs = draw.empty(kF32, {24});
  for (int64_t i = 0; i < 24; ++i) encode(forward.signs, i, draw.flip() ? 1 : -1);
  Chain chain{forward, {}, forward.y, draw.like(forward.y), {}, {}};
  Hadamard gradient = forward;
  gradient.x = chain.dout, gradient.y = draw.empty_like(forward.x), gradient.inverse = !forward.inverse;
  chain.gradients = {gradient};
  chain.pairs = {{forward.x, gradient.y}};
  return chain;
}

Chain embedding(Draw& draw) {
  Embedding forward;
  forward.table = draw.tensor(kF32, {draw.size(9), draw.size(5)});
  forward.tokens = draw.tokens(draw.size(20), forward.table.shape[0]);
  forward.y = draw.empty(kF32, {forward.tokens.elements(), forward.table.columns()});
  Chain chain{forward, {}, forward.y, draw.like(forward.y), {}, {}};
  EmbeddingGrad gradient{forward.tokens, chain.dout,
                         draw.tensor(kF32, {forward.table.shape[0], forward.table.shape[1]}, 0)};
  chain.gradients = {gradient};
  chain.pairs = {{forward.table, gradient.dtable}};
  return chain;
}

Chain rmsnorm(Draw& draw) {
  RmsNorm forward;
  forward.x = draw.tensor(kF32, {draw.size(6), draw.size(9)}), forward.w = draw.tensor(kF32, {forward.x.columns()});
  forward.y = draw.empty_like(forward.x), forward.rstd = draw.empty(kF32, {forward.x.rows()});
  forward.eps = 0.01f, forward.plus_one = draw.flip();
  Chain chain{forward, {}, forward.y, draw.like(forward.y), {}, {forward.rstd}};
  RmsNormGrad gradient;
  gradient.x = forward.x, gradient.w = forward.w, gradient.rstd = forward.rstd, gradient.dy = chain.dout;
  gradient.dx = draw.empty_like(forward.x), gradient.dw = draw.empty_like(forward.w),
  gradient.plus_one = forward.plus_one;
  chain.gradients = {gradient};
  chain.pairs = {{forward.x, gradient.dx}, {forward.w, gradient.dw}};
  return chain;
}

Chain add_rmsnorm(Draw& draw) {
  AddRmsNorm forward;
  forward.a = draw.tensor(kF32, {draw.size(6), draw.size(9)}), forward.b = draw.like(forward.a);
  forward.w = draw.tensor(kF32, {forward.a.columns()});
  forward.sum = draw.empty_like(forward.a), forward.y = draw.empty_like(forward.a);
  forward.rstd = draw.empty(kF32, {forward.a.rows()});
  forward.eps = 0.01f, forward.plus_one = draw.flip();
  Chain chain{forward, {}, forward.y, draw.like(forward.y), {}, {forward.sum, forward.rstd}};
  chain.more = {{forward.sum, draw.like(forward.sum)}};
  RmsNormGrad gradient;
  gradient.x = forward.sum, gradient.w = forward.w, gradient.rstd = forward.rstd, gradient.dy = chain.dout;
  gradient.dresidual = chain.more[0].second, gradient.dx = draw.empty_like(forward.a);
  gradient.dw = draw.empty_like(forward.w), gradient.plus_one = forward.plus_one;
  chain.gradients = {gradient};
  chain.pairs = {{forward.a, gradient.dx}, {forward.b, gradient.dx}, {forward.w, gradient.dw}};
  return chain;
}

Chain swiglu(Draw& draw) {
  SwiGlu forward;
  forward.gate = draw.tensor(kF32, {draw.size(6), draw.size(9)}, 2), forward.up = draw.like(forward.gate);
  forward.y = draw.empty_like(forward.gate), forward.gelu = draw.flip();
  Chain chain{forward, {}, forward.y, draw.like(forward.y), {}, {}};
  SwiGluGrad gradient{
      forward.gate, forward.up, chain.dout, draw.empty_like(forward.gate), draw.empty_like(forward.gate), forward.gelu};
  chain.gradients = {gradient};
  chain.pairs = {{forward.gate, gradient.dgate}, {forward.up, gradient.dup}};
  return chain;
}

Chain dropout(Draw& draw) {
  Dropout forward;
  forward.x = draw.tensor(kF32, {draw.size(6), draw.size(30)}), forward.y = draw.empty_like(forward.x);
  forward.rng = draw.values(DType::i64, {7, 3}), forward.p = 0.4f, forward.stream = 5;
  Chain chain{forward, {}, forward.y, draw.like(forward.y), {}, {}};
  Dropout gradient = forward;
  gradient.x = chain.dout, gradient.y = draw.empty_like(forward.x);
  chain.gradients = {gradient};
  chain.pairs = {{forward.x, gradient.y}};
  return chain;
}

Chain rope(Draw& draw) {
  Rope forward;
  forward.x = draw.tensor(kF32, {draw.size(5), draw.integer(1, 3), 10}), forward.y = draw.empty_like(forward.x);
  forward.positions = draw.tokens(forward.x.shape[0], 50), forward.inv_freq = draw.values(kF32, {1, 0.3, 0.01});
  forward.x2 = draw.tensor(kF32, {forward.x.shape[0], draw.integer(1, 3), 10}),
  forward.y2 = draw.empty_like(forward.x2);
  forward.scale = 1.25f;
  Chain chain{forward, {}, forward.y, draw.like(forward.y), {}, {}};
  chain.more = {{forward.y2, draw.like(forward.y2)}};
  Rope gradient = forward;
  gradient.x = chain.dout, gradient.y = draw.empty_like(forward.x), gradient.inverse = true;
  gradient.x2 = chain.more[0].second, gradient.y2 = draw.empty_like(forward.x2);
  chain.gradients = {gradient};
  chain.pairs = {{forward.x, gradient.y}, {forward.x2, gradient.y2}};
  return chain;
}

Chain attention(Draw& draw) {
  Attention forward;
  const Documents documents = draw.documents(3, 9);
  const int64_t kv_heads = draw.integer(1, 2), heads = kv_heads * draw.integer(1, 3), head_dim = draw.size(6);
  forward.cu_q = documents.cu_q, forward.cu_k = documents.cu_k;
  forward.q = draw.tensor(kF32, {documents.queries, heads, head_dim});
  forward.k = draw.tensor(kF32, {documents.keys, kv_heads, head_dim}), forward.v = draw.like(forward.k);
  forward.o = draw.empty_like(forward.q), forward.lse = draw.empty(kF32, {heads, documents.queries});
  forward.scale = 0.6f, forward.window = draw.flip() ? 4 : 0;
  Chain chain{forward, {}, forward.o, draw.like(forward.o), {}, {forward.o, forward.lse}};
  AttentionGrad gradient;
  gradient.q = forward.q, gradient.k = forward.k, gradient.v = forward.v, gradient.cu_q = forward.cu_q,
  gradient.cu_k = forward.cu_k;
  gradient.o = forward.o, gradient.lse = forward.lse, gradient.dout = chain.dout,
  gradient.delta = draw.empty_like(forward.lse);
  gradient.dq = draw.empty_like(forward.q), gradient.dk = draw.empty_like(forward.k),
  gradient.dv = draw.empty_like(forward.v);
  gradient.scale = forward.scale, gradient.window = forward.window;
  chain.gradients = {gradient};
  chain.pairs = {{forward.q, gradient.dq}, {forward.k, gradient.dk}, {forward.v, gradient.dv}};
  return chain;
}

Chain lm_head_loss(Draw& draw) {
  LmHeadLoss forward;
  const int64_t tokens = draw.size(6), hidden = draw.size(5), vocab = draw.size(7);
  forward.h = draw.tensor(kF32, {tokens, hidden}), forward.w = draw.tensor(kF32, {vocab, hidden});
  forward.targets = draw.tokens(tokens, vocab);
  encode(forward.targets, 0, draw.flip() ? -1 : 0);
  forward.loss_scale = draw.values(kF32, {0.3});
  forward.nll = draw.empty(kF32, {tokens}), forward.loss = draw.empty(kF32, {1});
  LmHeadLoss gradient = forward;
  gradient.dh = draw.empty_like(forward.h), gradient.dw = draw.tensor(kF32, {vocab, hidden}, 0);
  return {
      forward, {gradient}, forward.loss, draw.values(kF32, {1}), {{forward.h, gradient.dh}, {forward.w, gradient.dw}},
      {}};
}

}  // namespace

const std::vector<Derivative>& derivatives() {
  static const std::vector<Derivative> table = {
      {"matmul and bias_grad", linear},
      {"matmul of stored weights", stored_linear},
      {"hadamard", hadamard},
      {"scale_columns", scaled_columns},
      {"embedding_grad", embedding},
      {"rmsnorm_grad", rmsnorm},
      {"rmsnorm_grad of a sum", add_rmsnorm},
      {"swiglu_grad", swiglu},
      {"dropout", dropout},
      {"rope", rope},
      {"attention_grad", attention},
      {"lm_head_loss", lm_head_loss},
  };
  return table;
}

}  // namespace qeng::conformance
