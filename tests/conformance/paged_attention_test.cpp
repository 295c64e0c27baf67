// What the random draws of the paged cache do not compare: results in different company, and values that are wrong.
#include <cstring>

#include "kernels/error.h"
#include "tests/catch.h"
#include "tests/conformance/runner.h"

using namespace qeng;
using namespace qeng::conformance;

namespace {

struct Sequences {
  std::vector<int64_t> keys;     // of each
  std::vector<int64_t> queries;  // the last so many keys
};

// One call of the op for `which`, over a pool, queries [most keys of all, heads, dim] and page tables that they all
// share.
PagedAttention part_of(Draw& draw, const PagedAttention& all, const std::vector<double>& tables, int64_t most,
                       const Sequences& which, const std::vector<int64_t>& owner, const View& queries,
                       int64_t rows_each) {
  PagedAttention op = all;
  std::vector<double> cu{0}, lengths, pages;
  for (size_t s = 0; s < owner.size(); ++s) {
    cu.push_back(cu.back() + static_cast<double>(which.queries[s]));
    lengths.push_back(static_cast<double>(which.keys[s]));
    for (int64_t page = 0; page < most; ++page) pages.push_back(tables[static_cast<size_t>(owner[s] * most + page)]);
  }
  op.q = draw.empty(queries.dtype, {static_cast<int64_t>(cu.back()), queries.shape[1], queries.shape[2]});
  const size_t row = queries.bytes() / static_cast<size_t>(queries.shape[0]);
  for (size_t s = 0; s < owner.size(); ++s)
    for (int64_t i = 0; i < which.queries[s]; ++i)
      std::memcpy(
          op.q.as<char>() + (static_cast<size_t>(cu[s]) + static_cast<size_t>(i)) * row,
          queries.as<char>() + static_cast<size_t>(owner[s] * rows_each + which.keys[s] - which.queries[s] + i) * row,
          row);
  op.o = draw.empty_like(op.q);
  op.cu_q = draw.values(DType::i32, cu), op.lengths = draw.values(DType::i32, lengths),
  op.pages = draw.values(DType::i32, pages);
  op.pages.rank = 2, op.pages.shape[0] = static_cast<int64_t>(owner.size()), op.pages.shape[1] = most;
  return op;
}

std::vector<unsigned char> result_on(Backend& backend, const PagedAttention& op, Draw& draw) {
  const Outcome outcome = run_on(backend, op, draw.buffers());
  const View o = std::get<PagedAttention>(outcome.rebased).o;
  return {o.as<unsigned char>(), o.as<unsigned char>() + o.bytes()};
}

// part(which, owner): the bytes of o. `middle`: a key; `long_ones`: keys of two sequences that others are among.
template <class Part>
void check_company(const Part& part, size_t row, int64_t keys, std::initializer_list<int64_t> alone,
                   std::initializer_list<int64_t> chunks, int64_t middle, std::pair<int64_t, int64_t> long_ones) {
  const auto whole = part({{keys}, {keys}}, {0});
  const auto differs = [&](const std::vector<unsigned char>& got, size_t at, int64_t key, int64_t count) {
    return std::memcmp(got.data() + at * row, whole.data() + static_cast<size_t>(key) * row,
                       static_cast<size_t>(count) * row) != 0;
  };
  for (const int64_t key : alone) CHECK(!differs(part({{key + 1}, {1}}, {0}), 0, key, 1));
  for (const int64_t chunk : chunks)
    for (const int64_t begin : {int64_t{0}, middle - chunk, keys - chunk})
      CHECK(!differs(part({{begin + chunk}, {chunk}}, {0}), 0, begin, chunk));
  const auto mixed = part({{long_ones.first, long_ones.second, 1, 40}, {300, 5, 1, 1}}, {1, 0, 0, 1});
  CHECK(!differs(mixed, 300, long_ones.second - 5, 5));
  CHECK(!differs(mixed, 305, 0, 1));
  const auto other = part({{40}, {1}}, {1});
  CHECK(std::memcmp(other.data(), mixed.data() + 306 * row, row) == 0);
}

}  // namespace

TEST_CASE("paged attention gives a query the same bits alone, in a chunk and among other sequences") {
  for (Named& target : backends())
    for (const auto& [dtype, stored, window, dim, kv_heads, heads] :
         std::initializer_list<std::tuple<DType, DType, int, int64_t, int64_t, int64_t>>{
             {DType::f32, DType::f32, 0, 32, 2, 4},
             {DType::f32, DType::f32, 500, 32, 2, 4},
             {DType::f32, DType::bf16, 0, 32, 2, 4},
             {DType::f32, DType::f16, 0, 32, 2, 4},
             {DType::f32, DType::q8_0, 0, 32, 2, 4},
             {DType::bf16, DType::bf16, 0, 64, 2, 4},
             {DType::bf16, DType::bf16, 500, 128, 1, 10},
             {DType::bf16, DType::f16, 500, 128, 2, 4}}) {
      INFO(target.name << ", q in " << dtype_name(dtype) << ", " << dtype_name(stored) << ", window " << window
                       << ", heads of " << dim);
      Draw draw(base_seed());
      constexpr int64_t kKeys = 1100, kMost = (kKeys + 15) / 16;
      PagedAttention base;
      base.page_tokens = 16, base.window = window, base.scale = 0.125f;
      base.k_pool = draw.tensor(DType::f32, {2 * kMost * 16, kv_heads, dim}), base.v_pool = draw.like(base.k_pool);
      if (stored != DType::f32) {  // by KvStore, whose rounding does not matter here
        KvStore store{base.k_pool,
                      base.v_pool,
                      {},
                      draw.empty(stored, {2 * kMost * 16, kv_heads, dim}),
                      draw.empty(stored, {2 * kMost * 16, kv_heads, dim})};
        std::vector<double> slots(static_cast<size_t>(2 * kMost * 16));
        for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<double>(i);
        store.slots = draw.values(DType::i32, slots);
        const Outcome outcome = run_on(*target.backend, store, draw.buffers());
        const KvStore done = std::get<KvStore>(outcome.rebased);
        std::memcpy(store.k_pool.data, done.k_pool.data, store.k_pool.bytes());
        std::memcpy(store.v_pool.data, done.v_pool.data, store.v_pool.bytes());
        base.k_pool = store.k_pool, base.v_pool = store.v_pool;
      }
      const View queries = draw.tensor(dtype, {2 * kKeys, heads, dim});
      std::vector<double> tables;
      for (int64_t i = 0; i < 2 * kMost; ++i) tables.push_back(static_cast<double>((i * 5 + 3) % (2 * kMost)));
      const auto part = [&](const Sequences& which, const std::vector<int64_t>& owner) {
        const size_t held = draw.buffers().size();
        const auto result =
            result_on(*target.backend, part_of(draw, base, tables, kMost, which, owner, queries, kKeys), draw);
        while (draw.buffers().size() > held) draw.buffers().pop_back();
        return result;
      };
      const size_t row = static_cast<size_t>(heads * dim) * dtype_size(dtype);
      check_company(part, row, kKeys, {0, 63, 64, 500, 1023, 1024, 1099}, {7, 256}, 1020, {900, 1090});
    }
}

// Ascending levels, tiles of random codes and scales, and rows that some keys are taken from.
void draw_codes(Draw& draw, PagedAttention& op, int bits, int64_t slots, int64_t heads, int64_t dim, bool exact) {
  std::vector<double> levels;
  for (int i = 0; i < 1 << bits; ++i) levels.push_back((2 * i + 1 - (1 << bits)) * 3.0 / (1 << bits));
  const auto pool = [&] {
    const int64_t bytes = 2 * bits * dim + 32;
    const View tiles = draw.empty(DType::u8, {slots / 16, heads, bytes});
    for (int64_t tile = 0; tile < slots / 16 * heads; ++tile) {
      for (int64_t i = 0; i < bytes - 32; ++i)
        encode(tiles, tile * bytes + i, static_cast<double>(draw.integer(0, 255)));
      const View scales(tiles.as<unsigned char>() + (tile + 1) * bytes - 32, DType::f16, {16});
      for (int64_t i = 0; i < 16; ++i) encode(scales, i, draw.uniform(0.5, 1.5));
    }
    return tiles;
  };
  op.k_pool = pool(), op.v_pool = pool();
  op.k_levels = draw.values(DType::f32, levels), op.v_levels = draw.values(DType::f32, levels);
  if (!exact) return;
  op.exact_first = 20, op.exact_last = 90;
  op.k_exact = draw.tensor(DType::bf16, {slots, heads, dim}), op.v_exact = draw.like(op.k_exact);
}

TEST_CASE("paged attention over codes gives a query the same bits alone, in a chunk and among other sequences") {
  constexpr int64_t kKeys = 700, kMost = (kKeys + 15) / 16, kDim = 64;
  for (Named& target : backends())
    for (const DType dtype : {DType::bf16, DType::f32})
      for (const int bits : {2, 3, 4}) {
        const bool exact = bits != 3;
        const int window = bits == 2 ? 300 : 0;
        INFO(target.name << ", q in " << dtype_name(dtype) << ", " << bits << " bits, window " << window);
        Draw draw(base_seed());
        PagedAttention base;
        base.page_tokens = 16, base.window = window, base.scale = 0.125f;
        draw_codes(draw, base, bits, 2 * kMost * 16, 2, kDim, exact);
        const View queries = draw.tensor(dtype, {2 * kKeys, 4, kDim});
        std::vector<double> tables;
        for (int64_t i = 0; i < 2 * kMost; ++i) tables.push_back(static_cast<double>((i * 5 + 3) % (2 * kMost)));
        const auto part = [&](const Sequences& which, const std::vector<int64_t>& owner) {
          const size_t held = draw.buffers().size();
          PagedAttention op = part_of(draw, base, tables, kMost, which, owner, queries, kKeys);
          if (exact) op.exact = op.pages;
          const auto result = result_on(*target.backend, op, draw);
          while (draw.buffers().size() > held) draw.buffers().pop_back();
          return result;
        };
        const size_t row = 4 * kDim * static_cast<size_t>(dtype_size(dtype));
        check_company(part, row, kKeys, {0, 15, 16, 109, 255, 256, 699}, {3, 100}, 300, {500, 690});
      }
}

TEST_CASE("a slot, page or length that a paged cache does not have is an error that says where") {
  for (Named& target : backends()) {
    const auto message_of = [&](const std::function<void(PagedAttention&, KvStore&, CopyPages&)>& spoil, int which) {
      Draw draw(base_seed());
      KvStore store{draw.tensor(DType::f32, {3, 1, 16}), draw.tensor(DType::f32, {3, 1, 16}),
                    draw.values(DType::i32, {0, 1, 2}), draw.tensor(DType::f32, {32, 1, 16}),
                    draw.tensor(DType::f32, {32, 1, 16})};
      CopyPages copy{store.k_pool, draw.values(DType::i32, {0, 1}), 16};
      copy.pairs.rank = 2, copy.pairs.shape[0] = 1, copy.pairs.shape[1] = 2;
      PagedAttention attend{store.k,
                            store.k_pool,
                            store.v_pool,
                            draw.values(DType::i32, {1, 0}),
                            draw.values(DType::i32, {0, 3}),
                            draw.values(DType::i32, {20}),
                            draw.empty(DType::f32, {3, 1, 16}),
                            1,
                            0,
                            16};
      attend.pages.rank = 2, attend.pages.shape[0] = 1, attend.pages.shape[1] = 2;
      spoil(attend, store, copy);
      try {
        run_on(*target.backend, which == 0 ? Op(attend) : which == 1 ? Op(store) : Op(copy), draw.buffers());
      } catch (const Error& error) {
        return error.code + ": " + error.what();
      }
      return std::string("none");
    };
    INFO(target.name);
    CHECK(message_of([](auto&, auto&, auto&) {}, 0) == "none");
    CHECK(message_of([](auto& a, auto&, auto&) { encode(a.pages, 1, 2); }, 0).find("page 2") != std::string::npos);
    CHECK(message_of([](auto& a, auto&, auto&) { encode(a.lengths, 0, 2); }, 0).find("lengths[0] is 2") !=
          std::string::npos);
    CHECK(message_of([](auto& a, auto&, auto&) { encode(a.lengths, 0, 33); }, 0).find("lengths[0] is 33") !=
          std::string::npos);
    CHECK(message_of([](auto& a, auto&, auto&) { encode(a.cu_q, 1, 4); }, 0)
              .find("value: paged_attention: cu_q[1] is 4") == 0);
    CHECK(message_of([](auto&, auto& s, auto&) { encode(s.slots, 2, 32); }, 1).find("value: kv_store: slot 32") == 0);
    CHECK(message_of([](auto&, auto& s, auto&) { encode(s.slots, 2, -2); }, 1).find("value: kv_store: slot -2") == 0);
    CHECK(message_of([](auto&, auto&, auto& c) { encode(c.pairs, 1, 2); }, 2).find("value: copy_pages: page 2") == 0);
  }
}
