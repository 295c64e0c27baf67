// What a recording joins has the bits of the operations one after another: the layers of a model as decoding runs them.
#include <cstring>

#include "kernels/error.h"
#include "tests/catch.h"
#include "tests/conformance/runner.h"

using namespace qeng;
using namespace qeng::conformance;

namespace {

struct Sizes {
  DType of_q, of_v, pool;  // of weights; of_v: of v and of down
  int64_t rows, hidden, ffn, heads, kv_heads, dim, most_pages;
  bool qk_norm, gelu, plus_one;
  bool reused = false;  // SwiGlu writes where the product before it reads
};

constexpr int kPageTokens = 16, kLayers = 2;

// A decoder's operations for one new token of each sequence, on random memory.
class Layers {
 public:
  Layers(Draw& draw, const Sizes& s) : draw_(draw), s_(s) {
    const int64_t pages = s.rows * s.most_pages;
    std::vector<double> positions, slots, starts{0}, lengths, numbers;
    for (int64_t r = 0; r < s.rows; ++r) {
      const int64_t length = draw.integer(1, s.most_pages * kPageTokens);
      lengths.push_back(static_cast<double>(length)), positions.push_back(static_cast<double>(length - 1));
      slots.push_back(r == 1 ? -1 : static_cast<double>(r * s.most_pages * kPageTokens + length - 1));
      starts.push_back(static_cast<double>(r + 1));
    }
    for (int64_t i = 0; i < pages; ++i) numbers.push_back(static_cast<double>(i));
    positions_ = draw.values(DType::i32, positions), slots_ = draw.values(DType::i32, slots);
    cu_q_ = draw.values(DType::i32, starts), lengths_ = draw.values(DType::i32, lengths);
    pages_ = draw.values(DType::i32, numbers), pages_.rank = 2, pages_.shape[0] = s.rows,
    pages_.shape[1] = s.most_pages;
    std::vector<double> frequencies;
    for (int64_t i = 0; i < s.dim / 2; ++i) frequencies.push_back(1.0 / static_cast<double>(1 + i));
    inv_freq_ = draw.values(DType::f32, frequencies);
    View x = draw.tensor(DType::bf16, {s.rows, s.hidden}), branch = draw.tensor(DType::bf16, {s.rows, s.hidden});
    for (int layer = 0; layer < kLayers; ++layer) {
      const auto [sum, y] = norm(x, branch);
      const auto [after, normed] = norm(sum, attention(y));
      x = after, branch = mlp(normed);
    }
    norm(x, branch);
  }
  std::vector<Op> ops;
  const View& slots() const { return slots_; }

 private:
  View weight(DType dtype, int64_t n, int64_t k) { return draw_.tensor(dtype, {n, k}, 0.05); }
  std::vector<View> linear(const View& x, const std::vector<View>& w) {
    RowLinear op;
    op.x = x, op.w = w;
    for (const View& each : w) {
      op.y.push_back(draw_.empty(DType::bf16, {s_.rows, each.shape[0]}));
      if (each.dtype == DType::one_bit) op.scale.push_back(draw_.tensor(DType::f32, {each.shape[0]}, 0.05));
    }
    if (op.scale.size() != w.size()) op.scale.clear();
    ops.push_back(op);
    return op.y;
  }
  std::pair<View, View> norm(const View& a, const View& b) {
    AddRmsNorm op;
    op.a = a, op.b = b, op.w = draw_.tensor(DType::bf16, {s_.hidden}, 0.1, 1), op.sum = draw_.empty_like(a);
    op.y = draw_.empty_like(a), op.rstd = draw_.empty(DType::f32, {s_.rows}), op.plus_one = s_.plus_one;
    ops.push_back(op);
    return {op.sum, op.y};
  }
  View head_norm(const View& x) {
    if (!s_.qk_norm) return x;
    RmsNorm op;
    op.x = x, op.w = draw_.tensor(DType::bf16, {s_.dim}, 0.1, 1), op.y = draw_.empty_like(x);
    op.rstd = draw_.empty(DType::f32, {x.rows()}), op.plus_one = s_.plus_one;
    ops.push_back(op);
    return op.y;
  }
  View heads(View view, int64_t count) {
    view.rank = 3, view.shape[1] = count, view.shape[2] = s_.dim;
    return view;
  }
  View attention(const View& x) {
    const int64_t wide = s_.heads * s_.dim, narrow = s_.kv_heads * s_.dim,
                  slots = s_.rows * s_.most_pages * kPageTokens;
    const auto y = linear(
        x, {weight(s_.of_q, wide, s_.hidden), weight(s_.of_q, narrow, s_.hidden), weight(s_.of_v, narrow, s_.hidden)});
    const View q = head_norm(heads(y[0], s_.heads)), k = head_norm(heads(y[1], s_.kv_heads));
    Rope rope;
    rope.x = q, rope.x2 = k, rope.positions = positions_, rope.inv_freq = inv_freq_, rope.scale = 1.25f;
    rope.y = draw_.empty_like(q), rope.y2 = draw_.empty_like(k);
    ops.push_back(rope);
    KvStore store;
    store.k = rope.y2, store.v = heads(y[2], s_.kv_heads), store.slots = slots_;
    store.k_pool = draw_.tensor(s_.pool, {slots, s_.kv_heads, s_.dim});
    store.v_pool = draw_.tensor(s_.pool, {slots, s_.kv_heads, s_.dim});
    ops.push_back(store);
    PagedAttention attend;
    attend.q = rope.y, attend.k_pool = store.k_pool, attend.v_pool = store.v_pool, attend.pages = pages_;
    attend.cu_q = cu_q_, attend.lengths = lengths_, attend.o = draw_.empty_like(rope.y);
    attend.scale = 0.125f, attend.page_tokens = kPageTokens;
    ops.push_back(attend);
    View o = attend.o;
    o.rank = 2, o.shape[1] = wide;
    return linear(o, {weight(s_.of_q, s_.hidden, wide)})[0];
  }
  View mlp(const View& x) {
    const auto y = linear(x, {weight(s_.of_q, s_.ffn, s_.hidden), weight(s_.of_q, s_.ffn, s_.hidden)});
    SwiGlu op;
    op.gate = y[0], op.up = y[1], op.y = s_.reused ? x : draw_.empty_like(y[0]), op.gelu = s_.gelu;
    ops.push_back(op);
    return linear(op.y, {weight(s_.of_v, s_.hidden, s_.ffn)})[0];
  }

  Draw& draw_;
  Sizes s_;
  View positions_, slots_, cu_q_, lengths_, pages_, inv_freq_;
};

// How many kernels a replay has, and in `wrong` the numbers of buffers whose bytes differ from those of run() for each.
size_t record(Backend& backend, const std::vector<Op>& ops, std::deque<Buffer>& buffers, std::vector<size_t>& wrong) {
  std::vector<void*> blocks, places;
  for (Buffer& buffer : buffers) {
    blocks.push_back(backend.allocate(buffer.bytes.size()));
    places.push_back(static_cast<char*>(blocks.back()) + buffer.front);
  }
  std::vector<Op> moved;
  for (const Op& op : ops) moved.push_back(rebase(op, buffers, places));
  const auto outcome = [&](const std::function<void()>& run) {
    for (size_t i = 0; i < buffers.size(); ++i)
      backend.upload(blocks[i], buffers[i].bytes.data(), buffers[i].bytes.size());
    run();
    backend.synchronize();
    std::vector<std::vector<unsigned char>> result;
    for (size_t i = 0; i < buffers.size(); ++i) {
      result.emplace_back(buffers[i].bytes.size());
      backend.download(result.back().data(), blocks[i], result.back().size());
    }
    return result;
  };
  const auto each = outcome([&] {
    for (const Op& op : moved) backend.run(op);
  });
  const auto recording = backend.record([&] {
    for (const Op& op : moved) backend.repeat(op);
  });
  for (int turn = 0; turn < 2; ++turn) {  // what a replay leaves behind is right for the next
    const auto replayed = outcome([&] { recording->replay(); });
    for (size_t i = 0; i < buffers.size(); ++i)
      if (each[i] != replayed[i]) wrong.push_back(i);
  }
  for (size_t i = 0; i < buffers.size(); ++i) backend.release(blocks[i], buffers[i].bytes.size());
  return recording->nodes();
}

}  // namespace

TEST_CASE("a recording of decoder layers leaves the bits of its operations one by one, with few kernels") {
  struct Case {
    Sizes sizes;
    size_t nodes;  // of a layer
  };
  using enum DType;
  const Case cases[] = {
      {{q4_k, q4_k, bf16, 1, 1024, 768, 8, 2, 64, 40, true, false, false}, 6},
      {{q4_k, q6_k, f16, 1, 2304, 512, 4, 2, 128, 40, true, true, true}, 7},
      {{q8_0, q8_0, f32, 3, 192, 320, 4, 2, 64, 2, false, false, false}, 8},
      {{q4_0, q4_0, f16, 20, 320, 320, 4, 2, 64, 2, true, false, true}, 10},
      {{tq2_0, tq2_0, bf16, 1, 256, 256, 4, 4, 128, 40, true, false, false}, 7},  // a head is half a group of x
      {{one_bit, one_bit, bf16, 1, 256, 512, 2, 1, 128, 40, true, false, false}, 6},
      {{q2_0, q2_0, bf16, 8, 128, 192, 2, 1, 256, 1, true, false, false}, 10},
      {{q8_0, q8_0, bf16, 1, 256, 256, 4, 2, 64, 40, true, false, false, true}, 8},
      {{bf16, bf16, bf16, 1, 4352, 192, 4, 2, 64, 40, true, false, false}, 6},
      {{bf16, bf16, f16, 2, 192, 128, 2, 2, 64, 40, false, false, false}, 8},
  };
  for (Named& target : backends()) {
    if (target.name != "cuda") continue;
    for (const Case& each : cases) {
      Draw draw(base_seed());
      const Layers layers(draw, each.sizes);
      std::vector<size_t> wrong;
      const size_t nodes = record(*target.backend, layers.ops, draw.buffers(), wrong);
      INFO(dtype_name(each.sizes.of_q) << ", " << each.sizes.rows << " rows of " << each.sizes.hidden);
      CHECK(wrong.empty());
      CHECK(nodes <= kLayers * each.nodes + 3);
      INFO("nodes " << nodes);
      CHECK(nodes > 0);
    }
  }
}

TEST_CASE("a recording that joins operations tells of a slot outside the pool, and goes on once it is mended") {
  for (Named& target : backends()) {
    if (target.name != "cuda") continue;
    Backend& backend = *target.backend;
    Draw draw(base_seed());
    const Layers layers(draw, {DType::q8_0, DType::q8_0, DType::bf16, 1, 256, 256, 4, 2, 64, 2, true, false, false});
    std::vector<std::pair<void*, size_t>> blocks;
    std::vector<void*> places;
    void* slots = nullptr;
    for (Buffer& buffer : draw.buffers()) {
      blocks.emplace_back(backend.allocate(buffer.bytes.size()), buffer.bytes.size());
      backend.upload(blocks.back().first, buffer.bytes.data(), buffer.bytes.size());
      places.push_back(static_cast<char*>(blocks.back().first) + buffer.front);
      if (buffer.tensor() == layers.slots().data) slots = places.back();
    }
    std::vector<Op> moved;
    for (const Op& op : layers.ops) moved.push_back(rebase(op, draw.buffers(), places));
    for (const Op& op : moved) backend.run(op);
    const auto recording = backend.record([&] {
      for (const Op& op : moved) backend.repeat(op);
    });
    for (const int32_t slot : {0, 100000, 1, -2, 2}) {
      backend.upload(slots, &slot, sizeof slot);
      recording->replay();
      if (slot >= 0 && slot < 3)
        CHECK_NOTHROW(backend.synchronize());
      else
        CHECK_THROWS_WITH(backend.synchronize(), containing("kv_store: slot " + std::to_string(slot)));
    }
    for (const auto& [block, bytes] : blocks) backend.release(block, bytes);
  }
}
