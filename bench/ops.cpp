// Times each operation at the shapes of a training step, and of decoding, on any device:  qeng_bench_ops --device cuda
// [--json FILE] bench/README.md says what the columns mean; --verify compares with the CPU. A new operation is one line
// in cases().
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "kernels/backends.h"
#include "kernels/blocks.h"
#include "kernels/error.h"
#include "kernels/math/adamw_codes.h"
#include "kernels/math/bf16.h"
#include "kernels/math/kv_codes.h"
#include "kernels/view_text.h"

namespace qeng {

namespace {

constexpr size_t kCycle =
    size_t{512} << 20;  // bytes that the operands of one operation are spread over: more than 4 times any L2
constexpr int kMostSets = 32;
constexpr int kTries = 5;
constexpr int64_t kBlock = 1 << 20;     // random numbers made on the host, repeated to fill an operand
constexpr int64_t kTableRows = 151936;  // Qwen2.5's vocabulary, as its smaller models store it
constexpr int kRank = 16;               // of a LoRA adapter

struct Model {
  std::string name;
  int64_t hidden, intermediate, heads, kv_heads, head_dim, vocab;
};
const std::vector<Model> kModels = {
    {"1.5B", 1536, 8960, 12, 2, 128, kTableRows},
    {"7B", 3584, 18944, 28, 4, 128, 152064},
    {"0.5B", 896, 4864, 14, 2, 64, kTableRows},
    {"tiny", 64, 96, 4, 2, 16, 320},
};

// Makes operands in the backend's memory, and frees them together.
class Operands {
 public:
  explicit Operands(Backend& backend) : backend_(backend) {}
  ~Operands() {
    for (auto [data, bytes] : blocks_) backend_.release(data, bytes);
  }
  Operands(const Operands&) = delete;
  size_t bytes() const { return bytes_; }

  View empty(DType dtype, std::initializer_list<int64_t> shape) {
    View view(nullptr, dtype, shape);
    const size_t bytes = std::max<size_t>(view.bytes(), 64);
    view.data = backend_.allocate(bytes);
    blocks_.push_back({view.data, bytes});
    bytes_ += bytes;
    return view;
  }
  View constant(DType dtype, std::initializer_list<int64_t> shape, float value) {
    View view = empty(dtype, shape);
    backend_.run(Fill{view, value});
    return view;
  }
  // Normal numbers; on zeros a GPU runs faster than on data.
  View random(DType dtype, std::initializer_list<int64_t> shape, float deviation = 1) {
    View view = empty(dtype, shape);
    const Numbers& numbers = normal(deviation);
    const int64_t start = ++drawn_ * 7919 % kBlock, count = std::min(kBlock, view.elements());
    const size_t size = dtype_size(dtype);
    backend_.upload(view.data,
                    dtype == DType::f32 ? static_cast<const void*>(&numbers.full[static_cast<size_t>(start)])
                                        : &numbers.half[static_cast<size_t>(start)],
                    static_cast<size_t>(count) * size);
    for (int64_t done = count; done < view.elements(); done *= 2) {  // doubled by copies
      const int64_t more = std::min(done, view.elements() - done);
      backend_.run(Copy{View(view.data, dtype, {more}),
                        View(static_cast<char*>(view.data) + static_cast<size_t>(done) * size, dtype, {more})});
    }
    return view;
  }
  // Weights of a block format: a few rows, again and again.
  View packed(DType dtype, int64_t rows, int64_t columns) {
    const View view = empty(dtype, {rows, columns});
    const int64_t few = std::min<int64_t>(rows, 16);
    const size_t row_bytes = dtype_bytes(dtype, columns);
    std::vector<uint16_t> blocks((static_cast<size_t>(few) * row_bytes + 1) / 2);
    for (int64_t r = 0; r < few; ++r)
      encode_row(dtype, &normal(0.02f).full[static_cast<size_t>(r * 7919)], nullptr, columns,
                 reinterpret_cast<char*>(blocks.data()) + static_cast<size_t>(r) * row_bytes);
    for (int64_t r = 0; r < rows; r += few)
      backend_.upload(static_cast<char*>(view.data) + static_cast<size_t>(r) * row_bytes, blocks.data(),
                      static_cast<size_t>(std::min(few, rows - r)) * row_bytes);
    return view;
  }
  View list(const std::vector<int32_t>& values) {
    View view = empty(DType::i32, {static_cast<int64_t>(values.size())});
    backend_.upload(view.data, values.data(), view.bytes());
    return view;
  }
  // Like text: few tokens are frequent, many rare. prompt > 0: after so many that are -1 come as many that are not.
  View tokens(int64_t count, int64_t vocab, int64_t prompt = 0) {
    std::mt19937 engine(static_cast<unsigned>(++drawn_));
    std::uniform_real_distribution<double> uniform(0, 1);
    std::vector<int32_t> values(static_cast<size_t>(count));
    for (int32_t& v : values) v = static_cast<int32_t>(std::pow(static_cast<double>(vocab), uniform(engine))) - 1;
    for (int64_t t = 0; prompt > 0 && t < count; ++t)
      if (t / prompt % 2 == 0) values[static_cast<size_t>(t)] = -1;
    return list(values);
  }
  View numbers(DType dtype, const std::vector<float>& values) {
    View view = empty(dtype, {static_cast<int64_t>(values.size())});
    backend_.upload(view.data, values.data(), view.bytes());
    return view;
  }
  Backend& backend() { return backend_; }

 private:
  // Two blocks' worth, made once; each tensor starts somewhere in the first.
  struct Numbers {
    std::vector<float> full;
    std::vector<bf16> half;
  };
  static const Numbers& normal(float deviation) {
    static std::map<float, Numbers> made;
    Numbers& numbers = made[deviation];
    if (numbers.full.empty()) {
      std::mt19937 engine(1);
      std::normal_distribution<float> draw(0, deviation);
      for (int64_t i = 0; i < 2 * kBlock; ++i) {
        numbers.full.push_back(draw(engine));
        numbers.half.push_back(to_bf16(numbers.full.back()));
      }
    }
    return numbers;
  }

  Backend& backend_;
  std::vector<std::pair<void*, size_t>> blocks_;
  size_t bytes_ = 0;
  int64_t drawn_ = 0;
};

struct Case {
  std::string name;
  std::function<Op(Operands&)> make;
  std::string documents;  // of attention: "one" or "packed"
};

// Boundaries of one document, or of some 16 of mixed lengths.
std::vector<int32_t> boundaries(int64_t tokens, bool packed) {
  std::vector<int32_t> ends = {0};
  std::mt19937 engine(1);
  const int longest = static_cast<int>(std::max<int64_t>(2, tokens / 8));
  while (packed && ends.back() < tokens - longest)
    ends.push_back(ends.back() + 1 + static_cast<int>(engine() % static_cast<unsigned>(longest)));
  ends.push_back(static_cast<int32_t>(tokens));
  return ends;
}

constexpr DType kHalf = DType::bf16, kFull = DType::f32;

Op attention(Operands& o, const Model& m, int64_t t, bool packed, bool backward) {
  const View cu = o.list(boundaries(t, packed));
  const View q = o.random(kHalf, {t, m.heads, m.head_dim}), k = o.random(kHalf, {t, m.kv_heads, m.head_dim});
  const View v = o.random(kHalf, {t, m.kv_heads, m.head_dim});
  const float scale = 1 / std::sqrt(static_cast<float>(m.head_dim));
  Attention forward{q, k, v, cu, cu, o.empty(kHalf, {t, m.heads, m.head_dim}), o.empty(kFull, {m.heads, t}), scale, 0};
  if (!backward) return forward;
  o.backend().run(forward);  // the gradient reads o and lse
  AttentionGrad op{
      q, k, v, cu, cu, forward.o, forward.lse, o.random(kHalf, {t, m.heads, m.head_dim}), o.empty(kFull, {m.heads, t})};
  op.dq = o.empty(kHalf, {t, m.heads, m.head_dim});
  op.dk = o.empty(kHalf, {t, m.kv_heads, m.head_dim}), op.dv = o.empty(kHalf, {t, m.kv_heads, m.head_dim});
  op.scale = scale;
  return op;
}

// c [m, n] of a product over k; which: the forward pass y = x w^T, the input's gradient dy w, the weight's dy^T x in
// f32.
Op product(Operands& o, int64_t m, int64_t n, int64_t k, char which) {
  Matmul op;
  op.a = which == 'w' ? o.random(kHalf, {k, m}) : o.random(kHalf, {m, k});
  op.b = which == 'y' ? o.random(kHalf, {n, k}, 0.02f) : o.random(kHalf, {k, n}, 0.02f);
  op.trans_a = which == 'w', op.trans_b = which == 'y', op.acc = which == 'w';
  op.c = which == 'w' ? o.constant(kFull, {m, n}, 0) : o.empty(kHalf, {m, n});
  return op;
}

// The same with the weights in blocks, of a format whose blocks the rows are whole numbers of: frozen, so y and dx
// alone.
Op packed_product(Operands& o, int64_t m, int64_t n, int64_t k, bool forward) {
  const int64_t columns = forward ? k : n;
  Matmul op;
  op.a = o.random(kHalf, {m, k}), op.c = o.empty(kHalf, {m, n}), op.trans_b = forward;
  op.b = o.packed(columns % 256 ? DType::q4_0 : DType::q4_k, forward ? n : k, columns);
  return op;
}

// Products over `depths` that are one: with an adapter's or of several layers; the forward pass, or the input's gradient.
Op product_sum(Operands& o, int64_t m, int64_t n, std::initializer_list<int64_t> depths, bool forward) {
  MatmulSum::Sum sum;
  for (const int64_t k : depths) {
    sum.a.push_back(o.random(kHalf, {m, k}));
    sum.b.push_back(forward ? o.random(kHalf, {n, k}, 0.02f) : o.random(kHalf, {k, n}, 0.02f));
  }
  sum.c = o.empty(kHalf, {m, n});
  return MatmulSum{.sums = {sum}, .trans_b = forward};
}
// Layers of `widths` that read one x [t, k]: the forward pass, or the gradients of the weights.
Op products_of_one(Operands& o, int64_t t, int64_t k, std::initializer_list<int64_t> widths, bool forward) {
  MatmulSum op{.sums = {}, .trans_a = !forward, .trans_b = forward};
  const View x = o.random(kHalf, {t, k});
  for (const int64_t n : widths) {
    if (forward)
      op.sums.push_back({.a = {x}, .b = {o.random(kHalf, {n, k}, 0.02f)}, .bias = {}, .c = o.empty(kHalf, {t, n})});
    else
      op.sums.push_back(
          {.a = {o.random(kHalf, {t, n})}, .b = {x}, .bias = {}, .c = o.constant(kFull, {n, k}, 0), .acc = true});
  }
  return op;
}

// Of the adapters of so many layers that read one x [t, k].
Op lora_down(Operands& o, int64_t t, int64_t k, int layers, bool backward) {
  LoraDown op{.x = o.random(kHalf, {t, k}), .a = {}, .u = {}, .alpha = {}};
  LoraDownGrad back{.x = op.x, .du = {}, .da = {}};
  for (int i = 0; i < layers; ++i) {
    if (backward) {
      back.du.push_back(o.random(kHalf, {t, kRank})), back.da.push_back(o.empty(kFull, {kRank, k}));
    } else {
      op.a.push_back(o.random(kHalf, {kRank, k}, 0.02f)), op.u.push_back(o.empty(kHalf, {t, kRank}));
      op.alpha.push_back(2);
    }
  }
  return backward ? Op(back) : Op(op);
}
Op lora_up_grad(Operands& o, int64_t t, int64_t n) {
  return LoraUpGrad{.dy = o.random(kHalf, {t, n}),
                    .b = o.random(kHalf, {n, kRank}, 0.02f),
                    .u = o.random(kHalf, {t, kRank}),
                    .du = o.empty(kHalf, {t, kRank}),
                    .db = o.empty(kFull, {n, kRank})};
}

// To E4M3, as a matrix lies and turned; and products of such numbers, for y or for the weight's gradient.
Op fp8_round(Operands& o, int64_t rows, int64_t columns) {
  return Fp8Round{.x = o.random(kHalf, {rows, columns}),
                  .y = o.empty(DType::u8, {rows, columns}),
                  .yt = o.empty(DType::u8, {columns, rows}),
                  .scale = o.empty(kFull, {1})};
}
Op fp8_product(Operands& o, int64_t m, int64_t n, int64_t k, bool gradient) {
  const auto rounded = [&](int64_t rows) {
    Fp8Round op{.x = o.random(kHalf, {rows, k}), .y = o.empty(DType::u8, {rows, k}), .scale = o.empty(kFull, {1})};
    o.backend().run(op);
    return op;
  };
  const Fp8Round a = rounded(m), b = rounded(n);
  return Fp8Matmul{.a = a.y,
                   .b = b.y,
                   .scale_a = a.scale,
                   .scale_b = b.scale,
                   .bias = {},
                   .c = o.empty(gradient ? kFull : kHalf, {m, n})};
}

Op lm_head(Operands& o, const Model& m, int64_t t, bool full, bool prompts) {
  constexpr int64_t kPrompt = 256;
  LmHeadLoss op;
  op.chunk = o.backend().head_chunk(t, m.vocab);
  op.h = o.random(kHalf, {t, m.hidden}), op.w = o.random(kHalf, {m.vocab, m.hidden}, 0.02f),
  op.targets = o.tokens(t, m.vocab, prompts ? kPrompt : 0);
  if (prompts) op.trained = t / (2 * kPrompt) * kPrompt + std::max<int64_t>(0, t % (2 * kPrompt) - kPrompt);
  op.loss_scale = o.constant(kFull, {1}, 1.0f / static_cast<float>(t));
  op.nll = o.empty(kFull, {t}), op.loss = o.empty(kFull, {1});
  op.dh = o.empty(kHalf, {t, m.hidden});
  if (full) op.dw = o.constant(kFull, {m.vocab, m.hidden}, 0);
  op.workspace = o.empty(DType::u8, {lm_head_workspace(t, m.hidden, m.vocab, op.chunk, kHalf)});
  return op;
}

// codes: of the moments, with a gradient in bf16.
Op adamw(Operands& o, int64_t count, bool codes) {
  AdamW op;
  op.w = {o.random(kFull, {count})}, op.grad = {o.random(codes ? kHalf : kFull, {count})};
  op.model = {o.empty(kHalf, {count})};
  if (codes) {
    op.m = {o.constant(DType::u8, {count}, 150)}, op.v = {o.constant(DType::u8, {count}, 90)};
    op.scales = {o.constant(kFull, {2, (count + kMomentBlock - 1) / kMomentBlock}, 0.1f)};
  } else {
    op.m = {o.random(kFull, {count}, 0.1f)}, op.v = {o.constant(kFull, {count}, 0.01f)};
  }
  op.hyper = o.numbers(kFull, {1e-5f, 10}), op.clip = o.numbers(kFull, {1, 1, 0});
  return op;
}

Op norm(Operands& o, int64_t t, int64_t dim, bool backward, bool dw) {
  const View x = o.random(kHalf, {t, dim}), w = o.random(kHalf, {dim});
  if (!backward) return RmsNorm{x, w, o.empty(kHalf, {t, dim}), o.empty(kFull, {t})};
  RmsNormGrad op{x, w, o.constant(kFull, {t}, 1), o.random(kHalf, {t, dim}), {}, o.empty(kHalf, {t, dim})};
  if (dw) op.dw = o.empty(kFull, {dim});
  return op;
}

Op layer_norm(Operands& o, int64_t t, int64_t dim, bool backward) {
  const View x = o.random(kHalf, {t, dim}), w = o.random(kHalf, {dim}), statistics = o.constant(kFull, {t}, 1);
  if (!backward) return LayerNorm{x, w, o.random(kHalf, {dim}), o.empty(kHalf, {t, dim}), statistics, statistics};
  return LayerNormGrad{x,
                       w,
                       statistics,
                       statistics,
                       o.random(kHalf, {t, dim}),
                       {},
                       o.empty(kHalf, {t, dim}),
                       o.empty(kFull, {dim}),
                       o.empty(kFull, {dim})};
}

// Four taps over one document, as Mamba has them.
Op causal_conv(Operands& o, int64_t t, int64_t channels, bool backward) {
  const View x = o.random(kHalf, {t, channels}), w = o.random(kHalf, {channels, 4}), y = o.empty(kHalf, {t, channels});
  const View cu = o.list({0, static_cast<int32_t>(t)});
  if (!backward) return CausalConv{.x = x, .w = w, .bias = o.random(kHalf, {channels}), .cu = cu, .y = y};
  return CausalConvGrad{
      x, w, cu, o.random(kHalf, {t, channels}), y, o.empty(kFull, {channels, 4}), o.empty(kFull, {channels})};
}

// 16 key heads of 128 over one document, as Qwen3.5 has them.
Op gated_delta(Operands& o, int64_t t, int64_t value_heads, bool backward) {
  const DeltaShape shape{16, value_heads, 128, 128};
  const View x = o.random(kHalf, {t, shape.columns()}), beta = o.constant(kFull, {t, value_heads}, 0.5f);
  const View g = o.constant(kFull, {t, value_heads}, -0.1f), cu = o.list({0, static_cast<int32_t>(t)});
  const int64_t wide = value_heads * shape.value_dim;
  if (!backward)
    return GatedDelta{.x = x, .g = g, .beta = beta, .cu = cu, .o = o.empty(kHalf, {t, wide}), .shape = shape};
  return GatedDeltaGrad{.x = x,
                        .g = g,
                        .beta = beta,
                        .cu = cu,
                        .dout = o.random(kHalf, {t, wide}),
                        .dx = o.empty(kHalf, {t, shape.columns()}),
                        .dg = o.empty(kFull, {t, value_heads}),
                        .dbeta = o.empty(kFull, {t, value_heads}),
                        .shape = shape};
}

Op add_norm(Operands& o, int64_t t, int64_t dim) {
  const View a = o.random(kHalf, {t, dim}), b = o.random(kHalf, {t, dim}), w = o.random(kHalf, {dim});
  return AddRmsNorm{a, b, w, o.empty(kHalf, {t, dim}), o.empty(kHalf, {t, dim}), o.empty(kFull, {t})};
}

Op rope(Operands& o, int64_t t, int64_t heads, int64_t kv_heads, int64_t dim) {
  std::vector<int32_t> positions(static_cast<size_t>(t));
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(i);
  std::vector<float> frequencies(static_cast<size_t>(dim / 2));
  for (size_t i = 0; i < frequencies.size(); ++i)
    frequencies[i] = std::pow(1e6f, -2.0f * static_cast<float>(i) / static_cast<float>(dim));
  Rope op{o.random(kHalf, {t, heads, dim}), o.list(positions), o.numbers(kFull, frequencies),
          o.empty(kHalf, {t, heads, dim})};
  op.x2 = o.random(kHalf, {t, kv_heads, dim}), op.y2 = o.empty(kHalf, {t, kv_heads, dim});
  return op;
}

// A layer of experts, of which each token goes to 8.
constexpr int64_t kExperts = 32, kChosen = 8;
int64_t width_of(const Model& m) { return std::max<int64_t>(8, m.intermediate / 16 / 8 * 8); }

// Where the rows of each expert begin, of rows that they share equally.
View shared(Operands& o, int64_t rows) {
  std::vector<int32_t> first;
  for (int64_t e = 0; e <= kExperts; ++e) first.push_back(static_cast<int32_t>(rows * e / kExperts));
  return o.list(first);
}

View places(Operands& o, int64_t tokens) {
  std::vector<int32_t> list(static_cast<size_t>(tokens * kChosen));
  for (size_t i = 0; i < list.size(); ++i) list[i] = static_cast<int32_t>(i);
  std::shuffle(list.begin(), list.end(), std::mt19937(1));
  View view = o.list(list);
  view.rank = 2, view.shape[0] = tokens, view.shape[1] = kChosen;
  return view;
}

// The up projection of some rows, or its gradient by them.
Op experts_up(Operands& o, const Model& m, DType stored, int64_t rows, bool back, bool apart) {
  GroupedMatmul op;
  const int64_t n = width_of(m);
  op.tall = back, op.apart = apart, op.first = shared(o, rows);
  op.x = o.random(kHalf, {rows, back ? n : m.hidden}), op.y = o.empty(kHalf, {rows, back ? m.hidden : n});
  op.w =
      is_block(stored) ? o.packed(stored, kExperts * n, m.hidden) : o.random(stored, {kExperts * n, m.hidden}, 0.02f);
  op.w.rank = 3, op.w.shape[0] = kExperts, op.w.shape[1] = n, op.w.shape[2] = m.hidden;
  return op;
}

// Decoding: gate and up of `rows` sequences.
Op linear(Operands& o, DType stored, int64_t rows, int64_t n, int64_t k) {
  RowLinear op;
  op.x = o.random(kHalf, {rows, k});
  for (int i = 0; i < 2; ++i) {
    op.w.push_back(is_block(stored) ? o.packed(stored, n, k) : o.random(stored, {n, k}, 0.02f));
    op.y.push_back(o.empty(kHalf, {rows, n}));
  }
  return op;
}

// Pools of codes of so many bits for keys and values.
void code_pools(Operands& o, const Model& m, int bits, int64_t slots, PagedAttention& op) {
  std::vector<float> levels;
  for (int i = 0; i < 1 << bits; ++i)
    levels.push_back(static_cast<float>(2 * i + 1 - (1 << bits)) * 2.7f / static_cast<float>(1 << bits));
  op.k_levels = op.v_levels = o.numbers(kFull, levels);
  std::vector<int32_t> places(static_cast<size_t>(slots));
  std::iota(places.begin(), places.end(), 0);
  KvStore store;
  store.k = o.random(kHalf, {slots, m.kv_heads, m.head_dim}),
  store.v = o.random(kHalf, {slots, m.kv_heads, m.head_dim});
  store.slots = o.list(places), store.k_levels = op.k_levels, store.v_levels = op.v_levels;
  const int64_t bytes = kv_codes::tile_bytes({static_cast<int>(m.head_dim), bits, 0});
  store.k_pool = op.k_pool = o.constant(DType::u8, {slots / 16, m.kv_heads, bytes}, 0);
  store.v_pool = op.v_pool = o.constant(DType::u8, {slots / 16, m.kv_heads, bytes}, 0);
  o.backend().run(store);
}

// `sequences` with `keys` keys each in pages of 16, of which the last `queries` are asked for. bits: of codes; 0: rows
// of the dtype.
Op paged(Operands& o, const Model& m, DType stored, int64_t sequences, int64_t queries, int64_t keys, int bits = 0) {
  PagedAttention op;
  op.page_tokens = 16, op.scale = 1 / std::sqrt(static_cast<float>(m.head_dim));
  const int64_t most = (keys + 15) / 16, slots = sequences * most * 16;
  std::vector<int32_t> pages(static_cast<size_t>(sequences * most)), cu_q = {0};
  for (size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<int32_t>(i);
  std::shuffle(pages.begin(), pages.end(), std::mt19937(1));
  for (int64_t s = 0; s < sequences; ++s) cu_q.push_back(cu_q.back() + static_cast<int32_t>(queries));
  const auto pool = [&] {
    View view = stored == DType::q8_0 ? o.packed(stored, slots * m.kv_heads, m.head_dim)
                                      : o.random(stored, {slots * m.kv_heads, m.head_dim});
    view.rank = 3, view.shape[0] = slots, view.shape[1] = m.kv_heads, view.shape[2] = m.head_dim;
    return view;
  };
  if (bits)
    code_pools(o, m, bits, slots, op);
  else
    op.k_pool = pool(), op.v_pool = pool();
  op.pages = o.list(pages);
  op.pages.rank = 2, op.pages.shape[0] = sequences, op.pages.shape[1] = most;
  op.cu_q = o.list(cu_q),
  op.lengths = o.list(std::vector<int32_t>(static_cast<size_t>(sequences), static_cast<int32_t>(keys)));
  op.q = o.random(kHalf, {sequences * queries, m.heads, m.head_dim}),
  op.o = o.empty(kHalf, {sequences * queries, m.heads, m.head_dim});
  return op;
}

// The operations of inference: linear layers of each format that suits the model, a row and many; a cache of `t` keys.
std::vector<Case> inference(const Model& m, int64_t t) {
  std::vector<Case> list;
  for (const DType stored :
       {kHalf, DType::q8_0, DType::q6_k, DType::q4_k, DType::q4_0, DType::tq2_0, DType::pq2_0, DType::one_bit})
    for (const int64_t rows : {int64_t{1}, int64_t{8}, std::min<int64_t>(512, t), std::min<int64_t>(4096, t)}) {
      if (m.hidden % dtype_info(stored).elements != 0) continue;
      if (rows > 512 && stored != kHalf && stored != DType::one_bit) continue;  // of the others training does not ask
      const std::string name = std::string("row_linear ") + dtype_name(stored) + ", " + std::to_string(rows) +
                               (rows == 1 ? " row" : " rows");
      list.push_back({name, [=](Operands& o) { return linear(o, stored, rows, m.intermediate, m.hidden); }, ""});
    }
  for (const DType stored : {kHalf, DType::q8_0}) {
    if (m.head_dim % dtype_info(stored).elements != 0) continue;
    const std::string name = std::string("paged_attention ") + dtype_name(stored);
    list.push_back({name + ", one sequence", [=](Operands& o) { return paged(o, m, stored, 1, 1, t); }, ""});
    list.push_back({name + ", 16 sequences", [=](Operands& o) { return paged(o, m, stored, 16, 1, t); }, ""});
    list.push_back(
        {name + ", a chunk", [=](Operands& o) { return paged(o, m, stored, 1, std::min<int64_t>(512, t), t); }, ""});
  }
  for (const int bits : {4, 2}) {
    if (m.head_dim % kv_codes::kRun != 0) continue;
    const std::string name = "paged_attention " + std::to_string(bits) + " bits";
    list.push_back({name + ", one sequence", [=](Operands& o) { return paged(o, m, kHalf, 1, 1, t, bits); }, ""});
    list.push_back({name + ", 16 sequences", [=](Operands& o) { return paged(o, m, kHalf, 16, 1, t, bits); }, ""});
    list.push_back({name + ", a chunk",
                    [=](Operands& o) { return paged(o, m, kHalf, 1, std::min<int64_t>(512, t), t, bits); }, ""});
  }
  return list;
}

// What a product of random numbers wants of weights [rows, columns].
View pulses(Operands& o, DType dtype, int64_t rows, int64_t columns, float strength) {
  constexpr int64_t kTokens = 16;
  const PulseGrad op{o.random(kHalf, {kTokens, rows}),         o.random(kHalf, {kTokens, columns}),
                     o.packed(DType::one_bit, rows, columns),  o.empty(dtype, {rows, columns}),
                     o.numbers(kFull, {strength, 0.1f, 0, 0}), o.constant(DType::i64, {2}, 1)};
  o.backend().run(op);
  return op.pulses;
}

// planes: of counters; 0: counters of a byte, or momenta with `bop`.
Op inertia(Operands& o, int64_t rows, int64_t columns, int64_t planes, bool bop) {
  Inertia op;
  op.pulses =
      planes ? pulses(o, DType::ternary, rows, columns, 1.4f) : pulses(o, DType::u8, rows, columns, bop ? 16.0f : 1.0f);
  op.weights = o.packed(DType::one_bit, rows, columns);
  if (planes) {
    op.state = o.packed(DType::one_bit, planes * rows, columns);
    op.state.rank = 3, op.state.shape[0] = planes, op.state.shape[1] = rows, op.state.shape[2] = columns;
  } else {
    op.state = o.constant(DType::u8, {rows, columns}, 0);
  }
  op.counts = o.constant(DType::i64, {2}, 0), op.hyper = o.numbers(kFull, {0, 0, 0.02f, 0.3f});
  op.rng = o.constant(DType::i64, {2}, 1), op.bop = bop;
  return op;
}

// The operations of one-bit training: a linear layer up, and its weights' step.
std::vector<Case> one_bit(const Model& m, int64_t t) {
  const int64_t hidden = m.hidden, wide = m.intermediate;
  const auto half = [](Operands& o, int64_t rows, int64_t columns) { return o.random(kHalf, {rows, columns}); };
  const auto pulse_grad = [=](Operands& o, DType dtype) {
    return PulseGrad{half(o, t, wide),
                     half(o, t, hidden),
                     o.packed(DType::one_bit, wide, hidden),
                     o.empty(dtype, {wide, hidden}),
                     o.numbers(kFull, {1.4f, 0.1f, 0, 0}),
                     o.constant(DType::i64, {2}, 1)};
  };
  return {
      {"scale_columns",
       [=](Operands& o) {
         return ScaleColumns{half(o, t, wide), o.random(kFull, {wide}), {}, o.empty(kHalf, {t, wide})};
       },
       ""},
      {"scale_columns_grad",
       [=](Operands& o) {
         return ScaleColumnsGrad{half(o, t, wide), o.random(kFull, {wide}), half(o, t, wide), o.empty(kHalf, {t, wide}),
                                 o.empty(kFull, {wide})};
       },
       ""},
      {"pulse_grad ternary", [=](Operands& o) { return pulse_grad(o, DType::ternary); }, ""},
      {"pulse_grad u8", [=](Operands& o) { return pulse_grad(o, DType::u8); }, ""},
      {"inertia 1 plane", [=](Operands& o) { return inertia(o, wide, hidden, 1, false); }, ""},
      {"inertia 3 planes", [=](Operands& o) { return inertia(o, wide, hidden, 3, false); }, ""},
      {"inertia u8", [=](Operands& o) { return inertia(o, wide, hidden, 0, false); }, ""},
      {"inertia bop", [=](Operands& o) { return inertia(o, wide, hidden, 0, true); }, ""},
      {"count_levels 3 planes",
       [=](Operands& o) {
         return CountLevels{std::get<Inertia>(inertia(o, wide, hidden, 3, false)).state,
                            o.constant(DType::i64, {16}, 0)};
       },
       ""},
      {"count_levels u8",
       [=](Operands& o) {
         return CountLevels{std::get<Inertia>(inertia(o, wide, hidden, 0, false)).state,
                            o.constant(DType::i64, {16}, 0)};
       },
       ""},
      {"pack_signs",
       [=](Operands& o) {
         return PackSigns{o.random(kFull, {wide, hidden}), o.empty(DType::one_bit, {wide, hidden})};
       },
       ""},
      {"clip_to_grid",
       [=](Operands& o) {
         return ClipToGrid{o.random(kFull, {wide, hidden}), o.empty(kFull, {wide, hidden}),
                           o.constant(DType::i64, {2}, 1), 7};
       },
       ""},
      {"cast of one_bit",
       [=](Operands& o) {
         return Cast{o.packed(DType::one_bit, t, wide), o.empty(kHalf, {t, wide})};
       },
       ""},
  };
}

// The operations of a step of `t` tokens, those first that weigh most or are most often doubted; then those of one-bit
// training and of inference.
std::vector<Case> cases(const Model& m, int64_t t) {
  const int64_t hidden = m.hidden, wide = m.intermediate, kv = m.kv_heads * m.head_dim, all = t * wide;
  const auto half = [](int64_t rows, int64_t columns) {
    return [=](Operands& o) { return o.random(kHalf, {rows, columns}); };
  };
  std::vector<Case> list = {
      {"attention, one document", [=](Operands& o) { return attention(o, m, t, false, false); }, "one"},
      {"attention_grad, one document", [=](Operands& o) { return attention(o, m, t, false, true); }, "one"},
      {"attention, packed", [=](Operands& o) { return attention(o, m, t, true, false); }, "packed"},
      {"attention_grad, packed", [=](Operands& o) { return attention(o, m, t, true, true); }, "packed"},
      {"rmsnorm", [=](Operands& o) { return norm(o, t, hidden, false, false); }, ""},
      {"add_rmsnorm", [=](Operands& o) { return add_norm(o, t, hidden); }, ""},
      {"rmsnorm, heads", [=](Operands& o) { return norm(o, t * m.heads, m.head_dim, false, false); }, ""},
      {"rmsnorm_grad, weight frozen", [=](Operands& o) { return norm(o, t, hidden, true, false); }, ""},
      {"rmsnorm_grad", [=](Operands& o) { return norm(o, t, hidden, true, true); }, ""},
      {"layer_norm", [=](Operands& o) { return layer_norm(o, t, hidden, false); }, ""},
      {"layer_norm_grad", [=](Operands& o) { return layer_norm(o, t, hidden, true); }, ""},
      {"causal_conv", [=](Operands& o) { return causal_conv(o, t, wide, false); }, ""},
      {"causal_conv_grad", [=](Operands& o) { return causal_conv(o, t, wide, true); }, ""},
      {"gated_delta, 16 heads", [=](Operands& o) { return gated_delta(o, t, 16, false); }, ""},
      {"gated_delta_grad, 16 heads", [=](Operands& o) { return gated_delta(o, t, 16, true); }, ""},
      {"gated_delta, 16 and 32 heads", [=](Operands& o) { return gated_delta(o, t, 32, false); }, ""},
      {"gated_delta_grad, 16 and 32 heads", [=](Operands& o) { return gated_delta(o, t, 32, true); }, ""},
      {"swiglu",
       [=](Operands& o) {
         return SwiGlu{half(t, wide)(o), half(t, wide)(o), o.empty(kHalf, {t, wide})};
       },
       ""},
      {"swiglu_grad",
       [=](Operands& o) {
         return SwiGluGrad{half(t, wide)(o), half(t, wide)(o), half(t, wide)(o), o.empty(kHalf, {t, wide}),
                           o.empty(kHalf, {t, wide})};
       },
       ""},
      {"rope", [=](Operands& o) { return rope(o, t, m.heads, m.kv_heads, m.head_dim); }, ""},
      {"add",
       [=](Operands& o) {
         return Add{half(t, hidden)(o), half(t, hidden)(o), o.empty(kHalf, {t, hidden})};
       },
       ""},
      {"pointwise, x sigmoid(x) y",
       [=](Operands& o) {
         Pointwise op{.in = {half(t, hidden)(o), half(t, hidden)(o)}};
         op.space = op.in[0], op.space.data = nullptr;
         op.nodes = {{Fn::input, 0}, {Fn::input, 1}, {Fn::sigmoid, 0}, {Fn::mul, 0, 2}, {Fn::mul, 3, 1}};
         op.out = {{o.empty(kHalf, {t, hidden}), 4}};
         return op;
       },
       ""},
      {"pointwise, softmax",
       [=](Operands& o) {
         Pointwise op{.in = {half(t, hidden)(o)}};
         op.space = op.in[0], op.space.data = nullptr;
         op.nodes = {{Fn::input, 0}, {Fn::row_max, 0}, {Fn::sub, 0, 1},
                     {Fn::exp, 2},   {Fn::row_sum, 3}, {Fn::div, 3, 4}};
         op.out = {{o.empty(kHalf, {t, hidden}), 5}};
         return op;
       },
       ""},
      {"batched_matmul, chunks of heads",
       [=](Operands& o) {
         const int64_t chunks = t / 64 * m.heads, dim = m.head_dim;
         BatchedMatmul op;
         op.a = o.random(kHalf, {chunks, 64, dim}), op.b = o.random(kHalf, {chunks, 64, dim}), op.trans_b = true;
         op.c = o.empty(kHalf, {chunks, 64, 64}), op.batch = View(nullptr, kHalf, {chunks});
         op.of_a.stride[0] = op.of_b.stride[0] = op.of_c.stride[0] = 1;
         return op;
       },
       ""},
      {"rearrange, heads before tokens",
       [=](Operands& o) {
         const int64_t heads = m.heads, dim = m.head_dim;
         return Rearrange{half(t, heads * dim)(o),
                          o.empty(kHalf, {heads, t, dim}),
                          View(nullptr, kHalf, {heads, t, dim}),
                          {0, {dim, heads * dim, 1}},
                          {0, {t * dim, dim, 1}}};
       },
       ""},
      {"gather, columns",
       [=](Operands& o) {
         View index = o.tokens(hidden, hidden);
         index.rank = 3, index.shape[0] = 1, index.shape[1] = hidden, index.shape[2] = 1;
         return Gather{o.random(kHalf, {t, hidden, 1}), index, o.empty(kHalf, {t, hidden, 1})};
       },
       ""},
      {"scatter_add, rows",
       [=](Operands& o) {
         View index = o.tokens(t, t);
         index.rank = 3, index.shape[0] = 1, index.shape[1] = t, index.shape[2] = 1;
         return ScatterAdd{o.random(kHalf, {1, t, hidden}), index, o.constant(kFull, {1, t, hidden}, 0)};
       },
       ""},
      {"sort, 8 of a row",
       [=](Operands& o) {
         return Sort{half(t, hidden)(o), o.empty(kHalf, {t, 8}), o.empty(DType::i32, {t, 8}), true};
       },
       ""},
      {"grouped_matmul up, y", [=](Operands& o) { return experts_up(o, m, kHalf, t * kChosen, false, false); }, ""},
      {"grouped_matmul up, dx", [=](Operands& o) { return experts_up(o, m, kHalf, t * kChosen, true, false); }, ""},
      {"grouped_matmul q4_0, 8 rows apart", [=](Operands& o) { return experts_up(o, m, DType::q4_0, 8, false, true); },
       ""},
      {"grouped_matmul_grad up, dw",
       [=](Operands& o) {
         const int64_t n = width_of(m), rows = t * kChosen;
         return GroupedMatmulGrad{half(rows, n)(o), half(rows, hidden)(o), shared(o, rows),
                                  o.empty(kFull, {kExperts, n, hidden})};
       },
       ""},
      {"route, 8 of 32",
       [=](Operands& o) {
         const View scores = o.random(kFull, {t, kExperts}), choice = o.empty(DType::i32, {t, kChosen});
         return Route{scores,
                      {},
                      choice,
                      o.empty(DType::i32, {t * kChosen}),
                      o.empty(DType::i32, {kExperts + 1}),
                      o.empty(DType::i32, {t, kChosen})};
       },
       ""},
      {"dispatch, 8 rows of a token",
       [=](Operands& o) {
         return Dispatch{half(t, hidden)(o), places(o, t), {}, o.empty(kHalf, {t * kChosen, hidden})};
       },
       ""},
      {"combine, 8 rows of a token",
       [=](Operands& o) {
         return Combine{half(t * kChosen, hidden)(o), places(o, t), o.random(kFull, {t, kChosen}),
                        o.empty(kHalf, {t, hidden})};
       },
       ""},
      {"cumulative_sum",
       [=](Operands& o) {
         return CumulativeSum{half(t, hidden)(o), o.empty(kHalf, {t, hidden})};
       },
       ""},
      {"lm_head_loss, forward and backward", [=](Operands& o) { return lm_head(o, m, t, false, false); }, ""},
      {"lm_head_loss, half of the rows trained", [=](Operands& o) { return lm_head(o, m, t, false, true); }, ""},
      {"lm_head_loss, head trained", [=](Operands& o) { return lm_head(o, m, t, true, false); }, ""},
      {"matmul up, y", [=](Operands& o) { return product(o, t, wide, hidden, 'y'); }, ""},
      {"matmul up, dx", [=](Operands& o) { return product(o, t, hidden, wide, 'x'); }, ""},
      {"matmul up, dw", [=](Operands& o) { return product(o, wide, hidden, t, 'w'); }, ""},
      {"matmul down, y", [=](Operands& o) { return product(o, t, hidden, wide, 'y'); }, ""},
      {"matmul down, dx", [=](Operands& o) { return product(o, t, wide, hidden, 'x'); }, ""},
      {"matmul q, y", [=](Operands& o) { return product(o, t, hidden, hidden, 'y'); }, ""},
      {"matmul k, y", [=](Operands& o) { return product(o, t, kv, hidden, 'y'); }, ""},
      {"matmul up in blocks, y", [=](Operands& o) { return packed_product(o, t, wide, hidden, true); }, ""},
      {"matmul up in blocks, dx", [=](Operands& o) { return packed_product(o, t, hidden, wide, false); }, ""},
      {"matmul_sum up, y",
       [=](Operands& o) {
         return product_sum(o, t, wide, {kRank, hidden}, true);
       },
       ""},
      {"matmul_sum down, y",
       [=](Operands& o) {
         return product_sum(o, t, hidden, {kRank, wide}, true);
       },
       ""},
      {"matmul_sum q, y",
       [=](Operands& o) {
         return product_sum(o, t, hidden, {kRank, hidden}, true);
       },
       ""},
      {"matmul_sum gate up, dx",
       [=](Operands& o) {
         return product_sum(o, t, hidden, {kRank, wide, kRank, wide}, false);
       },
       ""},
      {"matmul_sum down, dx",
       [=](Operands& o) {
         return product_sum(o, t, wide, {kRank, hidden}, false);
       },
       ""},
      {"matmul_sum q k v, dx",
       [=](Operands& o) {
         return product_sum(o, t, hidden, {kRank, kv, kRank, kv, kRank, hidden}, false);
       },
       ""},
      {"matmul_sum q k v, y",
       [=](Operands& o) {
         return products_of_one(o, t, hidden, {hidden, kv, kv}, true);
       },
       ""},
      {"matmul_sum gate up, y",
       [=](Operands& o) {
         return products_of_one(o, t, hidden, {wide, wide}, true);
       },
       ""},
      {"matmul_sum q k v, dw",
       [=](Operands& o) {
         return products_of_one(o, t, hidden, {hidden, kv, kv}, false);
       },
       ""},
      {"matmul_sum gate up, dw",
       [=](Operands& o) {
         return products_of_one(o, t, hidden, {wide, wide}, false);
       },
       ""},
      {"lora_down q k v", [=](Operands& o) { return lora_down(o, t, hidden, 3, false); }, ""},
      {"lora_down down", [=](Operands& o) { return lora_down(o, t, wide, 1, false); }, ""},
      {"lora_down_grad q k v", [=](Operands& o) { return lora_down(o, t, hidden, 3, true); }, ""},
      {"lora_up_grad up", [=](Operands& o) { return lora_up_grad(o, t, wide); }, ""},
      {"fp8_round x", [=](Operands& o) { return fp8_round(o, t, hidden); }, ""},
      {"fp8_round dy of up", [=](Operands& o) { return fp8_round(o, t, wide); }, ""},
      {"fp8_matmul up, y", [=](Operands& o) { return fp8_product(o, t, wide, hidden, false); }, ""},
      {"fp8_matmul down, y", [=](Operands& o) { return fp8_product(o, t, hidden, wide, false); }, ""},
      {"fp8_matmul up, dw", [=](Operands& o) { return fp8_product(o, wide, hidden, t, true); }, ""},
      {"adamw", [=](Operands& o) { return adamw(o, wide * hidden, false); }, ""},
      {"adamw, moments in 8 bits", [=](Operands& o) { return adamw(o, wide * hidden, true); }, ""},
      {"sum_squares",
       [=](Operands& o) {
         return SumSquares{{o.random(kFull, {wide * hidden})}, o.empty(kFull, {1})};
       },
       ""},
      {"embedding",
       [=](Operands& o) {
         return Embedding{o.tokens(t, m.vocab), o.random(kHalf, {m.vocab, hidden}), o.empty(kHalf, {t, hidden})};
       },
       ""},
      {"embedding_grad",
       [=](Operands& o) {
         return EmbeddingGrad{o.tokens(t, m.vocab), half(t, hidden)(o), o.constant(kFull, {m.vocab, hidden}, 0)};
       },
       ""},
      {"bias_grad",
       [=](Operands& o) {
         return BiasGrad{half(t, hidden)(o), o.empty(kFull, {hidden})};
       },
       ""},
      {"dropout",
       [=](Operands& o) {
         return Dropout{half(t, hidden)(o), o.empty(kHalf, {t, hidden}), o.constant(DType::i64, {2}, 1), 0.1f, 1};
       },
       ""},
      {"embedding_noise",
       [=](Operands& o) {
         return EmbeddingNoise{half(t, hidden)(o),
                               o.constant(DType::i32, {1}, 0),
                               o.empty(kHalf, {t, hidden}),
                               o.constant(DType::i64, {2}, 1),
                               5.0f,
                               1};
       },
       ""},
      {"dora_scale",
       [=](Operands& o) {
         return DoraScale{o.constant(kFull, {wide}, 1e6), o.random(kFull, {wide}), o.random(kHalf, {wide, kRank}),
                          o.random(kFull, {kRank, wide}), o.empty(kFull, {wide}),  o.empty(kFull, {wide})};
       },
       ""},
      {"copy",
       [=](Operands& o) {
         return Copy{o.random(kHalf, {all}), o.empty(kHalf, {all})};
       },
       ""},
      {"cast to bf16",
       [=](Operands& o) {
         return Cast{o.random(kFull, {all}), o.empty(kHalf, {all})};
       },
       ""},
      {"cast of q8_0",
       [=](Operands& o) {
         return Cast{o.packed(DType::q8_0, t, wide), o.empty(kHalf, {t, wide})};
       },
       ""},
      {"hadamard",
       [=](Operands& o) {
         return Hadamard{half(t, hidden)(o), {}, o.empty(kHalf, {t, hidden}), 64};
       },
       ""},
      {"head_linear",
       [=](Operands& o) {
         return HeadLinear{o.random(kHalf, {t, hidden / 64, 64}),
                           o.random(kFull, {1, 64, 64}),
                           {},
                           o.empty(kHalf, {t, hidden / 64, 64})};
       },
       ""},
      {"scale",
       [=](Operands& o) {
         return Scale{o.random(kHalf, {all}), o.empty(kHalf, {all}), 0.5f};
       },
       ""},
      {"fill",
       [=](Operands& o) {
         return Fill{o.empty(kFull, {all}), 0};
       },
       ""},
  };
  for (Case& one : one_bit(m, t)) list.push_back(std::move(one));
  for (Case& one : inference(m, t)) list.push_back(std::move(one));
  return list;
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Seconds of one run: median and least of a few tries, each of `seconds` of work over all operand sets in turn. A
// device that records replays them from its own graph, so that queueing them costs no time; nodes: those of one run.
struct Timed {
  double median, least, nodes;
};
Timed time_of(Backend& backend, const std::vector<Op>& sets, double seconds) {
  const auto once = [&] {
    for (const Op& op : sets) backend.run(op);
  };
  once();
  const std::unique_ptr<Recording> recording = backend.record(once);
  const auto cycle = [&] { recording ? recording->replay() : once(); };
  cycle();
  backend.synchronize();
  double start = now();
  cycle();
  backend.synchronize();
  const int repeats = std::max(1, static_cast<int>(seconds / std::max(1e-7, now() - start)));
  std::vector<double> tries;
  for (int i = 0; i < (seconds > 0 ? kTries : 1); ++i) {
    start = now();
    for (int r = 0; r < repeats; ++r) cycle();
    backend.synchronize();
    tries.push_back((now() - start) / repeats / static_cast<double>(sets.size()));
  }
  std::sort(tries.begin(), tries.end());
  const size_t nodes = recording ? recording->nodes() : 0;
  return {tries[tries.size() / 2], tries[0], static_cast<double>(nodes) / static_cast<double>(sets.size())};
}

bool uses_bf16(const Op& op) {
  bool found = false;
  for_each_view(op, [&](const char*, const View& view, Access) { found |= view.dtype == DType::bf16; });
  return found;
}

// Runs the op on both devices from the same inputs. Where a result differs by more than the roundings of the dtype
// explain, says so; else "". worst: the largest error of a result, relative to its norm.
std::string disagreement(Backend& backend, Backend& reference, const Op& op, double& worst) {
  struct Place {
    const char* label;
    View device, host;
    bool result;
  };
  std::vector<Place> places;
  Operands host(reference);
  Op twin = op;
  for_each_view(twin, [&](const char* label, View& view, Access access) {
    const View device = view;
    const auto same =
        std::find_if(places.begin(), places.end(), [&](const Place& p) { return p.device.data == device.data; });
    if (same != places.end()) return void(view.data = same->host.data);  // cu_q and cu_k are often one list
    view.data = host.empty(view.dtype, {view.elements()}).data;
    if (access != Access::write) backend.download(view.data, device.data, device.bytes());
    const std::string name = label;
    places.push_back({label, device, view, access != Access::read && name != "workspace" && name != "delta"});
  });
  backend.run(op);
  reference.run(twin);
  reference.synchronize();
  const double element = uses_bf16(op) ? 0.03 : 1e-4,
               norm = uses_bf16(op) ? 0.01 : 1e-5;  // of the value and the mean; of the norm
  for (const Place& place : places) {
    if (!place.result) continue;
    std::vector<unsigned char> bytes(place.device.bytes());
    backend.download(bytes.data(), place.device.data, bytes.size());
    if (place.device.dtype != DType::f32 && place.device.dtype != DType::bf16) {
      // Numbers that are not rounded: the same bytes; but pulses, of gradients that are: where one is next to its
      // threshold it falls on either side.
      const auto* want = static_cast<const unsigned char*>(place.host.data);
      int64_t differing = 0;
      for (size_t i = 0; i < bytes.size(); ++i) differing += bytes[i] != want[i];
      const double share = static_cast<double>(differing) / static_cast<double>(std::max<size_t>(1, bytes.size()));
      worst = std::max(worst, share);
      if (share > (std::string(place.label) == "pulses" ? 0.005 : 0.0))
        return std::string(place.label) + " " + shape_text(place.device) + ": " + std::to_string(differing) + " of " +
               std::to_string(bytes.size()) + " bytes differ";
      continue;
    }
    const int64_t count = place.device.elements();
    const bool half = place.device.dtype == DType::bf16;
    const auto value = [&](const void* data, int64_t i) {
      return static_cast<double>(half ? to_f32(static_cast<const bf16*>(data)[i]) : static_cast<const float*>(data)[i]);
    };
    double sum = 0, error = 0;
    for (int64_t i = 0; i < count; ++i) {
      const double want = value(place.host.data, i), got = value(bytes.data(), i);
      sum += want * want, error += (got - want) * (got - want);
    }
    const double mean = std::sqrt(sum / static_cast<double>(std::max<int64_t>(1, count)));
    const double relative = std::sqrt(error) / std::max(std::sqrt(sum), 1e-30);
    worst = std::max(worst, relative);
    int64_t wrong = 0, first = 0;
    for (int64_t i = count - 1; i >= 0; --i) {
      const double want = value(place.host.data, i), got = value(bytes.data(), i);
      if (std::fabs(got - want) <= element * (std::fabs(want) + 2 * mean)) continue;
      ++wrong, first = i;
    }
    if (wrong == 0 && relative <= norm) continue;
    char text[256];
    std::snprintf(
        text, sizeof text,
        "%s %s: error %.2e of the norm; %lld of %lld elements far off, the first at %lld: %.6g, the CPU has %.6g",
        place.label, shape_text(place.device).c_str(), relative, static_cast<long long>(wrong),
        static_cast<long long>(count), static_cast<long long>(first), value(bytes.data(), first),
        value(place.host.data, first));
    return text;
  }
  return "";
}

// One line of the JSON file. (Written by hand: the JSON library takes longer to compile than all the rest.)
class Row {
 public:
  Row& add(const char* key, const std::string& value) {
    std::string quoted = "\"";
    for (const char c : value) {
      if (c == '"' || c == '\\') quoted += '\\';
      quoted += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
    return raw(key, quoted + "\"");
  }
  Row& add(const char* key, const char* value) { return add(key, std::string(value)); }
  Row& add(const char* key, bool value) { return raw(key, value ? "true" : "false"); }
  Row& add(const char* key, double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.9g", value);
    return raw(key, std::isfinite(value) ? text : "null");
  }
  template <class Number>
  Row& add(const char* key, const std::vector<Number>& list) {
    std::string text;
    for (const auto value : list) text += (text.empty() ? "" : ", ") + std::to_string(value);
    return raw(key, "[" + text + "]");
  }
  Row& raw(const char* key, const std::string& value) {
    text_ += (text_.empty() ? "\"" : ", \"") + std::string(key) + "\": " + value;
    return *this;
  }
  std::string text() const { return "{" + text_ + "}"; }

 private:
  std::string text_;
};

std::string shapes(const Op& op) {
  Row views;
  std::set<std::string> seen;  // of a list of tensors, the first
  for_each_view(op, [&](const char* label, const View& view, Access) {
    if (!seen.insert(label).second) return;
    views.raw(label, Row()
                         .add("dtype", dtype_name(view.dtype))
                         .add("shape", std::vector<int64_t>(view.shape, view.shape + view.rank))
                         .text());
  });
  if (const auto* matmul = std::get_if<Matmul>(&op))
    views.raw("transposed",
              std::string(matmul->trans_a ? "[true" : "[false") + (matmul->trans_b ? ", true]" : ", false]"));
  return views.text();
}

struct Settings {
  std::string device = "cpu", models = "1.5B,7B,0.5B", only, json;
  int64_t tokens = 8192;
  double seconds = 0.02, budget = 1e9;
  bool cycle = true, verify = false;
};

bool chosen(const Settings& settings, const Model& model) {
  return ("," + settings.models + ",").find("," + model.name + ",") != std::string::npos;
}

// Every case once against the CPU, at these shapes.
template <class Keep>
int verify(const Settings& settings, Backend& backend, Keep keep) {
  const double started = now();
  const auto reference = make_cpu_backend();
  int failed = 0, right = 0, left_out = 0;
  for (const Model& model : kModels)
    for (const Case& one : chosen(settings, model) ? cases(model, settings.tokens) : std::vector<Case>{}) {
      if (one.name.find(settings.only) == std::string::npos) continue;
      if (now() - started > settings.budget) {
        ++left_out;
        continue;
      }
      std::string wrong;
      bool lost = false;
      double worst = 0;
      const double begin = now();
      try {
        Operands operands(backend);
        wrong = disagreement(backend, *reference, one.make(operands), worst);
      } catch (const Error& error) {
        wrong = error.what();
        lost = error.code == "cuda";  // the context may be dead; what follows would fail for that alone
      }
      (wrong.empty() ? right : failed) += 1;
      std::printf(
          "%-5s %-36s %s %s(%.1f s)\n", model.name.c_str(), one.name.c_str(), wrong.empty() ? "agrees," : "WRONG:",
          wrong.empty() ? ("error " + std::to_string(worst) + " ").c_str() : (wrong + " ").c_str(), now() - begin);
      std::fflush(stdout);
      keep(Row()
               .add("model", model.name)
               .add("case", one.name)
               .add("verified", wrong.empty())
               .add("error", worst)
               .add("wrong", wrong));
      if (lost) {
        std::printf("%s failed in a way that may end the device for this process: the cases behind it were not tried\n",
                    one.name.c_str());
        return 1;
      }
    }
  std::printf("%d operations at the shapes of a step agree with the CPU, %d do not", right, failed);
  std::printf(left_out ? ", %d left out for the budget\n" : "\n", left_out);
  return failed ? 1 : 0;
}

int bench(const Settings& settings) {
  const double started = now();
  const std::unique_ptr<Backend> backend = find_device(settings.device).make();
  std::ofstream file;
  if (!settings.json.empty()) {
    file.open(settings.json);
    if (!file) fail("io", settings.json, ": cannot be written");
  }
  const auto keep = [&](const Row& row) {  // a line each, at once: a run that is cut short keeps what it measured
    if (file.is_open()) file << row.text() << std::endl;
  };
  if (settings.verify) return verify(settings, *backend, keep);
  const Limits limits = backend->limits();
  std::printf("%s: %s; copies at %.4g GB/s, products of 8192 at %.4g TFLOP/s in bf16, of 4096 at %.4g in f32\n",
              backend->name().c_str(), backend->description().c_str(), limits.bandwidth / 1e9, limits.flops_bf16 / 1e12,
              limits.flops_f32 / 1e12);
  keep(Row()
           .add("device", backend->name())
           .add("description", backend->description())
           .add("copy_bytes_s", limits.bandwidth)
           .add("flops_s_bf16", limits.flops_bf16)
           .add("flops_s_f32", limits.flops_f32)
           .add("tokens", static_cast<double>(settings.tokens)));
  std::printf("%-5s %-36s %11s %9s %6s %9s %9s %9s  %s\n", "model", "operation", "us", "least us", "nodes", "GB/s",
              "TFLOP/s", "share", "of");
  int failed = 0, left_out = 0;
  for (const Model& model : kModels) {
    if (!chosen(settings, model)) continue;
    for (const Case& one : cases(model, settings.tokens)) {
      if (one.name.find(settings.only) == std::string::npos) continue;
      if (now() - started > settings.budget) {
        ++left_out;
        continue;
      }
      Row row;
      row.add("model", model.name).add("case", one.name);
      try {
        std::deque<Operands> operands;
        std::vector<Op> sets;
        do {
          operands.emplace_back(*backend);
          sets.push_back(one.make(operands.back()));
        } while (settings.cycle && sets.size() < kMostSets && operands.back().bytes() * sets.size() < kCycle);
        const Cost needed = cost(sets[0], *backend);
        const auto [median, least, nodes] = time_of(*backend, sets, settings.seconds);
        const double by_bytes = needed.bytes / limits.bandwidth;
        const double by_flops = needed.flops / (uses_bf16(sets[0]) ? limits.flops_bf16 : limits.flops_f32);
        // The rate of matrix products is a limit for what is made of them; the arithmetic of a norm has another.
        const bool products =
            std::holds_alternative<Matmul>(sets[0]) || std::holds_alternative<MatmulSum>(sets[0]) ||
            std::holds_alternative<LmHeadLoss>(sets[0]) || std::holds_alternative<Attention>(sets[0]) ||
            std::holds_alternative<AttentionGrad>(sets[0]) || std::holds_alternative<RowLinear>(sets[0]) ||
            std::holds_alternative<PagedAttention>(sets[0]) || std::holds_alternative<GroupedMatmul>(sets[0]) ||
            std::holds_alternative<GroupedMatmulGrad>(sets[0]);
        const bool moves = !products || by_bytes > by_flops;
        const double share = (moves ? by_bytes : by_flops) / median;
        row.add("op", op_name(sets[0]))
            .raw("views", shapes(sets[0]))
            .add("us", median * 1e6)
            .add("us_least", least * 1e6)
            .add("bytes", needed.bytes);
        row.add("nodes", nodes);
        row.add("flops", needed.flops)
            .add("share", share)
            .add("of", moves ? "copy" : "gemm")
            .add("sets", static_cast<double>(sets.size()));
        if (const auto* head = std::get_if<LmHeadLoss>(&sets[0]); head && head->trained >= 0)
          row.add("trained", static_cast<double>(head->trained));
        if (!one.documents.empty()) row.add("documents", boundaries(settings.tokens, one.documents == "packed"));
        std::printf("%-5s %-36s %11.1f %9.1f %6.1f %9.1f %9.2f %8.1f%%  %s\n", model.name.c_str(), one.name.c_str(),
                    median * 1e6, least * 1e6, nodes, needed.bytes / median / 1e9, needed.flops / median / 1e12,
                    share * 100, moves ? "copy" : "GEMM");
      } catch (const Error& error) {
        ++failed;
        row.add("error", error.what());
        std::printf("%-5s %-36s FAILED: %s\n", model.name.c_str(), one.name.c_str(), error.what());
        if (error.code == "cuda") {  // the context may be dead; what follows would fail for that alone
          keep(row);
          return 1;
        }
      }
      std::fflush(stdout);
      keep(row);
    }
  }
  if (left_out) std::printf("%d cases left out: the budget of %.0f s was used up\n", left_out, settings.budget);
  return failed ? 1 : 0;
}

}  // namespace

}  // namespace qeng

int main(int argc, char** argv) {
  qeng::Settings settings;
  try {
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      if (word == "--no-cycle" || word == "--verify") {
        (word == "--verify" ? settings.verify : settings.cycle) = word == "--verify";
        continue;
      }
      const std::string value = i + 1 < argc ? argv[++i] : "";
      if (word == "--device")
        settings.device = value;
      else if (word == "--models")
        settings.models = value;
      else if (word == "--only")
        settings.only = value;
      else if (word == "--json")
        settings.json = value;
      else if (word == "--tokens")
        settings.tokens = std::stoll(value);
      else if (word == "--seconds")
        settings.seconds = std::stod(value);
      else if (word == "--budget")
        settings.budget = std::stod(value);
      else {
        std::fprintf(stderr,
                     "usage: qeng_bench_ops [--device cpu|cuda|cuda:N] [--models 1.5B,7B,0.5B,tiny] [--tokens N] "
                     "[--only TEXT] [--json FILE]\n"
                     "                      [--seconds S of one try] [--budget S of the whole run] [--no-cycle: one "
                     "set of operands]\n"
                     "                      [--verify: compares results with the CPU's instead]\n");
        return 2;
      }
    }
    return qeng::bench(settings);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "qeng_bench_ops: %s\n", error.what());
    return 1;
  }
}
