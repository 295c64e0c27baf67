// Attention over a paged cache: the tile of attention.cpp with keys and values gathered from pages, in one order of
// sums for one query as for many.
#include "kernels/cpu/isa/attention/paged_attention.h"

#include "kernels/cpu/isa/attention/kv_codes.h"
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

// The place of key `key` of the sequence in a pool; -1: no query needs it.
inline int64_t slot_of(const PagedTile& tile, const int32_t* pages, int64_t key) {
  const int64_t page = pages[key / tile.page_tokens];
  return page < 0 ? -1 : page * tile.page_tokens + key % tile.page_tokens;
}

// A tile of keys or values to f32: `count` rows from key `begin` on. Rows lie far apart, where the hardware does not
// prefetch, so the rows to come are asked for here.
template <class T>
void gather_pages(const PagedTile& tile, const void* pool, const int32_t* pages, int64_t row_dim, int64_t begin,
                  int64_t count, float* to) {
  constexpr int64_t kAhead = 8;
  const int64_t width = stored_elements<T>(row_dim), dim = padded(row_dim);
  const int64_t bytes = width * static_cast<int64_t>(sizeof(T));
  const T* rows[kTileKeys];
  for (int64_t j = 0; j < count; ++j) {
    const int64_t slot = slot_of(tile, pages, begin + j);
    rows[j] = slot < 0 ? nullptr : static_cast<const T*>(pool) + (slot * tile.kv_heads + tile.kv_head) * width;
  }
  for (int64_t j = 0; j < count; ++j) {
    if (j + kAhead < count)
      for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(reinterpret_cast<const char*>(rows[j + kAhead]) + i);
    if (rows[j])
      gather_stored(rows[j], row_dim, to + j * dim);
    else
      clear(to + j * dim, dim);
  }
}
void gather_rows(const PagedTile& tile, Stored stored, const void* pool, const int32_t* pages, int64_t row_dim,
                 int64_t begin, int64_t count, float* to) {
  switch (stored) {
    case Stored::f32: return gather_pages<float>(tile, pool, pages, row_dim, begin, count, to);
    case Stored::bf16: return gather_pages<bf16>(tile, pool, pages, row_dim, begin, count, to);
    case Stored::f16: return gather_pages<f16>(tile, pool, pages, row_dim, begin, count, to);
    case Stored::q8_0: return gather_pages<Q8_0>(tile, pool, pages, row_dim, begin, count, to);
  }
}

// The levels of `count` coded keys from `begin` on, a multiple of 16, and their scales: visit(tile of 16, first key
// of it, its scales). Scales that no key has are 0, whatever lies there.
template <class Visit>
void each_code_tile(const PagedTile& tile, const PagedSide& side, int64_t begin, int64_t count, float* scales,
                    Visit visit) {
  const int64_t bytes = kv_codes::tile_bytes(side.codes->shape);
  const auto place = [&](int64_t j) -> const char* {
    if (j >= count) return nullptr;
    const int64_t slot = slot_of(tile, tile.pages, begin + j);
    return slot < 0 ? nullptr
                    : static_cast<const char*>(side.pool) + (slot / kLanes * tile.kv_heads + tile.kv_head) * bytes;
  };
  for (int64_t j = 0; j < count; j += kLanes) {
    if (const char* next = place(j + kLanes))
      for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(next + i);
    const char* at = place(j);
    visit(reinterpret_cast<const uint32_t*>(at), j, scales + j);
    for (int64_t lane = at ? count - j : 0; lane < kLanes; ++lane) scales[j + lane] = 0;
  }
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
  const int64_t wide = padded(tile.values.dim);
  for (int64_t r = 0; r < tile.queries * tile.group; ++r) {
    const int64_t token = tile.first + r / tile.group, head = r % tile.group;
    const Vec factor = splat(finish_row(tile.sinks ? tile.sinks + head : nullptr, sums.top[r], sums.total[r]));
    T* to = static_cast<T*>(tile.o) + token * tile.o_stride + head * tile.values.dim;
    for (int64_t d = 0; d < tile.values.dim; d += kWidth)
      store(to + d, load(sums.o + r * wide + d) * factor, tile.values.dim - d);
  }
}
void write_rows(const PagedTile& tile, const Sums& sums) {
  tile.type == Float::bf16 ? write_rows<bf16>(tile, sums) : write_rows<float>(tile, sums);
}

// Some keys of a tile, counted from its first one; the columns of scores that they have, and the rows that take them.
struct Part {
  int64_t key, keys, column, row, rows;
};
// Where the keys of a tile are read: as codes, but for those below `first`, and as exact rows. A query that sees `seen`
// keys takes [0, exact_first) and [seen - exact_last, seen) exactly, so those below `first` are exact for all rows. Keys
// that are in both parts have two columns, and a row a score in one of them.
struct Sources {
  Part codes, exact;
  int64_t first, count;
  bool mixed() const { return codes.keys > 0 && exact.keys > 0; }
  int64_t stride() const { return mixed() ? 2 * kTileKeys : kTileKeys; }
  int64_t columns() const { return mixed() ? exact.column + padded(exact.keys) : kTileKeys; }
};
inline int64_t within(int64_t key, int64_t count) { return key < 0 ? 0 : key < count ? key : count; }
inline Sources sources_of(const PagedTile& tile, int64_t begin, int64_t count) {
  const int64_t rows = tile.queries * tile.group;
  if (!tile.exact_pages) return {{0, count, 0, 0, rows}, {}, 0, count};
  const int64_t first = within(tile.exact_first - begin, count);
  const int64_t tail = tile.first_end - tile.exact_last - begin;  // of the first query; each has it one further
  const int64_t last = within(tail + tile.queries - 1, count), lowest = within(tail, count);
  if (first >= last) return {{}, {0, count, 0, 0, rows}, 0, count};
  const int64_t with_none = first > 0 ? 0 : within(1 - tail, tile.queries) * tile.group;
  const Part codes{0, last, 0, with_none, rows - with_none};
  const int64_t exact = lowest < first ? first : lowest;
  if (exact == count) return {codes, {}, first, count};
  const int64_t key = exact / 16 * 16, with_some = within(count - tail, tile.queries) * tile.group;
  return {codes, {key, count - key, padded(last), 0, with_some}, first, count};
}

// Calls f(codes, exact) for runs of rows, with what these take of the two parts: of a mixed tile each row takes a key from
// one of them, and rows that follow each other take nearly the same.
template <class F>
void each_rows(const PagedTile& tile, const Sources& sources, int64_t begin, F f) {
  constexpr int64_t kQueries = 8;
  if (!sources.mixed()) return f(sources.codes, sources.exact);
  for (int64_t query = 0; query < tile.queries; query += kQueries) {
    const int64_t end = query + kQueries < tile.queries ? query + kQueries : tile.queries;
    const int64_t tail = tile.first_end + query - tile.exact_last - begin;
    const auto of_these = [&](Part part, int64_t key, int64_t past) {  // its rows among these, and its keys key .. past
      const int64_t low = query * tile.group, high = end * tile.group;
      const int64_t row = part.row > low ? part.row : low;
      const int64_t row_end = part.row + part.rows < high ? part.row + part.rows : high;
      return Part{key, past - key, part.column + key - part.key, row, row_end > row ? row_end - row : 0};
    };
    const Part &codes = sources.codes, &exact = sources.exact;
    const int64_t last = within(tail + end - query - 1, codes.keys), lowest = within(tail, sources.count) / 16 * 16;
    f(of_these(codes, codes.key, last > sources.first ? last : sources.first),
      of_these(exact, lowest > exact.key ? lowest : exact.key, sources.count));
  }
}

// The memory of a tile's arithmetic. keys: [dim, kTileKeys]; values: keys too, before; factors: of columns of scores
struct PagedWork {
  float *scores, *scales, *factors, *keys, *values;
};

void decode_keys(const PagedTile& tile, const PagedWork& work, const Sources& sources, int64_t begin) {
  const PagedSide& side = tile.keys;
  const int64_t dim = padded(side.dim);
  each_code_tile(tile, side, begin, sources.codes.keys, work.scales,
                 [&](const uint32_t* codes, int64_t j, float* scale) {
                   if (codes) return unpack_keys(codes, *side.codes, work.keys + j, kTileKeys, scale);
                   for (int64_t d = 0; d < dim; ++d) clear(work.keys + d * kTileKeys + j, kLanes);
                 });
  if (sources.first == 0) return;
  gather_rows(tile, side.exact_stored, side.exact, tile.exact_pages, side.dim, begin, sources.first, work.values);
  for (int64_t j = 0; j < sources.first; ++j) {
    for (int64_t d = 0; d < dim; ++d) work.keys[d * kTileKeys + j] = work.values[j * dim + d];
    work.scales[j] = 1;
  }
}
// The factors are those of all columns.
void decode_values(const PagedTile& tile, const PagedWork& work, const Sources& sources, int64_t begin) {
  const PagedSide& side = tile.values;
  const int64_t wide = padded(side.dim);
  each_code_tile(tile, side, begin, sources.codes.keys, work.factors,
                 [&](const uint32_t* codes, int64_t j, float* scale) {
                   if (codes) return unpack_values(codes, *side.codes, work.values + j * wide, wide, scale);
                   clear(work.values + j * wide, kLanes * wide);
                 });
  if (sources.first > 0)
    gather_rows(tile, side.exact_stored, side.exact, tile.exact_pages, side.dim, begin, sources.first, work.values);
  for (int64_t j = 0; j < sources.first; ++j) work.factors[j] = 1;
  for (int64_t j = padded(sources.codes.keys); j < sources.columns(); ++j) work.factors[j] = 1;
}

// scores[r, column] = <q_r, key of the column>, for the rows of each part
void score_keys(const PagedTile& tile, const PagedWork& work, const Sources& sources, const float* q, int64_t begin) {
  const PagedSide& side = tile.keys;
  const int64_t dim = padded(side.dim), stride = sources.stride();
  const auto score = [&](const Part& part, const float* keys, const float* scales) {
    if (part.rows > 0 && part.keys > 0)
      multiply<false>(part.rows, side.dim, padded(part.keys), q + part.row * dim, dim, 1, keys, kTileKeys,
                      work.scores + part.row * stride + part.column, stride, scales);
  };
  const auto gather = [&](Stored stored, const void* pool, const int32_t* pages, int64_t key, int64_t count) {
    gather_rows(tile, stored, pool, pages, side.dim, begin + key, count, work.values);
    clear(work.values + count * dim, (padded(count) - count) * dim);
    transpose_keys(work.values, dim, work.keys, padded(count));
  };
  const Part &codes = sources.codes, &exact = sources.exact;
  if (!side.codes) {
    gather(side.stored, side.pool, tile.pages, 0, sources.count);
    return each_rows(tile, sources, begin, [&](const Part& some, const Part& others) {
      score(some, work.keys, nullptr);
      score(others, work.keys + others.key, nullptr);
    });
  }
  if (codes.keys > 0) {
    decode_keys(tile, work, sources, begin);
    each_rows(tile, sources, begin, [&](const Part& some, const Part&) { score(some, work.keys, work.scales); });
  }
  if (exact.keys == 0) return;
  gather(side.exact_stored, side.exact, tile.exact_pages, exact.key, exact.keys);
  each_rows(tile, sources, begin,
            [&](const Part&, const Part& others) { score(others, work.keys + others.key - exact.key, nullptr); });
}

// A row of scores to exponentials, times the factors of their columns where these are given.
void softmax_of(const PagedTile& tile, const Sources& sources, int64_t row, int64_t begin, float* scores,
                const float* factors, const Sums& sums, int64_t wide) {
  const int64_t end = tile.first_end + row / tile.group, low = tile.window > 0 ? end - tile.window - begin : 0;
  const Visible seen{low > 0 ? low : 0, end - begin < sources.count ? end - begin : sources.count};
  float *o = sums.o + row * wide, &top = sums.top[row], &total = sums.total[row];
  cap_row(scores, tile.softcap, sources.columns());
  if (!sources.mixed()) return softmax_row(scores, seen, top, total, o, wide, factors);
  if (seen.low >= seen.high) return clear(scores, sources.columns());
  const Part& exact = sources.exact;
  const int64_t tail = within(end - tile.exact_last - begin, sources.count);
  const int64_t from = tail < sources.first ? sources.first : tail;  // codes before, exact rows from here on
  hide_outside(scores, exact.column, seen.low, from < seen.high ? from : seen.high);
  hide_outside(scores + exact.column, padded(exact.keys), (from > seen.low ? from : seen.low) - exact.key,
               seen.high - exact.key);
  softmax_columns(scores, sources.columns(), factors, top, total, o, wide);
}

// o_r += sum of p[r, column] times the value of the column, for the rows of each part; p lies in work.scores, and the
// values of codes in work.values
void add_values(const PagedTile& tile, const PagedWork& work, const Sources& sources, float* o, int64_t begin) {
  const PagedSide& side = tile.values;
  const int64_t wide = padded(side.dim), stride = sources.stride();
  const auto add = [&](const Part& part, const float* values) {
    if (part.rows > 0 && part.keys > 0)
      multiply<true>(part.rows, part.keys, wide, work.scores + part.row * stride + part.column, stride, 1, values, wide,
                     o + part.row * wide, wide);
  };
  const Part &codes = sources.codes, &exact = sources.exact;
  if (!side.codes) {
    gather_rows(tile, side.stored, side.pool, tile.pages, side.dim, begin, sources.count, work.values);
    return each_rows(tile, sources, begin, [&](const Part& some, const Part& others) {
      add(some, work.values);
      add(others, work.values + others.key * wide);
    });
  }
  if (codes.keys > 0) each_rows(tile, sources, begin, [&](const Part& some, const Part&) { add(some, work.values); });
  if (exact.keys == 0) return;
  gather_rows(tile, side.exact_stored, side.exact, tile.exact_pages, side.dim, begin + exact.key, exact.keys,
              work.values);
  each_rows(tile, sources, begin,
            [&](const Part&, const Part& others) { add(others, work.values + (others.key - exact.key) * wide); });
}

void attend(const PagedTile& tile, float* q, float* scratch, const Sums& all) {
  const int64_t dim = padded(tile.keys.dim), wide = padded(tile.values.dim), rows = tile.queries * tile.group;
  const int64_t last_end = tile.first_end + tile.queries - 1;  // keys that the last query sees
  PagedWork work{};
  work.scores = scratch, work.scales = scratch + 2 * rows * kTileKeys, work.factors = work.scales + kTileKeys;
  work.keys = work.factors + 2 * kTileKeys, work.values = work.keys + kTileKeys * dim;
  const Sums own = sums_at(work.values + kTileKeys * (dim > wide ? dim : wide), rows, wide);
  const int64_t lowest = tile.window > 0 && tile.first_end > tile.window ? tile.first_end - tile.window : 0;
  for (int64_t i = 0; i < tile.pieces; ++i) {
    const int64_t start = (tile.piece + i) * kPieceKeys;
    const int64_t end = start + kPieceKeys < last_end ? start + kPieceKeys : last_end;
    const Sums piece = tile.partial ? sums_at(tile.partial + i * partial_size(rows, tile.values.dim), rows, wide) : own;
    clear_sums(piece, rows, wide);
    for (int64_t begin = start; begin < end; begin += kTileKeys) {
      if (begin + kTileKeys <= lowest) continue;
      const int64_t count = end - begin < kTileKeys ? end - begin : kTileKeys;
      const Sources sources = sources_of(tile, begin, count);
      score_keys(tile, work, sources, q, begin);
      const bool coded = tile.values.codes && sources.codes.keys > 0;
      if (coded) decode_values(tile, work, sources, begin);
      for (int64_t r = 0; r < rows; ++r)
        softmax_of(tile, sources, r, begin, work.scores + r * sources.stride(), coded ? work.factors : nullptr, piece,
                   wide);
      add_values(tile, work, sources, piece.o, begin);
    }
    if (!tile.partial) merge(all, piece, rows, wide);
  }
}

void paged_attention(const PagedTile& tile) {
  const int64_t dim = padded(tile.keys.dim), wide = padded(tile.values.dim), rows = tile.queries * tile.group;
  float* q = tile.scratch;
  const Sums all = sums_at(q + rows * dim, rows, wide);
  float* rest = q + rows * (dim + wide + 32);
  for_type(tile.type, [&](auto tag) {
    using T = decltype(tag);
    for (int64_t r = 0; r < rows; ++r)
      gather_row(static_cast<const T*>(tile.q) + (tile.first + r / tile.group) * tile.q_stride +
                     r % tile.group * tile.keys.dim,
                 tile.keys.dim, tile.scale, q + r * dim);
  });
  clear_sums(all, rows, wide);
  attend(tile, q, rest, all);
  if (!tile.partial) write_rows(tile, all);
}

// o of a tile whose pieces have left their sums in tile.partial.
void merge_pieces(const PagedTile& tile) {
  const int64_t wide = padded(tile.values.dim), rows = tile.queries * tile.group;
  const Sums all = sums_at(tile.scratch, rows, wide);
  clear_sums(all, rows, wide);
  for (int64_t i = 0; i < tile.pieces; ++i)
    merge(all, sums_at(tile.partial + i * partial_size(rows, tile.values.dim), rows, wide), rows, wide);
  write_rows(tile, all);
}

void matrix_rows(const float* x, int64_t x_stride, int64_t rows, int64_t dim, const float* w, const float* bias,
                 float* y, int64_t y_stride, int64_t out) {
  if (!bias) return multiply<false>(rows, dim, out, x, x_stride, 1, w, out, y, y_stride);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < out; j += kWidth) store(y + r * y_stride + j, load(bias + j));
  multiply<true>(rows, dim, out, x, x_stride, 1, w, out, y, y_stride);
}

// Rows of f32 to a slot of tiles of codes, one tile a head and `bytes` apart.
void encode_codes(const float* x, const EncodeCodes& how, int64_t heads, int64_t slot, char* tiles, uint32_t* codes) {
  const kv_codes::Shape& shape = how.tables->shape;
  for (int64_t head = 0; head < heads; ++head) {
    auto* tile = reinterpret_cast<uint32_t*>(tiles + head * kv_codes::tile_bytes(shape));
    const float scale = encode_row(x + head * shape.dim, *how.tables, codes);
    how.values ? pack_value(tile, shape, static_cast<int>(slot), codes)
               : pack_key(tile, shape, static_cast<int>(slot), codes);
    write_scale(tile, shape, static_cast<int>(slot), scale);
  }
}

}  // namespace

void fill_paged_attention(Table& table) {
  table.matrix_rows = matrix_rows;
  table.encode_codes = encode_codes;
  table.paged_attention = paged_attention;
  table.merge_pieces = merge_pieces;
}

}  // namespace qeng::isa::QENG_ISA
