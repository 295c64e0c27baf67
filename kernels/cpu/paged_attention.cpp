// KvStore, CopyPages and PagedAttention: checks of slots and pages, and the division of the work. The arithmetic of
// attention is in isa/paged_attention.cpp.
#include "kernels/cpu/isa/attention/paged_attention.h"

#include <cstring>

#include "kernels/cpu/cpu.h"
#include "kernels/math/blocks/q8_0.h"

namespace qeng {
namespace {

// The row of a pool: its place in memory, whatever the dtype.
char* row_of(const View& pool, int64_t row, int64_t width) {
  return pool.as<char>() + row * static_cast<int64_t>(dtype_bytes(pool.dtype, width));
}

}  // namespace

void run(const KvStore& op, CpuContext& context) {
  const int64_t tokens = op.slots.elements(), slots = op.k_pool.shape[0], heads = op.k.shape[1];
  const int64_t widest = heads * std::max(op.k.shape[2], op.v ? op.v.shape[2] : 0);
  const int32_t* slot = op.slots.as<int32_t>();
  for (int64_t t = 0; t < tokens; ++t)
    if (slot[t] < -1 || slot[t] >= slots)
      fail("value", op.name, ": slot ", slot[t], " at position ", t, " is outside the pool of ", slots, " slots");
  float* wide = context.scratch.take<float>(context.threads * widest);
  parallel_for(context.threads, tokens, grain_rows(2 * widest), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      if (slot[t] < 0) continue;
      for (const auto& [from, pool] : {std::pair{op.k, op.k_pool}, std::pair{op.v, op.v_pool}}) {
        if (!from) continue;
        const int64_t width = heads * from.shape[2];
        char* to = row_of(pool, slot[t], width);
        if (pool.dtype != DType::q8_0) {
          context.isa->scale(float_type(from), at(from, t * width), float_type(pool), to, 1.0f, width);
        } else {
          float* x = wide + team_rank() * widest;
          context.isa->scale(float_type(from), at(from, t * width), isa::Float::f32, x, 1.0f, width);
          for (int64_t i = 0; i < width; i += 32) encode(x + i, nullptr, reinterpret_cast<blocks::Q8_0*>(to)[i / 32]);
        }
      }
    }
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

void check_values(const PagedAttention& op) {
  const int32_t *cu_q = op.cu_q.as<int32_t>(), *lengths = op.lengths.as<int32_t>(), *pages = op.pages.as<int32_t>();
  const int64_t sequences = op.lengths.elements(), tokens = op.q.shape[0], most = op.pages.shape[1];
  const int64_t pool_pages = op.k_pool.shape[0] / op.page_tokens;
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
  std::vector<isa::PagedTile> tiles;  // of every kv head
  for (int64_t s = 0; s < sequences; ++s)
    for (int64_t first = cu_q[s]; first < cu_q[s + 1]; first += step) {
      isa::PagedTile tile{float_type(op.q),
                          stored_type(op.k_pool),
                          nullptr,
                          op.k_pool.data,
                          op.v_pool.data,
                          nullptr,
                          op.pages.as<int32_t>() + s * op.pages.shape[1],
                          op.page_tokens,
                          kv_heads,
                          0,
                          group,
                          dim,
                          value_dim,
                          heads * dim,
                          heads * value_dim,
                          first,
                          std::min<int64_t>(step, cu_q[s + 1] - first),
                          lengths[s] - (cu_q[s + 1] - 1 - first),
                          op.window,
                          0,
                          0,
                          op.scale,
                          op.softcap,
                          nullptr,
                          nullptr,
                          nullptr};
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
