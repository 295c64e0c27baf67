// Attention over a paged cache: the tile of attention.cpp with keys and values gathered from pages, in one order of
// sums for one query as for many.
#include "kernels/cpu/isa/attention/paged_attention.h"

#include "kernels/cpu/isa/simd/tile.h"
#include "kernels/math/blocks/q8_0.h"

namespace qeng::isa::QENG_ISA {
namespace {

using blocks::Q8_0;

// A row of the pool to f32, with zeros up to padded(dim).
template <class T>
inline void gather_stored(const T* from, int64_t dim, float* to) {
  gather_row(from, dim, 1.0f, to);
}
inline void gather_stored(const Q8_0* from, int64_t dim, float* to) {
  for (int64_t i = 0; i < dim; i += 32, ++from) {
    const Vec scale = splat(to_f32(from->d));
    for (int64_t j = 0; j < 32; j += kWidth) store(to + i + j, load(from->qs + j) * scale);
  }
}

template <class T>
constexpr int64_t stored_elements(int64_t dim) {
  return sizeof(T) == sizeof(Q8_0) ? dim / 32 : dim;
}

// A tile of keys or values to f32: `count` rows from key `begin` on, then zeros up to padded(count). Rows lie far
// apart, where the hardware does not prefetch, so the rows to come are asked for here.
template <class T>
inline void gather_pages(const PagedTile& tile, const void* pool, int64_t row_dim, int64_t begin, int64_t count,
                         float* to) {
  constexpr int64_t kAhead = 8;
  const int64_t width = stored_elements<T>(row_dim), dim = padded(row_dim);
  const int64_t bytes = width * static_cast<int64_t>(sizeof(T));
  const T* rows[kTileKeys];
  for (int64_t j = 0; j < count; ++j) {
    const int64_t key = begin + j, page = tile.pages[key / tile.page_tokens];
    rows[j] = static_cast<const T*>(pool) +
              ((page * tile.page_tokens + key % tile.page_tokens) * tile.kv_heads + tile.kv_head) * width;
  }
  for (int64_t j = 0; j < count; ++j) {
    if (j + kAhead < count)
      for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(reinterpret_cast<const char*>(rows[j + kAhead]) + i);
    gather_stored(rows[j], row_dim, to + j * dim);
  }
  clear(to + count * dim, (padded(count) - count) * dim);
}

// Sums, tops and totals of rows: of a piece, or of all pieces so far.
struct Sums {
  float *o, *top, *total;
};
inline Sums sums_at(float* memory, int64_t rows, int64_t dim) {
  return {memory, memory + rows * dim, memory + rows * dim + rows};
}
inline void clear_sums(const Sums& sums, int64_t rows, int64_t dim) {
  clear(sums.o, rows * dim);
  for (int64_t r = 0; r < rows; ++r) sums.top[r] = kNothing, sums.total[r] = 0;
}

// all += piece. Not inlined, so that it is one piece of code that rounds one way. Merging into nothing gives the piece.
__attribute__((noinline)) void merge(const Sums& all, const Sums& piece, int64_t rows, int64_t dim) {
  for (int64_t r = 0; r < rows; ++r) {
    const float top = all.top[r] > piece.top[r] ? all.top[r] : piece.top[r];
    const float a = __builtin_expf(all.top[r] - top), b = __builtin_expf(piece.top[r] - top);
    all.top[r] = top;
    all.total[r] = all.total[r] * a + piece.total[r] * b;
    for (int64_t d = r * dim; d < r * dim + dim; d += kWidth)
      store(all.o + d, fma(load(piece.o + d), splat(b), load(all.o + d) * splat(a)));
  }
}

template <class T>
void write_rows(const PagedTile& tile, const Sums& sums) {
  const int64_t wide = padded(tile.value_dim);
  for (int64_t r = 0; r < tile.queries * tile.group; ++r) {
    const int64_t token = tile.first + r / tile.group, head = r % tile.group;
    const Vec factor = splat(finish_row(tile.sinks ? tile.sinks + head : nullptr, sums.top[r], sums.total[r]));
    T* to = static_cast<T*>(tile.o) + token * tile.o_stride + head * tile.value_dim;
    for (int64_t d = 0; d < tile.value_dim; d += kWidth)
      store(to + d, load(sums.o + r * wide + d) * factor, tile.value_dim - d);
  }
}
void write_rows(const PagedTile& tile, const Sums& sums) {
  tile.type == Float::bf16 ? write_rows<bf16>(tile, sums) : write_rows<float>(tile, sums);
}

template <class T>
void attend(const PagedTile& tile, float* q, float* scratch, const Sums& all) {
  const int64_t dim = padded(tile.head_dim), wide = padded(tile.value_dim), rows = tile.queries * tile.group;
  const int64_t last_end = tile.first_end + tile.queries - 1;  // keys that the last query sees
  float* scores = scratch;
  float* keys = scores + rows * kTileKeys;  // transposed: [dim, kTileKeys]
  float* values = keys + kTileKeys * dim;   // first the keys before they are transposed
  const Sums own = sums_at(values + kTileKeys * (dim > wide ? dim : wide), rows, wide);
  const int64_t lowest = tile.window > 0 && tile.first_end > tile.window ? tile.first_end - tile.window : 0;
  for (int64_t i = 0; i < tile.pieces; ++i) {
    const int64_t start = (tile.piece + i) * kPieceKeys;
    const int64_t end = start + kPieceKeys < last_end ? start + kPieceKeys : last_end;
    const Sums piece = tile.partial ? sums_at(tile.partial + i * partial_size(rows, tile.value_dim), rows, wide) : own;
    clear_sums(piece, rows, wide);
    for (int64_t begin = start; begin < end; begin += kTileKeys) {
      if (begin + kTileKeys <= lowest) continue;
      const int64_t count = end - begin < kTileKeys ? end - begin : kTileKeys;
      gather_pages<T>(tile, tile.k_pool, tile.head_dim, begin, count, values);
      transpose_keys(values, dim, keys, padded(count));
      gather_pages<T>(tile, tile.v_pool, tile.value_dim, begin, count, values);
      multiply<false>(rows, tile.head_dim, padded(count), q, dim, 1, keys, kTileKeys, scores, kTileKeys);
      for (int64_t r = 0; r < rows; ++r) {
        int64_t high = tile.first_end + r / tile.group, low = tile.window > 0 ? high - tile.window : 0;
        high = high - begin < count ? high - begin : count;
        low = low > begin ? low - begin : 0;
        cap_row(scores + r * kTileKeys, tile.softcap);
        softmax_row(scores + r * kTileKeys, {low, high}, piece.top[r], piece.total[r], piece.o + r * wide, wide);
      }
      multiply<true>(rows, count, wide, scores, kTileKeys, 1, values, wide, piece.o, wide);
    }
    if (!tile.partial) merge(all, piece, rows, wide);
  }
}

void paged_attention(const PagedTile& tile) {
  const int64_t dim = padded(tile.head_dim), wide = padded(tile.value_dim), rows = tile.queries * tile.group;
  float* q = tile.scratch;
  const Sums all = sums_at(q + rows * dim, rows, wide);
  float* rest = q + rows * (dim + wide + 32);
  for_type(tile.type, [&](auto tag) {
    using T = decltype(tag);
    for (int64_t r = 0; r < rows; ++r)
      gather_row(static_cast<const T*>(tile.q) + (tile.first + r / tile.group) * tile.q_stride +
                     r % tile.group * tile.head_dim,
                 tile.head_dim, tile.scale, q + r * dim);
  });
  clear_sums(all, rows, wide);
  switch (tile.stored) {
    case Stored::f32: attend<float>(tile, q, rest, all); break;
    case Stored::bf16: attend<bf16>(tile, q, rest, all); break;
    case Stored::f16: attend<f16>(tile, q, rest, all); break;
    case Stored::q8_0: attend<Q8_0>(tile, q, rest, all); break;
  }
  if (!tile.partial) write_rows(tile, all);
}

// o of a tile whose pieces have left their sums in tile.partial.
void merge_pieces(const PagedTile& tile) {
  const int64_t wide = padded(tile.value_dim), rows = tile.queries * tile.group;
  const Sums all = sums_at(tile.scratch, rows, wide);
  clear_sums(all, rows, wide);
  for (int64_t i = 0; i < tile.pieces; ++i)
    merge(all, sums_at(tile.partial + i * partial_size(rows, tile.value_dim), rows, wide), rows, wide);
  write_rows(tile, all);
}

}  // namespace

void fill_paged_attention(Table& table) {
  table.paged_attention = paged_attention;
  table.merge_pieces = merge_pieces;
}

}  // namespace qeng::isa::QENG_ISA
