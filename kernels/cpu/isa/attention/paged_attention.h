// What the loops of paged attention (paged_attention.cpp of this folder) are given.
//
// The bits of a query's result depend on the query and its keys alone: keys are taken in tiles of kTileKeys counted
// from the sequence's first key, tiles in pieces of kPieceKeys with an online softmax of their own, and pieces are
// merged in their order. So it is the same whether one thread does all pieces or each has its own, and whatever other
// queries share the tile: a key that a query does not see adds exactly 0 to its (finite) sums.
#pragma once
#include "kernels/cpu/isa/attention/attention.h"
#include "kernels/math/kv_codes.h"

namespace qeng::isa {

constexpr int64_t kPieceKeys = 16 * kTileKeys;  // 1024 keys of a head are 256 KB in bf16: worth handing to a thread

enum class Stored : uint8_t { f32, bf16, f16, q8_0 };

// The levels of a width of codes, again and again up to 16, and half ways to the next ones.
struct CodeTable {
  alignas(64) float levels[16], half_ways[16];
};
struct CodeTables {
  kv_codes::Shape shape;
  CodeTable narrow, wide;
};

// The keys, or the values, of all kv heads.
struct PagedSide {
  int64_t dim;
  Stored stored;  // of plain rows
  const void* pool;
  const CodeTables* codes;  // null: the pool has plain rows
  Stored exact_stored;
  const void* exact;  // the rows that are not coded; null: none
};

// Queries first .. first + queries of a sequence, of which query first + i sees keys below first_end + i, at most
// `window` of them (window 0: all). q and o point at the first head of the group in row 0.
struct PagedTile {
  Float type;  // of q and o
  PagedSide keys, values;
  const void* q;
  void* o;
  const int32_t *pages, *exact_pages;  // of the sequence; exact_pages null: all keys are taken from the pools
  int64_t exact_first, exact_last;
  int64_t page_tokens, kv_heads, kv_head, group;
  int64_t q_stride, o_stride;  // elements from one token to the next
  int64_t first, queries, first_end, window;
  int64_t piece, pieces;  // the first, and how many
  float scale, softcap;
  const float* sinks;  // [group], or null
  float* scratch;      // paged_scratch floats, 64-byte aligned
  float*
      partial;  // null: the pieces are all there are and o is written. Else each piece leaves its partial_size floats
};
constexpr int64_t paged_scratch(int64_t group, int64_t head_dim, int64_t value_dim) {
  const int64_t rows = tile_queries(group) * group, dim = padded(head_dim), wide = padded(value_dim);
  return rows * (dim + 2 * wide + 2 * kTileKeys + 64) + kTileKeys * (dim + (dim > wide ? dim : wide) + 3);
}
// A row of f32 to its slot of a tile of codes, as keys or as values. codes: memory of [dim]
struct EncodeCodes {
  const CodeTables* tables;
  bool values;
};
// What a piece leaves for `rows` rows: sums [rows, padded(value_dim)], largest score [rows], sum of exponentials
// [rows].
constexpr int64_t partial_size(int64_t rows, int64_t value_dim) { return rows * (padded(value_dim) + 2); }

}  // namespace qeng::isa
