// KvStore, CopyPages and PagedAttention: checks of slots and pages, and the division of the work. The arithmetic of
// attention is in isa/paged_attention.cpp.
#include "kernels/cpu/isa/attention/paged_attention.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu.h"
#include "kernels/kv_pools.h"
#include "kernels/math/blocks/q8_0.h"

namespace qeng {
namespace {

// The row of a pool: its place in memory, whatever the dtype.
char* row_of(const View& pool, int64_t row, int64_t width) {
  return pool.as<char>() + row * static_cast<int64_t>(dtype_bytes(pool.dtype, width));
}

}  // namespace

namespace {

isa::CodeTables code_tables(const View& pool, const View& levels, int64_t dim) {
  isa::CodeTables tables{};
  if (!levels) return tables;
  tables.shape = code_shape(pool, levels, dim);
  const auto fill = [](const float* from, int count, isa::CodeTable& table) {
    for (int i = 0; i < 16; ++i) {
      const int at = i % count;
      table.levels[i] = from[at];
      table.half_ways[i] = 0.5f * (from[at] + from[at + 1 < count ? at + 1 : at]);
    }
  };
  const int count = 1 << tables.shape.bits;
  fill(levels.as<float>(), count, tables.narrow);
  if (tables.shape.wide > 0) fill(levels.as<float>() + count, 2 * count, tables.wide);
  return tables;
}

// The tokens that are stored, so that those of a tile of codes follow each other: groups of them begin at `starts`.
struct Storing {
  std::vector<int64_t> tokens, starts;
};
Storing storing(const KvStore& op) {
  Storing storing;
  const int32_t* slot = op.slots.as<int32_t>();
  for (int64_t t = 0; t < op.slots.elements(); ++t)
    if (slot[t] >= 0) storing.tokens.push_back(t);
  std::stable_sort(storing.tokens.begin(), storing.tokens.end(),
                   [&](int64_t a, int64_t b) { return slot[a] / kv_codes::kLanes < slot[b] / kv_codes::kLanes; });
  for (size_t i = 0; i < storing.tokens.size(); ++i)
    if (i == 0 || slot[storing.tokens[i]] / kv_codes::kLanes != slot[storing.tokens[i - 1]] / kv_codes::kLanes)
      storing.starts.push_back(static_cast<int64_t>(i));
  storing.starts.push_back(static_cast<int64_t>(storing.tokens.size()));
  return storing;
}

}  // namespace

void run(const KvStore& op, CpuContext& context) {
  const int64_t slots = pool_slots(op.k_pool, op.k_levels), heads = op.k.shape[1];
  const int64_t widest = heads * std::max(op.k.shape[2], op.v ? op.v.shape[2] : 0);
  const int32_t* slot = op.slots.as<int32_t>();
  for (int64_t t = 0; t < op.slots.elements(); ++t)
    if (slot[t] < -1 || slot[t] >= slots)
      fail("value", op.name, ": slot ", slot[t], " at position ", t, " is outside the pool of ", slots, " slots");
  const Storing groups = storing(op);
  const struct {
    View from, pool, levels;
    isa::CodeTables tables;
    bool values;
  } sides[] = {{op.k, op.k_pool, op.k_levels, code_tables(op.k_pool, op.k_levels, op.k.shape[2]), false},
               {op.v, op.v_pool, op.v_levels, code_tables(op.v_pool, op.v_levels, op.v.shape[2]), true}};
  float* wide = context.scratch.take<float>(context.threads * widest);
  auto* codes = context.scratch.take<uint32_t>(context.threads * widest);
  const auto store = [&](int64_t t, const auto& side) {
    const int64_t width = heads * side.from.shape[2];
    const void* from = at(side.from, t * width);
    if (!side.levels && side.pool.dtype != DType::q8_0)
      return context.isa->scale(float_type(side.from), from, float_type(side.pool), row_of(side.pool, slot[t], width),
                                1.0f, width);
    const float* x = static_cast<const float*>(from);
    if (side.from.dtype != DType::f32) {
      float* copy = wide + team_rank() * widest;
      context.isa->scale(float_type(side.from), from, isa::Float::f32, copy, 1.0f, width);
      x = copy;
    }
    if (side.levels) {
      const isa::EncodeCodes how{&side.tables, side.values};
      char* tiles = side.pool.template as<char>() + slot[t] / kv_codes::kLanes * heads * side.pool.shape[2];
      return context.isa->encode_codes(x, how, heads, slot[t] % kv_codes::kLanes, tiles, codes + team_rank() * widest);
    }
    auto* blocks = reinterpret_cast<blocks::Q8_0*>(row_of(side.pool, slot[t], width));
    for (int64_t i = 0; i < width; i += 32) encode(x + i, nullptr, blocks[i / 32]);
  };
  const int64_t count = static_cast<int64_t>(groups.starts.size()) - 1;
  const int64_t tokens_each = static_cast<int64_t>(groups.tokens.size()) / std::max<int64_t>(1, count) + 1;
  parallel_for(context.threads, count, grain_rows(2 * widest * tokens_each), [&](int64_t begin, int64_t end) {
    for (int64_t i = groups.starts[static_cast<size_t>(begin)]; i < groups.starts[static_cast<size_t>(end)]; ++i)
      for (const auto& side : sides)
        if (side.from) store(groups.tokens[static_cast<size_t>(i)], side);
  });
}

void run(const CopyPages& op, CpuContext& context) {
  const int32_t* pairs = op.pairs.as<int32_t>();
  const int64_t pages = op.pool.shape[0] / op.page_tokens, count = op.pairs.shape[0];
  for (int64_t i = 0; i < 2 * count; ++i)
    if (pairs[i] < 0 || pairs[i] >= pages)
      fail("value", op.name, ": page ", pairs[i], " of pair ", i / 2, " is outside the pool of ", pages, " pages");
  const int64_t width = op.page_tokens * op.pool.shape[1] * op.pool.shape[2];
  parallel_for(context.threads, count, grain_rows(width), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      std::memcpy(row_of(op.pool, pairs[2 * i + 1], width), row_of(op.pool, pairs[2 * i], width),
                  dtype_bytes(op.pool.dtype, width));
  });
}

namespace {

// That the keys which queries of a sequence take exactly, from key `first` on, have pages there.
void check_exact(const PagedAttention& op, int64_t s, int64_t first) {
  const int32_t *cu_q = op.cu_q.as<int32_t>(), *lengths = op.lengths.as<int32_t>(), *pages = op.exact.as<int32_t>();
  const View& pool = op.k_exact ? op.k_exact : op.v_exact;
  if (!pool) return;
  const int64_t most = op.pages.shape[1], pool_pages = pool.shape[0] / op.page_tokens;
  const auto check = [&](int64_t begin, int64_t end) {
    for (int64_t page = begin / op.page_tokens; page * op.page_tokens < end; ++page)
      if (pages[s * most + page] < 0 || pages[s * most + page] >= pool_pages)
        fail("value", op.name, ": exact page ", pages[s * most + page], " of sequence ", s, " is outside the pool of ",
             pool_pages, " pages");
  };
  const int64_t seen = lengths[s] - (cu_q[s + 1] - cu_q[s]) + 1;
  if (first < op.exact_first) check(first, std::min<int64_t>(op.exact_first, lengths[s]));
  if (op.exact_last > 0) check(std::max<int64_t>(first, seen - op.exact_last), lengths[s]);
}

void check_values(const PagedAttention& op) {
  const int32_t *cu_q = op.cu_q.as<int32_t>(), *lengths = op.lengths.as<int32_t>(), *pages = op.pages.as<int32_t>();
  const int64_t sequences = op.lengths.elements(), tokens = op.q.shape[0], most = op.pages.shape[1];
  const int64_t pool_pages = pool_slots(op.k_pool, op.k_levels) / op.page_tokens;
  if (cu_q[0] != 0) fail("value", op.name, ": cu_q[0] is ", cu_q[0], ", expected 0");
  for (int64_t s = 0; s < sequences; ++s) {
    if (cu_q[s + 1] < cu_q[s] || cu_q[s + 1] > tokens)
      fail("value", op.name, ": cu_q[", s + 1, "] is ", cu_q[s + 1], "; expected ascending from 0 to at most ", tokens);
    const int64_t queries = cu_q[s + 1] - cu_q[s];
    if (queries == 0) continue;
    if (lengths[s] < queries || lengths[s] > most * op.page_tokens)
      fail("value", op.name, ": lengths[", s, "] is ", lengths[s], "; expected at least the ", queries,
           " queries and at most the ", most * op.page_tokens, " tokens of ", most, " pages");
    const int64_t seen = lengths[s] - queries + 1, first = op.window > 0 && seen > op.window ? seen - op.window : 0;
    for (int64_t page = first / op.page_tokens; page * op.page_tokens < lengths[s]; ++page)
      if (pages[s * most + page] < 0 || pages[s * most + page] >= pool_pages)
        fail("value", op.name, ": page ", pages[s * most + page], " of sequence ", s, " is outside the pool of ",
             pool_pages, " pages");
    if (op.exact) check_exact(op, s, first);
  }
}

isa::Stored stored_type(const View& pool) {
  switch (pool.dtype) {
    case DType::f32: return isa::Stored::f32;
    case DType::bf16: return isa::Stored::bf16;
    case DType::f16: return isa::Stored::f16;
    default: return isa::Stored::q8_0;
  }
}

// Memory for the sums of pieces that threads work on at once: above it, one thread does the pieces of a tile.
constexpr int64_t kPartialFloats = int64_t{8} << 20;

isa::PagedSide side_of(const View& pool, const View& exact, const isa::CodeTables& tables, int64_t dim) {
  const bool codes = tables.shape.dim > 0;
  return {dim,
          codes ? isa::Stored::f32 : stored_type(pool),
          pool.data,
          codes ? &tables : nullptr,
          exact ? stored_type(exact) : isa::Stored::f32,
          exact.data};
}

struct PagedItem {
  int64_t tile, piece, pieces;
  float* partial;
};

}  // namespace

void run(const PagedAttention& op, CpuContext& context) {
  check_values(op);
  const int32_t *cu_q = op.cu_q.as<int32_t>(), *lengths = op.lengths.as<int32_t>();
  const int64_t sequences = op.lengths.elements(), heads = op.q.shape[1], kv_heads = op.k_pool.shape[1],
                group = heads / kv_heads;
  const int64_t dim = op.q.shape[2], value_dim = op.o.shape[2], step = isa::tile_queries(group);
  const isa::CodeTables k_tables = code_tables(op.k_pool, op.k_levels, dim),
                        v_tables = code_tables(op.v_pool, op.v_levels, value_dim);
  const isa::PagedSide keys = side_of(op.k_pool, op.k_exact, k_tables, dim),
                       values = side_of(op.v_pool, op.v_exact, v_tables, value_dim);
  std::vector<isa::PagedTile> tiles;  // of every kv head
  for (int64_t s = 0; s < sequences; ++s)
    for (int64_t first = cu_q[s]; first < cu_q[s + 1]; first += step) {
      isa::PagedTile tile{};
      tile.type = float_type(op.q), tile.keys = keys, tile.values = values;
      tile.pages = op.pages.as<int32_t>() + s * op.pages.shape[1];
      if (op.k_exact || op.v_exact) tile.exact_pages = op.exact.as<int32_t>() + s * op.pages.shape[1];
      tile.exact_first = op.exact_first, tile.exact_last = op.exact_last;
      tile.page_tokens = op.page_tokens, tile.kv_heads = kv_heads, tile.group = group;
      tile.q_stride = heads * dim, tile.o_stride = heads * value_dim;
      tile.first = first, tile.queries = std::min<int64_t>(step, cu_q[s + 1] - first);
      tile.first_end = lengths[s] - (cu_q[s + 1] - 1 - first);
      tile.window = op.window, tile.scale = op.scale, tile.softcap = op.softcap;
      if (op.window > 0) tile.piece = std::max<int64_t>(0, tile.first_end - op.window) / isa::kPieceKeys;
      const int64_t end = tile.first_end + tile.queries - 1;
      tile.pieces = (end + isa::kPieceKeys - 1) / isa::kPieceKeys - tile.piece;
      for (int64_t kv = 0; kv < kv_heads; ++kv) {
        tile.kv_head = kv, tile.q = at(op.q, kv * group * dim), tile.o = at(op.o, kv * group * value_dim);
        if (op.sinks) tile.sinks = op.sinks.as<float>() + kv * group;
        tiles.push_back(tile);
      }
    }

  int64_t work = 0;  // elements of K and V that are read
  for (const isa::PagedTile& tile : tiles)
    work += (dim + value_dim) * std::min(tile.pieces * isa::kPieceKeys, tile.first_end + tile.queries);
  const int threads = work < 4 * kGrainElements ? 1 : context.threads;

  // Few tiles of many keys (decoding at a long context) are divided further, so that all threads find work.
  std::vector<PagedItem> items;
  std::vector<size_t> divided;
  const bool few = static_cast<int64_t>(tiles.size()) < 8 * threads;
  int64_t partials = 0;
  for (size_t i = 0; i < tiles.size(); ++i) {
    const isa::PagedTile& tile = tiles[i];
    const int64_t size = isa::partial_size(tile.queries * group, value_dim);
    if (few && threads > 1 && tile.pieces > 1 && partials + tile.pieces * size <= kPartialFloats) {
      divided.push_back(i);
      partials += tile.pieces * size;
    } else {
      items.push_back({static_cast<int64_t>(i), tile.piece, tile.pieces, nullptr});
    }
  }
  const int64_t scratch_size = isa::paged_scratch(group, dim, value_dim);
  float* scratch = context.scratch.take<float>(threads * scratch_size);
  float* partial = context.scratch.take<float>(partials);
  for (const size_t i : divided) {
    isa::PagedTile& tile = tiles[i];
    tile.partial = partial;
    for (int64_t piece = 0; piece < tile.pieces; ++piece, partial += isa::partial_size(tile.queries * group, value_dim))
      items.push_back({static_cast<int64_t>(i), tile.piece + piece, 1, partial});
  }
  // From the longest on, so that the last to be handed out is small; among equals as they are, page after page.
  std::stable_sort(items.begin(), items.end(),
                   [](const PagedItem& a, const PagedItem& b) { return a.pieces > b.pieces; });
  parallel_each(threads, static_cast<int64_t>(items.size()), [&](int64_t i) {
    const PagedItem& item = items[static_cast<size_t>(i)];
    isa::PagedTile tile = tiles[static_cast<size_t>(item.tile)];
    tile.piece = item.piece, tile.pieces = item.pieces, tile.partial = item.partial;
    tile.scratch = scratch + team_rank() * scratch_size;
    context.isa->paged_attention(tile);
  });
  parallel_each(threads, static_cast<int64_t>(divided.size()), [&](int64_t i) {
    isa::PagedTile tile = tiles[divided[static_cast<size_t>(i)]];
    tile.scratch = scratch + team_rank() * scratch_size;
    context.isa->merge_pieces(tile);
  });
  const int64_t end = cu_q[sequences];
  if (end < op.q.shape[0])
    std::memset(at(op.o, end * heads * value_dim), 0,
                static_cast<size_t>((op.q.shape[0] - end) * heads * value_dim) * dtype_size(op.o.dtype));
}

}  // namespace qeng
