// One generator for each op: odd sizes, one row, no rows to train, padding, absent optional views, in place where
// allowed.
#include "tests/conformance/table.h"

namespace qeng::conformance {
namespace {

// A quarter of the draws where tensors start anywhere: a device that moves 16 bytes at a time cannot there.
void sometimes_misalign(Draw& draw) {
  if (draw.integer(0, 3) == 0) draw.misalign();
}

Op matmul(Draw& draw) {
  sometimes_misalign(draw);
  Matmul op;
  int64_t m = draw.size(70), k = draw.size(90), n = draw.size(70);
  const DType dtype = draw.float_dtype();
  op.trans_a = draw.flip(), op.trans_b = draw.flip(), op.acc = draw.flip();
  if (draw.integer(0, 5) == 0) m = 1, k = 8 * draw.size(80), op.trans_b = true;  // decoding: a row times whole vectors
  op.alpha = draw.pick({1.0f, 1.0f, -0.5f, 2.75f});
  DType weights = dtype;
  if (draw.integer(0, 2) == 0) {  // stored weights; sometimes rows longer than the panels that they are decoded to
    weights = draw.stored_dtype(dtype);
    const bool wide = draw.integer(0, 7) == 0;
    m = std::min<int64_t>(m, wide ? 3 : 20);
    int64_t &along = op.trans_b ? k : n, &across = op.trans_b ? n : k;
    along = wide ? 1280 : draw.row_length(weights, 512), across = std::min<int64_t>(across, wide ? 9 : 40);
  }
  op.a = op.trans_a ? draw.tensor(dtype, {k, m}) : draw.tensor(dtype, {m, k});
  op.b = op.trans_b ? draw.tensor(weights, {n, k}) : draw.tensor(weights, {k, n});
  if (draw.flip()) op.bias = draw.tensor(draw.flip() ? DType::f32 : dtype, {n});
  const DType result = draw.flip() ? DType::f32 : dtype;
  op.c = op.acc ? draw.tensor(result, {m, n}) : draw.empty(result, {m, n});
  if (draw.integer(0, 3) == 0 && !op.trans_a) op.a.rank = 3, op.a.shape[2] = k, op.a.shape[1] = 1;  // [m, 1, k]
  return op;
}

// Weights of one dtype and rows of a length that suits it, or of many dtypes; a row of x, a few, and many.
Op row_linear(Draw& draw) {
  sometimes_misalign(draw);
  RowLinear op;
  const bool mixed = draw.integer(0, 3) == 0, dense = draw.integer(0, 3) == 0;
  const DType one = dense ? draw.pick({DType::f32, DType::bf16, DType::f16}) : draw.block_format();
  const int64_t k = mixed ? 256 * draw.integer(1, 2) : draw.row_length(one, dense ? 150 : 600), rows = draw.size(9);
  op.x = draw.tensor(draw.float_dtype(), {rows, k});
  op.alpha = draw.pick({1.0f, 1.0f, -0.5f, 2.75f}), op.acc = draw.flip();
  const bool biased = draw.flip(), scaled = draw.flip();
  for (int64_t count = draw.integer(1, 3); count > 0; --count) {
    const int64_t n = draw.size(40);
    const DType dtype = !mixed ? one : draw.integer(0, 3) ? draw.block_format() : draw.pick({DType::f32, DType::bf16, DType::f16});
    const DType result = draw.flip() ? DType::f32 : op.x.dtype;
    op.w.push_back(draw.tensor(dtype, {n, k}));
    op.y.push_back(op.acc ? draw.tensor(result, {rows, n}) : draw.empty(result, {rows, n}));
    if (biased) op.bias.push_back(draw.flip() ? draw.tensor(draw.flip() ? DType::f32 : op.x.dtype, {n}) : View());
    if (scaled) op.scale.push_back(draw.flip() ? draw.tensor(DType::f32, {n}) : View());
  }
  return op;
}

// The length of a row: any, or whole vectors of 16 bytes, and then up to eight times as long.
int64_t columns(Draw& draw, int64_t most) { return draw.integer(0, 2) ? draw.size(most) : 8 * draw.size(most); }

Op hadamard(Draw& draw) {
  sometimes_misalign(draw);
  Hadamard op;
  op.block = 1 << draw.integer(0, 11);
  op.x = draw.tensor(draw.float_dtype(), {draw.size(op.block > 256 ? 6 : 40), op.block * draw.integer(1, op.block > 256 ? 2 : 5)});
  if (draw.flip()) {
    op.signs = draw.empty(DType::f32, {op.x.columns()});
    for (int64_t i = 0; i < op.x.columns(); ++i) encode(op.signs, i, draw.flip() ? 1 : -1);
  }
  op.inverse = draw.flip();
  op.y = draw.flip() ? op.x : draw.empty_like(op.x);
  return op;
}

Op bias_grad(Draw& draw) {
  sometimes_misalign(draw);
  BiasGrad op;
  const int64_t n = columns(draw, 150);
  op.dy = draw.tensor(draw.float_dtype(), {draw.size(n > 150 ? 50 : 400), n});
  op.acc = draw.flip();
  op.db = op.acc ? draw.tensor(DType::f32, {op.dy.columns()}) : draw.empty(DType::f32, {op.dy.columns()});
  return op;
}

Op embedding(Draw& draw) {
  sometimes_misalign(draw);
  Embedding op;
  const bool stored = draw.integer(0, 2) == 0;
  const DType dtype = stored ? draw.stored_dtype(DType::f32) : draw.float_dtype();
  op.table = draw.tensor(dtype, {draw.size(90), is_block(dtype) ? draw.row_length(dtype, 1280) : columns(draw, 300)});
  op.tokens = draw.tokens(draw.size(80), op.table.shape[0]);
  op.y = draw.empty(stored ? draw.float_dtype() : dtype, {op.tokens.elements(), op.table.columns()});
  return op;
}

Op embedding_grad(Draw& draw) {
  sometimes_misalign(draw);
  EmbeddingGrad op;
  const bool many = draw.integer(0, 3) == 0;  // tokens, of which a share are all the same one
  op.dtable = draw.tensor(
      DType::f32, {many ? draw.integer(500, 1500) : draw.size(40), many ? draw.integer(1, 12) : columns(draw, 130)});
  op.tokens = draw.tokens(many ? draw.integer(600, 2500) : draw.size(120), op.dtable.shape[0]);
  const double padding = draw.pick({0.0, 0.1, 0.9});
  for (int64_t t = 1; t < op.tokens.elements(); ++t)
    if (draw.uniform(0, 1) < padding) encode(op.tokens, t, decode(op.tokens, 0));
  op.dy = draw.tensor(draw.float_dtype(), {op.tokens.elements(), op.dtable.columns()});
  return op;
}

// [rows, dim] or [tokens, heads, head_dim]. Mostly rows of whole 16-byte vectors: as many as a device gives to a few lanes,
// a warp or a block, and more than it keeps in registers.
View rows_of(Draw& draw, DType dtype) {
  switch (draw.integer(0, 8)) {
    case 0: return draw.tensor(dtype, {draw.size(40), draw.size(300)}, draw.pick({1.0, 0.01, 30.0}));
    case 1: return draw.tensor(dtype, {draw.size(20), draw.integer(1, 5), draw.size(70)});
    case 2: return draw.tensor(dtype, {draw.integer(1030, 1300), draw.size(6)});  // many blocks of partial sums
    default: break;
  }
  const int64_t most = draw.pick<int64_t>({8, 16, 128, 256, 512, 1024, 2048});
  const int64_t vectors = draw.integer(most / 2 + 1, std::min<int64_t>(most, 1100));
  const int64_t dim = vectors * 16 / static_cast<int64_t>(dtype_size(dtype));
  if (most <= 16) return draw.tensor(dtype, {draw.size(60), draw.integer(1, 5), dim});
  return draw.tensor(dtype, {draw.size(9), dim});
}

Op rmsnorm(Draw& draw) {
  sometimes_misalign(draw);
  RmsNorm op;
  op.x = rows_of(draw, draw.float_dtype());
  op.w = draw.tensor(op.x.dtype, {op.x.columns()});
  op.y = draw.empty_like(op.x);
  op.rstd = draw.empty(DType::f32, {op.x.rows()});
  op.eps = draw.pick({1e-6f, 1e-5f, 1e-2f});
  op.plus_one = draw.flip();
  return op;
}

Op add_rmsnorm(Draw& draw) {
  sometimes_misalign(draw);
  AddRmsNorm op;
  op.a = rows_of(draw, draw.float_dtype()), op.b = draw.like(op.a);
  op.w = draw.tensor(op.a.dtype, {op.a.columns()});
  op.sum = draw.empty_like(op.a), op.y = draw.empty_like(op.a);
  op.rstd = draw.empty(DType::f32, {op.a.rows()});
  op.eps = draw.pick({1e-6f, 1e-5f, 1e-2f});
  op.plus_one = draw.flip();
  return op;
}

Op rmsnorm_grad(Draw& draw) {
  sometimes_misalign(draw);
  RmsNormGrad op;
  op.x = rows_of(draw, draw.float_dtype());
  op.w = draw.tensor(op.x.dtype, {op.x.columns()});
  op.rstd = draw.empty(DType::f32, {op.x.rows()});
  for (int64_t r = 0; r < op.x.rows(); ++r) encode(op.rstd, r, draw.uniform(0.1, 3));
  op.dy = draw.like(op.x);
  op.plus_one = draw.flip(), op.acc_dw = draw.flip();
  if (draw.flip()) op.dresidual = draw.like(op.x);
  op.dx = op.dresidual && draw.flip() ? op.dresidual : draw.empty_like(op.x);
  if (draw.flip())
    op.dw = op.acc_dw ? draw.tensor(DType::f32, {op.x.columns()}) : draw.empty(DType::f32, {op.x.columns()});
  return op;
}

Op swiglu(Draw& draw) {
  sometimes_misalign(draw);
  SwiGlu op;
  op.gate = draw.tensor(draw.float_dtype(), {draw.size(40), draw.size(200)}, draw.pick({1.0, 40.0}));
  op.up = draw.like(op.gate), op.y = draw.empty_like(op.gate), op.gelu = draw.flip();
  return op;
}

Op swiglu_grad(Draw& draw) {
  sometimes_misalign(draw);
  SwiGluGrad op;
  op.gate = draw.tensor(draw.float_dtype(), {draw.size(40), draw.size(200)}, draw.pick({1.0, 40.0}));
  op.up = draw.like(op.gate), op.dy = draw.like(op.gate);
  op.dgate = draw.flip() ? op.gate : draw.empty_like(op.gate);
  op.dup = draw.pick({draw.empty_like(op.gate), op.up, op.dy});
  op.gelu = draw.flip();
  return op;
}

Op add(Draw& draw) {
  sometimes_misalign(draw);
  Add op;
  op.a = draw.tensor(draw.float_dtype(), {draw.size(60), draw.size(200)});
  op.b = draw.like(op.a);
  op.y = draw.pick({draw.empty_like(op.a), op.a, op.b});
  return op;
}

Op scale(Draw& draw) {
  sometimes_misalign(draw);
  Scale op;
  const auto dtype = [&] { return draw.pick({DType::f32, DType::bf16, DType::f16}); };
  op.x = draw.tensor(dtype(), {draw.size(60), draw.size(200)});
  op.alpha = draw.pick({1.0f, 0.0f, -3.5f, 0.7f});
  op.y = draw.flip() ? op.x : draw.resized(op.x, dtype());
  return op;
}

// Values on and beside ties, subnormals, infinities and NaN, at random places.
Op cast(Draw& draw) {
  sometimes_misalign(draw);
  Cast op;
  if (draw.integer(0, 2) == 0) {
    const DType dtype = draw.block_format();
    op.x = draw.tensor(dtype, {draw.size(30), draw.row_length(dtype, 1280)}, draw.pick({0.02, 1.0, 300.0}));
    op.y = draw.resized(op.x, draw.pick({DType::f32, DType::bf16, DType::f16}));
    return op;
  }
  op.x = draw.tensor(draw.pick({DType::f32, DType::f32, DType::bf16, DType::f16}), {draw.size(30), draw.size(90)});
  for (double special :
       {0.0, -0.0, 1 + 0x1p-8, 1 + 0x3p-8, 1 + 0x1p-11, 1 + 0x3p-11, 0x1p-24, 0x1p-25, 0x3p-25, -0x1.8p-130, 0x1p-149,
        65519.9, 65520.0, 3.39e38, -3.4028e38, double{INFINITY}, -double{INFINITY}, std::nan("")})
    if (draw.flip()) encode(op.x, draw.integer(0, op.x.elements() - 1), round_to(op.x.dtype, special));
  op.y = draw.resized(op.x, draw.pick({DType::f32, DType::bf16, DType::f16}));
  return op;
}

Op copy(Draw& draw) {
  sometimes_misalign(draw);
  Copy op;
  const DType dtype = draw.pick({DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8});
  op.x = draw.tensor(dtype, {draw.size(30), draw.size(90)}, 20, 100);
  op.y = draw.empty_like(op.x);
  return op;
}

Op fill(Draw& draw) {
  sometimes_misalign(draw);
  Fill op;
  op.y = draw.empty(draw.pick({DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8}),
                    {draw.size(30), draw.size(90)});
  op.value = draw.pick({0.0f, 1.0f, 7.0f, 100.0f});
  return op;
}

Op dropout(Draw& draw) {
  sometimes_misalign(draw);
  Dropout op;
  op.x = draw.tensor(draw.float_dtype(), {draw.size(60), draw.size(200)});
  op.y = draw.flip() ? op.x : draw.empty_like(op.x);
  op.rng = draw.values(DType::i64, {static_cast<double>(draw.integer(0, int64_t{1} << 40)),
                                    static_cast<double>(draw.integer(0, int64_t{1} << 33))});
  op.p = draw.pick({0.0f, 0.1f, 0.5f, 0.9f});
  op.stream = static_cast<uint32_t>(draw.integer(0, 1000));
  return op;
}

Op embedding_noise(Draw& draw) {
  sometimes_misalign(draw);
  EmbeddingNoise op;
  const Documents documents = draw.documents(5, 30);
  op.x = draw.tensor(draw.float_dtype(), {documents.queries, draw.size(200)});
  op.cu = documents.cu_q, op.y = draw.flip() ? op.x : draw.empty_like(op.x);
  op.rng = draw.values(DType::i64, {static_cast<double>(draw.integer(0, int64_t{1} << 40)),
                                    static_cast<double>(draw.integer(0, int64_t{1} << 33))});
  op.strength = draw.pick({0.0f, 5.0f, 15.0f});
  op.stream = static_cast<uint32_t>(draw.integer(0, 1000));
  return op;
}

Op dora_scale(Draw& draw) {
  sometimes_misalign(draw);
  DoraScale op;
  const int64_t out = draw.size(300), rank = draw.size(40);
  op.b = draw.tensor(draw.float_dtype(), {out, rank}), op.cross = draw.tensor(DType::f32, {rank, out});
  // The square of a length: above what the drawn sums bring.
  op.squares = draw.tensor(DType::f32, {out}, 5, 20.0 * static_cast<double>(rank) + 40);
  op.magnitude = draw.tensor(DType::f32, {out});
  op.inverse = draw.empty_like(op.magnitude), op.scale = draw.empty_like(op.magnitude);
  return op;
}

Op rope(Draw& draw) {
  sometimes_misalign(draw);
  Rope op;
  const int64_t head_dim = draw.flip() ? draw.pick<int64_t>({16, 64, 96, 128, 256, 640}) : 2 * draw.size(64);
  const int64_t half = draw.flip() ? head_dim / 2 : draw.flip() ? head_dim / 4 : draw.integer(1, head_dim / 2);
  op.x = draw.tensor(draw.float_dtype(), {draw.size(40), draw.integer(1, 6), head_dim});
  if (draw.flip()) {
    op.x2 = draw.tensor(op.x.dtype, {op.x.shape[0], draw.integer(1, 3), head_dim});
    op.y2 = draw.flip() ? op.x2 : draw.empty_like(op.x2);
  }
  op.positions = draw.tokens(op.x.shape[0], draw.pick<int64_t>({8, 4096, 131072}));
  op.inv_freq = draw.empty(DType::f32, {half});
  for (int64_t i = 0; i < half; ++i)
    encode(op.inv_freq, i, std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half)));
  op.y = draw.flip() ? op.x : draw.empty_like(op.x);
  op.scale = draw.pick({1.0f, 1.2079441f});
  op.inverse = draw.flip();
  return op;
}

// Half of the draws suit tensor cores: bf16, their head_dims, documents whose ends lie about those of tiles.
Attention forward_attention(Draw& draw) {
  const bool tiles = draw.flip();
  if (!tiles) sometimes_misalign(draw);
  const Documents documents = tiles ? draw.documents(2, {1, 63, 64, 65, 127, 129, 200}) : draw.documents(5, 150);
  const int64_t head_dim = tiles         ? draw.pick<int64_t>({64, 96, 128, 256})
                           : draw.flip() ? draw.pick<int64_t>({16, 64, 128})
                                         : draw.size(130);
  const int64_t kv_heads = draw.integer(1, !tiles ? 3 : head_dim > 64 ? 1 : 2);
  const int64_t group = draw.integer(1, !tiles ? 4 : head_dim > 128 ? 2 : 3);
  Attention op = attention_of(draw, documents, tiles ? DType::bf16 : draw.float_dtype(), kv_heads, group, head_dim);
  if (draw.integer(0, 2) == 0) op.window = static_cast<int>(draw.size(100));
  return op;
}

Op attention(Draw& draw) { return forward_attention(draw); }
Op attention_grad(Draw& draw) {
  const Attention forward = forward_attention(draw);
  return attention_grad_of(draw, forward);
}

Op lm_head_loss(Draw& draw) {
  LmHeadLoss op;
  const DType dtype = draw.float_dtype();
  const bool stored = draw.integer(0, 2) == 0;  // a head that is only read
  const DType weights = stored ? draw.stored_dtype(dtype) : dtype;
  const int64_t tokens = draw.size(40), vocab = draw.size(70), hidden = is_block(weights) ? draw.row_length(weights, 256) : draw.size(40);
  const double trained = draw.pick({0.0, 0.3, 0.8, 1.0});
  op.h = draw.tensor(dtype, {tokens, hidden});
  op.w = draw.tensor(weights, {vocab, hidden}, hidden > 64 ? 0.2 : 0.5);
  op.targets = draw.tokens(tokens, vocab);
  for (int64_t t = 0; t < tokens; ++t)
    if (draw.uniform(0, 1) >= trained) encode(op.targets, t, -1);
  op.loss_scale = draw.values(DType::f32, {draw.uniform(0.01, 2)});
  op.nll = draw.empty(DType::f32, {tokens}), op.loss = draw.empty(DType::f32, {1});
  if (draw.integer(0, 3)) {
    op.dh = draw.empty_like(op.h);
    if (draw.flip() && !stored) op.dw = draw.tensor(DType::f32, {vocab, hidden});
  }
  op.chunk = static_cast<int>(draw.pick<int64_t>({1, 7, 16, 256}));
  op.workspace = draw.empty(DType::u8, {lm_head_workspace(tokens, hidden, vocab, op.chunk, op.h.dtype)});
  return op;
}

// Records one after another, some masked, now and then one of several frames; pieces of them with gaps between.
Op decode_packets(Draw& draw) {
  DecodePackets op;
  std::vector<double> bytes, pieces;
  const auto put = [&](int64_t value, int count) {
    for (int shift = 8 * (count - 1); shift >= 0; shift -= 8) bytes.push_back(static_cast<double>(value >> shift & 255));
  };
  int64_t slots = draw.integer(0, 3);
  for (int64_t record = 0, records = draw.integer(0, 6); record < records; ++record) {
    const int64_t all = draw.integer(0, 19) ? draw.size(60) : draw.pick<int64_t>({16383, 16384, 16390});
    const bool masked = draw.flip();
    const int64_t begin = draw.integer(0, all - 1), count = draw.flip() ? all - begin : draw.integer(1, all - begin);
    for (int64_t value : {slots, count, static_cast<int64_t>(bytes.size()), begin, all, int64_t{masked}})
      pieces.push_back(static_cast<double>(value));
    for (int64_t first = 0; first <= all; first += 16383) {
      const int64_t tokens = std::min<int64_t>(16383, all - first);
      put(0xAA0100, 3), put(0x01, 1), put(4 * tokens, 2);
      for (int64_t i = 0; i < tokens; ++i) put(draw.integer(0, INT32_MAX), 4);
      put(draw.integer(0, 65535), 2);
    }
    if (masked) {
      put(0xAA0100, 3), put(0x08, 1), put((all + 7) / 8, 2);
      for (int64_t i = 0; i < (all + 7) / 8; ++i) put(draw.integer(0, 255), 1);
      put(draw.integer(0, 65535), 2);
    }
    slots += count + draw.integer(0, 2);
  }
  slots = std::max<int64_t>(slots, 1);
  for (int64_t unused = draw.integer(0, 2); unused > 0; --unused)
    for (int64_t value : {slots, int64_t{0}, int64_t{0}, int64_t{0}, int64_t{0}, int64_t{0}}) pieces.push_back(static_cast<double>(value));
  op.frames = draw.values(DType::u8, bytes);
  op.pieces = draw.values(DType::i64, pieces);
  op.pieces.rank = 2, op.pieces.shape[0] = static_cast<int64_t>(pieces.size()) / 6, op.pieces.shape[1] = 6;
  op.tokens = draw.empty(DType::i32, {slots}), op.targets = draw.empty_like(op.tokens), op.positions = draw.empty_like(op.tokens);
  op.pad = draw.pick({0, 151643});
  return op;
}

// One tensor, a few, or more than one launch of a GPU takes.
int64_t tensors(Draw& draw) { return draw.integer(0, 9) ? draw.integer(1, 4) : draw.pick<int64_t>({0, 70, 130}); }

Op sum_squares(Draw& draw) {
  SumSquares op;
  const int64_t count = tensors(draw), most = count > 4 ? 3 : 300;
  for (int64_t i = 0; i < count; ++i) op.x.push_back(draw.tensor(DType::f32, {draw.size(80), draw.size(most)}));
  if (draw.integer(0, 9) == 0) op.x.push_back(draw.tensor(DType::f32, {33000}));  // several blocks of partial sums
  op.out = draw.empty(DType::f32, {static_cast<int64_t>(op.x.size())});
  return op;
}

Op clip_scale(Draw& draw) {
  ClipScale op;
  op.partials = draw.empty(DType::f32, {draw.size(200)});
  for (int64_t i = 0; i < op.partials.elements(); ++i) encode(op.partials, i, draw.uniform(0, draw.pick({1e-3, 2.0})));
  if (draw.integer(0, 3) == 0)
    encode(op.partials, draw.integer(0, op.partials.elements() - 1), draw.pick({double{INFINITY}, std::nan("")}));
  op.out = draw.empty(DType::f32, {3});
  op.max_norm = draw.pick({0.0f, 1.0f, 1.0f, 1e6f});
  return op;
}

Op adamw(Draw& draw) {
  AdamW op;
  const int64_t count = tensors(draw), most = count > 4 ? 3 : 200;
  const bool models = draw.flip();
  for (int64_t k = 0; k < count; ++k) {
    const View w = draw.tensor(DType::f32, {draw.size(60), draw.size(most)}), v = draw.like(w);
    for (int64_t i = 0; i < v.elements(); ++i) encode(v, i, std::fabs(decode(v, i)));
    op.w.push_back(w), op.grad.push_back(draw.like(w)), op.m.push_back(draw.like(w)), op.v.push_back(v);
    if (models) op.model.push_back(draw.integer(0, 3) ? draw.resized(w, DType::bf16) : View());
  }
  op.hyper =
      draw.values(DType::f32, {draw.pick({1e-3, 0.02}), static_cast<double>(draw.pick<int64_t>({1, 2, 10, 5000}))});
  op.clip = draw.values(DType::f32, {2.0, draw.pick({1.0, 0.25}), draw.integer(0, 4) ? 0.0 : 1.0});
  op.decay = draw.pick({0.0f, 0.1f});
  op.clear = draw.flip();
  return op;
}

}  // namespace

Attention attention_of(Draw& draw, const Documents& documents, DType dtype, int64_t kv_heads, int64_t group,
                       int64_t head_dim) {
  Attention op;
  op.cu_q = documents.cu_q, op.cu_k = documents.cu_k;
  op.q = draw.tensor(dtype, {documents.queries, kv_heads * group, head_dim});
  op.k = draw.tensor(dtype, {documents.keys, kv_heads, head_dim}, draw.pick({1.0, 1.0, 10.0}));
  op.v = draw.tensor(dtype, {documents.keys, kv_heads, head_dim});
  op.o = draw.empty_like(op.q);
  op.lse = draw.empty(DType::f32, {op.q.shape[1], op.q.shape[0]});
  op.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)));
  return op;
}

AttentionGrad attention_grad_of(Draw& draw, const Attention& forward) {
  Sheet<double> sheet;
  run_reference(forward, sheet);
  for (const View& view : {forward.o, forward.lse})
    for (int64_t i = 0; i < view.elements(); ++i) encode(view, i, sheet.results[view.data].array[i]);
  AttentionGrad op;
  op.q = forward.q, op.k = forward.k, op.v = forward.v, op.cu_q = forward.cu_q, op.cu_k = forward.cu_k;
  op.o = forward.o, op.lse = forward.lse, op.scale = forward.scale, op.window = forward.window;
  op.dout = draw.like(forward.o), op.delta = draw.empty_like(forward.lse);
  op.dq = draw.empty_like(forward.q), op.dk = draw.empty_like(forward.k), op.dv = draw.empty_like(forward.v);
  return op;
}

const std::vector<Generator>& generators() {
  static const std::vector<Generator> table = {
      {"matmul", matmul},
      {"hadamard", hadamard},
      {"row_linear", row_linear},
      {"bias_grad", bias_grad},
      {"embedding", embedding},
      {"embedding_grad", embedding_grad},
      {"rmsnorm", rmsnorm},
      {"add_rmsnorm", add_rmsnorm},
      {"rmsnorm_grad", rmsnorm_grad},
      {"swiglu", swiglu},
      {"swiglu_grad", swiglu_grad},
      {"add", add},
      {"scale", scale},
      {"cast", cast},
      {"copy", copy},
      {"fill", fill},
      {"dropout", dropout},
      {"rope", rope},
      {"attention", attention},
      {"attention_grad", attention_grad},
      {"kv_store", kv_store},
      {"copy_pages", copy_pages},
      {"paged_attention", paged_attention},
      {"lm_head_loss", lm_head_loss},
      {"decode_packets", decode_packets},
      {"sum_squares", sum_squares},
      {"clip_scale", clip_scale},
      {"adamw", adamw},
      {"embedding_noise", embedding_noise},
      {"dora_scale", dora_scale},
      {"scale_columns", scale_columns},
      {"scale_columns_grad", scale_columns_grad},
      {"pulse_grad", pulse_grad},
      {"inertia", inertia},
      {"count_levels", count_levels},
      {"pack_signs", pack_signs},
      {"clip_to_grid", clip_to_grid},
      {"use_weights", [](Draw&) -> Op { return UseWeights{}; }},  // with a stream: tests/unit/stream_test.cpp
  };
  return table;
}

}  // namespace qeng::conformance
