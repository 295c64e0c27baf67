// KvStore, CopyPages and PagedAttention: pages in any order, shared by sequences, of every dtype of a pool. Slots that
// no sequence has hold NaN, which nobody may read.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/kv_pools.h"
#include "tests/conformance/table.h"

namespace qeng::conformance {
namespace {

DType pool_dtype(Draw& draw) { return draw.pick({DType::f32, DType::bf16, DType::f16, DType::q8_0}); }

// A head_dim that a pool of the dtype can have.
int64_t pool_head_dim(Draw& draw, DType dtype) {
  if (dtype == DType::q8_0) return draw.pick<int64_t>({32, 64, 96, 128, 256});
  return draw.flip() ? draw.pick<int64_t>({16, 64, 128, 256}) : draw.size(130);
}

// Normal values in row `row` of a pool; a block of q8_0 gets a scale and 32 bytes.
void fill_row(Draw& draw, const View& pool, int64_t row, double deviation) {
  const int64_t width = pool.elements() / pool.shape[0];
  if (pool.dtype != DType::q8_0) {
    for (int64_t i = row * width; i < (row + 1) * width; ++i) encode(pool, i, deviation * draw.normal());
    return;
  }
  for (int64_t block = row * width / 32; block < (row + 1) * width / 32; ++block) {
    unsigned char* at = pool.as<unsigned char>() + block * 34;
    encode(View(at, DType::f16, {1}), 0, deviation * draw.uniform(0.01, 0.03));
    for (int i = 0; i < 32; ++i) at[2 + i] = static_cast<unsigned char>(draw.integer(-127, 127));
  }
}

// Ascending levels of 1 to 4 bits, and sometimes those of one bit more for some of the dimensions; pool: [slots / 16,
// heads, bytes of a tile], of random codes and scales of about `deviation`.
struct Coded {
  View levels, pool;
};
Coded coded_pool(Draw& draw, int64_t slots, int64_t heads, int64_t dim, double deviation) {
  kv_codes::Shape shape{static_cast<int>(dim), static_cast<int>(draw.integer(1, 4)), 0};
  if (shape.bits < 4 && draw.flip()) shape.wide = static_cast<int>(32 * draw.integer(0, dim / 32));
  std::vector<double> levels;
  for (int bits = shape.bits; bits <= shape.bits + (shape.wide > 0); ++bits)
    for (int i = 0; i < 1 << bits; ++i)
      levels.push_back((2 * i + 1 - (1 << bits)) * 3.0 / (1 << bits) + draw.uniform(-0.2, 0.2) / (1 << bits));
  Coded coded;
  coded.levels = draw.values(DType::f32, levels);
  const int bytes = kv_codes::tile_bytes(shape);
  coded.pool = draw.empty(DType::u8, {slots / 16, heads, bytes});
  for (int64_t tile = 0; tile < coded.pool.shape[0] * heads; ++tile) {
    unsigned char* at = coded.pool.as<unsigned char>() + tile * bytes;
    for (int i = 0; i < bytes - 32; ++i) at[i] = static_cast<unsigned char>(draw.integer(0, 255));
    const View scales(at + bytes - 32, DType::f16, {16});
    for (int i = 0; i < 16; ++i) encode(scales, i, deviation * draw.uniform(0.5, 1.5));
  }
  return coded;
}
// No query may read a slot that nobody has: NaN as its scale.
void poison(const Coded& coded, int64_t slot) {
  const int64_t heads = coded.pool.shape[1], bytes = coded.pool.shape[2];
  for (int64_t head = 0; head < heads; ++head)
    encode(View(coded.pool.as<unsigned char>() + (slot / 16 * heads + head + 1) * bytes - 32, DType::f16, {16}),
           slot % 16, NAN);
}
int64_t coded_head_dim(Draw& draw) { return draw.pick<int64_t>({32, 64, 96, 128, 256}); }

// What a code stands for, written anew: the word and bit where it lies, counted from the tile's beginning.
int code_at(const Coded& coded, int64_t slot, int64_t head, int64_t d, int64_t dim, bool values) {
  const kv_codes::Shape shape = code_shape(coded.pool, coded.levels, dim);
  const int64_t run = d / 32, bits = shape.bits + (d < shape.wide);
  const int64_t before = std::min<int64_t>(run, shape.wide / 32) + run * shape.bits;  // bits of a lane
  const int64_t lane = values ? d % 16 : slot % 16, position = values ? d % 32 / 16 * 16 + slot % 16 : d % 32;
  const unsigned char* tile =
      coded.pool.as<unsigned char>() + (slot / 16 * coded.pool.shape[1] + head) * coded.pool.shape[2];
  int code = 0;
  for (int64_t bit = 0; bit < bits; ++bit) {
    const int64_t at = 32 * before + position * bits + bit;
    uint32_t word;
    std::memcpy(&word, tile + 4 * (16 * (at / 32) + lane), sizeof word);  // the pool may lie anywhere
    code |= static_cast<int>(word >> at % 32 & 1) << bit;
  }
  return code;
}
double level_of(const Coded& coded, int64_t d, int64_t dim, int code) {
  const kv_codes::Shape shape = code_shape(coded.pool, coded.levels, dim);
  return decode(coded.levels, code + (d < shape.wide ? 1 << shape.bits : 0));
}
double scale_at(const Coded& coded, int64_t slot, int64_t head) {
  const int64_t bytes = coded.pool.shape[2];
  return decode(View(coded.pool.as<unsigned char>() + (slot / 16 * coded.pool.shape[1] + head + 1) * bytes - 32,
                     DType::f16, {16}),
                slot % 16);
}

std::vector<double> shuffled(Draw& draw, int64_t count) {
  std::vector<double> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1], order[static_cast<size_t>(draw.integer(0, static_cast<int64_t>(i) - 1))]);
  return order;
}

// Codes and scale of a row: of each dimension the number of half ways below it, by float64.
struct Codes {
  std::vector<int> codes;
  double scale = 0;
  bool sure = true;  // no dimension lies at a half way, and the scale not between two of f16
};
Codes codes_of(const std::vector<double>& x, const Coded& coded) {
  const int64_t dim = static_cast<int64_t>(x.size());
  const kv_codes::Shape shape = code_shape(coded.pool, coded.levels, dim);
  double squares = 0, of_levels = 0;
  for (const double value : x) squares += value * value;
  Codes result;
  for (int64_t d = 0; d < dim; ++d) {
    const double y = squares > 0 ? x[static_cast<size_t>(d)] * std::sqrt(static_cast<double>(dim) / squares) : 0;
    int code = 0;
    for (int i = 0; i + 1 < 1 << (shape.bits + (d < shape.wide)); ++i) {
      const double half = (level_of(coded, d, dim, i) + level_of(coded, d, dim, i + 1)) / 2;
      result.sure = result.sure && std::fabs(y - half) > 1e-4;
      code += y > half;
    }
    result.codes.push_back(squares > 0 ? code : 0);
    of_levels += std::pow(level_of(coded, d, dim, code), 2);
  }
  result.scale = std::sqrt(squares / of_levels);
  const double near = round_to(DType::f16, result.scale * (1 + 1e-5)),
               below = round_to(DType::f16, result.scale * (1 - 1e-5));
  result.sure = result.sure && near == below;
  return result;
}
std::vector<double> row_at(const View& rows, int64_t row) {
  std::vector<double> x;
  for (int64_t d = 0; d < rows.shape[2]; ++d) x.push_back(decode(rows, row * rows.shape[2] + d));
  return x;
}
// Rows whose codes follow from them whatever rounds on the way: others where these do not.
void clear_of_edges(Draw& draw, const View& rows, const Coded& coded) {
  for (int64_t row = 0; row < rows.shape[0] * rows.shape[1]; ++row)
    while (!codes_of(row_at(rows, row), coded).sure)
      for (int64_t d = 0; d < rows.shape[2]; ++d) encode(rows, row * rows.shape[2] + d, draw.normal());
}

Op kv_store(Draw& draw) {
  draw.sometimes_misalign();
  KvStore op;
  const DType stored = pool_dtype(draw);
  const int64_t tokens = draw.size(40), slots = tokens + draw.integer(0, 30), heads = draw.integer(1, 4),
                dim = pool_head_dim(draw, stored);
  op.k = draw.tensor(draw.float_dtype(), {tokens, heads, dim}, draw.pick({1.0, 1.0, 100.0}));
  const int64_t value_dim = draw.flip() ? dim : pool_head_dim(draw, stored);
  op.v = draw.tensor(op.k.dtype, {tokens, heads, value_dim});
  std::vector<double> order = shuffled(draw, slots);
  order.resize(static_cast<size_t>(tokens));
  for (double& slot : order)
    if (draw.integer(0, 9) == 0) slot = -1;
  op.slots = draw.values(DType::i32, order);
  op.k_pool = draw.empty(stored, {slots, heads, dim}), op.v_pool = draw.empty(stored, {slots, heads, value_dim});
  for (int64_t row = 0; row < slots; ++row) fill_row(draw, op.k_pool, row, 1), fill_row(draw, op.v_pool, row, 1);
  if (draw.integer(0, 2) == 0) {  // keys, values or both as codes
    const int64_t which = draw.integer(1, 3), tiles = (slots + 15) / 16;
    const auto make = [&](View& rows, View& pool, View& levels) {
      const int64_t size = coded_head_dim(draw);
      rows = draw.tensor(op.k.dtype, {tokens, heads, size}, draw.pick({1.0, 1.0, 100.0}));
      const Coded coded = coded_pool(draw, 16 * tiles, heads, size, 1);
      pool = coded.pool, levels = coded.levels;
      clear_of_edges(draw, rows, coded);
    };
    if (which & 1) make(op.k, op.k_pool, op.k_levels);
    if (which & 2) make(op.v, op.v_pool, op.v_levels);
    const auto fit = [&](View& rows, View& pool) {  // to as many slots as tiles have
      pool = draw.empty(stored, {16 * tiles, heads, rows.shape[2]});
      for (int64_t row = 0; row < 16 * tiles; ++row) fill_row(draw, pool, row, 1);
    };
    if (!op.k_levels) fit(op.k, op.k_pool);
    if (!op.v_levels) fit(op.v, op.v_pool);
  }
  if (draw.integer(0, 3) == 0) op.v = op.v_pool = op.v_levels = {};
  return op;
}

Op copy_pages(Draw& draw) {
  draw.sometimes_misalign();
  CopyPages op;
  const DType stored = pool_dtype(draw);
  op.page_tokens = static_cast<int>(draw.pick<int64_t>({1, 4, 16, 7}));
  const int64_t pages = draw.size(20), count = draw.integer(0, pages / 2);
  op.pool = draw.empty(stored, {pages * op.page_tokens, draw.integer(1, 3), pool_head_dim(draw, stored)});
  for (int64_t row = 0; row < op.pool.shape[0]; ++row) fill_row(draw, op.pool, row, 1);
  std::vector<double> pairs, order = shuffled(draw, pages);  // the first `count` are sources, some of them of several
  for (int64_t i = 0; i < count; ++i) {
    pairs.push_back(order[static_cast<size_t>(draw.integer(0, count - 1))]);
    pairs.push_back(order[static_cast<size_t>(count + i)]);
  }
  op.pairs = draw.values(DType::i32, pairs);
  op.pairs.rank = 2, op.pairs.shape[0] = count, op.pairs.shape[1] = 2;
  return op;
}

struct Cache {
  std::vector<double> table;  // [sequences, most]
  int64_t most, sequences, kv_heads, dim, value_dim;
  double deviation;
};
// Exact rows for the pages of which a query may need some, and no others: a page of each, NaN elsewhere.
void draw_exact(Draw& draw, PagedAttention& op, const std::vector<double>& cu, const std::vector<double>& lengths,
                const Cache& cache) {
  std::vector<double> exact(cache.table.size(), -1);
  double count = 0;
  for (size_t s = 0; s < lengths.size(); ++s) {
    const double seen = lengths[s] - (cu[s + 1] - cu[s]) + 1;  // by the first query
    for (int64_t page = 0; page < cache.most; ++page) {
      const double first = static_cast<double>(page * op.page_tokens), last = first + op.page_tokens;
      const bool needed = first < lengths[s] && cu[s + 1] > cu[s] &&
                          (first < op.exact_first || (op.exact_last > 0 && last > seen - op.exact_last));
      if (needed) exact[s * static_cast<size_t>(cache.most) + static_cast<size_t>(page)] = count++;
    }
  }
  const int64_t slots = (static_cast<int64_t>(count) + 1) * op.page_tokens;
  const DType dtype = draw.pick({DType::f32, DType::bf16, DType::f16});
  if (op.k_levels) op.k_exact = draw.empty(dtype, {slots, cache.kv_heads, cache.dim});
  if (op.v_levels) op.v_exact = draw.empty(dtype, {slots, cache.kv_heads, cache.value_dim});
  for (int64_t row = 0; row < static_cast<int64_t>(count) * op.page_tokens; ++row) {
    if (op.k_exact) fill_row(draw, op.k_exact, row, cache.deviation);
    if (op.v_exact) fill_row(draw, op.v_exact, row, 1);
  }
  op.exact = draw.values(DType::i32, exact);
  op.exact.rank = 2, op.exact.shape[0] = cache.sequences, op.exact.shape[1] = cache.most;
}

Op paged_attention(Draw& draw) {
  draw.sometimes_misalign();
  PagedAttention op;
  const bool by_cores = draw.integer(0, 2) == 0;  // rows as tensor cores take them
  const DType stored = by_cores ? draw.pick({DType::bf16, DType::bf16, DType::f16}) : pool_dtype(draw);
  const DType dtype = by_cores ? DType::bf16 : draw.float_dtype();
  const bool is_long = draw.integer(0, 9) == 0;  // more keys than one piece of the division over threads
  const int64_t codes =
      !by_cores && draw.integer(0, 2) == 0 ? draw.integer(1, 3) : 0;  // 1: of keys, 2: of values, 3: of both
  const int64_t dim = by_cores  ? draw.pick<int64_t>({64, 128, 64, 128, 256})
                      : is_long ? draw.pick<int64_t>({32, 160})
                      : codes   ? coded_head_dim(draw)
                                : pool_head_dim(draw, stored),
                kv_heads = draw.integer(1, is_long ? 1 : 3), group = draw.integer(1, is_long ? 2 : 5);
  const int64_t sequences = draw.integer(0, is_long ? 2 : 5);
  op.page_tokens =
      static_cast<int>(codes ? draw.pick<int64_t>({16, 16, 48}) : draw.pick<int64_t>({16, 16, 8, 1, 5, 64}));
  if (draw.integer(0, 2) == 0) op.window = static_cast<int>(draw.size(is_long ? 1500 : 60));
  std::vector<double> cu{0}, lengths;
  int64_t most = draw.integer(1, 3);
  for (int64_t s = 0; s < sequences; ++s) {
    const int64_t keys = draw.integer(0, 4) == 0 ? 0 : is_long ? draw.integer(1000, 2300) : draw.size(150);
    const int64_t queries = keys == 0 || draw.integer(0, 5) == 0 ? 0
                            : draw.flip()                        ? 1
                                          : std::min(keys, draw.size(is_long && !by_cores ? 4 : 150));
    cu.push_back(cu.back() + static_cast<double>(queries)), lengths.push_back(static_cast<double>(keys));
    most = std::max(most, (keys + op.page_tokens - 1) / op.page_tokens);
  }
  const int64_t pool_pages = most * std::max<int64_t>(1, sequences) + draw.integer(0, 3);
  std::vector<double> order = shuffled(draw, pool_pages), table;
  std::vector<bool> held(static_cast<size_t>(pool_pages));
  for (int64_t s = 0; s < sequences; ++s)
    for (int64_t page = 0; page < most; ++page) {
      const bool needed = static_cast<double>(page * op.page_tokens) < lengths[static_cast<size_t>(s)];
      const bool shared = s > 0 && draw.integer(0, 3) == 0 && table[static_cast<size_t>(page)] >= 0;
      table.push_back(!needed  ? -1
                      : shared ? table[static_cast<size_t>(page)]
                               : order[static_cast<size_t>(s * most + page)]);
      if (needed) held[static_cast<size_t>(table.back())] = true;
    }
  const int64_t rows = std::max<int64_t>(1, static_cast<int64_t>(cu.back()) + (draw.flip() ? draw.integer(0, 5) : 0));
  const int64_t value_dim = is_long || by_cores || draw.integer(0, 2) ? dim
                            : codes & 2                               ? coded_head_dim(draw)
                                                                      : pool_head_dim(draw, stored);
  op.k_pool = draw.empty(stored, {pool_pages * op.page_tokens, kv_heads, dim});
  op.v_pool = draw.empty(stored, {pool_pages * op.page_tokens, kv_heads, value_dim});
  if (!by_cores && draw.integer(0, 3) == 0) op.softcap = draw.pick({0.7f, 2.0f, 30.0f});
  if (draw.integer(0, 2) == 0) op.sinks = draw.tensor(DType::f32, {kv_heads * group}, draw.pick({1.0, 4.0}));
  const double deviation = draw.pick({1.0, 1.0, 10.0});
  for (int64_t row = 0; row < op.k_pool.shape[0]; ++row)
    if (held[static_cast<size_t>(row / op.page_tokens)])
      fill_row(draw, op.k_pool, row, deviation), fill_row(draw, op.v_pool, row, 1);
  const int64_t slots = op.k_pool.shape[0];
  const auto code = [&](View& pool, View& levels, int64_t size, double size_of) {
    const Coded coded = coded_pool(draw, slots, kv_heads, size, size_of);
    for (int64_t slot = 0; slot < slots; ++slot)
      if (!held[static_cast<size_t>(slot / op.page_tokens)]) poison(coded, slot);
    pool = coded.pool, levels = coded.levels;
  };
  if (codes & 1) code(op.k_pool, op.k_levels, dim, deviation);
  if (codes & 2) code(op.v_pool, op.v_levels, value_dim, 1);
  if (codes && draw.flip()) {
    op.exact_first = static_cast<int>(draw.pick<int64_t>({0, 4, 17})),
    op.exact_last = static_cast<int>(draw.pick<int64_t>({0, 1, 20, 64, 200}));
    draw_exact(draw, op, cu, lengths, {table, most, sequences, kv_heads, dim, value_dim, deviation});
  }
  op.q = draw.tensor(dtype, {rows, kv_heads * group, dim});
  op.o = draw.empty(dtype, {rows, kv_heads * group, value_dim});
  op.cu_q = draw.values(DType::i32, cu), op.lengths = draw.values(DType::i32, lengths);
  op.pages = draw.values(DType::i32, table);
  op.pages.rank = 2, op.pages.shape[0] = sequences, op.pages.shape[1] = most;
  op.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(dim)));
  return op;
}

}  // namespace

// The bytes of the tiles, bit by bit.
template <class T>
void store_codes(const Coded& coded, const View& from, const std::vector<int64_t>& slots, bool values,
                 Sheet<T>& sheet) {
  Array<T>& pool = sheet.update(coded.pool, true, Sheet<T>::Check::exact);
  const int64_t heads = from.shape[1], dim = from.shape[2], bytes = coded.pool.shape[2];
  const kv_codes::Shape shape = code_shape(coded.pool, coded.levels, dim);
  for (size_t t = 0; t < slots.size(); ++t)
    for (int64_t head = 0; slots[t] >= 0 && head < heads; ++head) {
      const Codes codes = codes_of(row_at(from, static_cast<int64_t>(t) * heads + head), coded);
      const int64_t slot = slots[t], tile = (slot / 16 * heads + head) * bytes;
      for (int64_t d = 0; d < dim; ++d) {
        const int64_t run = d / 32, bits = shape.bits + (d < shape.wide);
        const int64_t before = std::min<int64_t>(run, shape.wide / 32) + run * shape.bits;
        const int64_t lane = values ? d % 16 : slot % 16, position = values ? d % 32 / 16 * 16 + slot % 16 : d % 32;
        for (int64_t bit = 0; bit < bits; ++bit) {
          const int64_t at = 32 * before + position * bits + bit;
          T& byte = pool[tile + 4 * (16 * (at / 32) + lane) + at % 32 / 8];
          const int mask = 1 << at % 8, old = static_cast<int>(value_of(byte));
          byte = T((old & ~mask) | (codes.codes[static_cast<size_t>(d)] >> bit & 1 ? mask : 0));
        }
      }
      unsigned char scale[2];
      encode(View(scale, DType::f16, {1}), 0, codes.scale);
      for (int i = 0; i < 2; ++i) pool[tile + bytes - 32 + 2 * (slot % 16) + i] = T(scale[i]);
    }
}

template <class T>
void reference(const KvStore& op, Sheet<T>& sheet) {
  const auto slots = sheet.integers(op.slots);
  for (const auto& [from, to] : {std::pair{op.k, op.k_pool}, std::pair{op.v, op.v_pool}}) {
    if (!from) continue;
    if (to.dtype == DType::u8) {
      const bool values = to.data == op.v_pool.data;
      store_codes({values ? op.v_levels : op.k_levels, to}, from, slots, values, sheet);
      continue;
    }
    const int64_t width = from.shape[1] * from.shape[2];
    const Array<T> rows = sheet.in(from);
    Array<T>& pool = sheet.update(to);
    for (size_t t = 0; t < slots.size(); ++t)
      for (int64_t j = 0; slots[t] >= 0 && j < width; ++j) {
        const int64_t row = static_cast<int64_t>(t) * width;
        T value = rows[row + j];
        if (to.dtype == DType::q8_0) {  // off by half a step of largest / 127, and by the rounding of the step to f16
          double largest = 0;
          for (int64_t i = j / 32 * 32; i < j / 32 * 32 + 32; ++i)
            largest = std::max(largest, std::fabs(value_of(rows[row + i])));
          value = within(value, 0.501 * largest / 127 + std::fabs(value_of(value)) * 0x1.01p-11 + 0x1p-24 * 64);
        }
        if (to.dtype == DType::f16) value = within(value, 0x1p-25);  // half a step of subnormal numbers
        pool[slots[t] * width + j] = value;
      }
  }
}

template <class T>
void reference(const CopyPages& op, Sheet<T>& sheet) {
  const auto pairs = sheet.integers(op.pairs);
  Array<T>& pool = sheet.update(op.pool, true, Sheet<T>::Check::exact);
  const int64_t page = op.page_tokens * op.pool.shape[1] * op.pool.shape[2];
  for (size_t i = 0; i + 1 < pairs.size(); i += 2)
    for (int64_t j = 0; j < page; ++j) pool[pairs[i + 1] * page + j] = pool[pairs[i] * page + j];
}

// The rows of a cache, wherever they come from.
struct RowPlace {
  int64_t slot, exact;  // exact -1: in the pool
};
template <class T>
struct Rows {
  Coded coded;
  int64_t dim;
  bool values;
  Array<T> pool, exact;
  Rows(const Sheet<T>& sheet, const Coded& of, const View& exact_rows, int64_t row_dim, bool are_values)
      : coded(of), dim(row_dim), values(are_values) {
    if (!coded.levels) pool = sheet.in(coded.pool);
    if (exact_rows) exact = sheet.in(exact_rows);
  }
  T at(const RowPlace& place, int64_t head, int64_t d) const {
    if (!coded.levels) return pool(place.slot, head, d);
    if (place.exact >= 0) return exact(place.exact, head, d);
    return T(scale_at(coded, place.slot, head) *
             level_of(coded, d, dim, code_at(coded, place.slot, head, d, dim, values)));
  }
};

template <class T>
void reference(const PagedAttention& op, Sheet<T>& sheet) {
  using std::exp, std::tanh;
  const Array<T> q = sheet.in(op.q);
  const Rows<T> k(sheet, {op.k_levels, op.k_pool}, op.k_exact, op.q.shape[2], false),
      v(sheet, {op.v_levels, op.v_pool}, op.v_exact, op.o.shape[2], true);
  const Array<T> sinks = op.sinks ? sheet.in(op.sinks) : Array<T>();
  const auto cu_q = sheet.integers(op.cu_q), lengths = sheet.integers(op.lengths), pages = sheet.integers(op.pages);
  const auto exact_pages = op.exact ? sheet.integers(op.exact) : std::vector<int64_t>();
  Array<T>& o = sheet.out(op.o);
  const double half_ulp = unit_roundoff(op.q.dtype);  // tensor cores take the probabilities in q's dtype
  // Where there are codes, they take values in q's dtype, too, and levels of keys in f16.
  const double of_values = op.k_levels || op.v_levels ? half_ulp : 0,
               of_keys = op.k_levels && op.q.dtype == DType::bf16 ? unit_roundoff(DType::f16) : 0;
  const int64_t heads = op.q.shape[1], group = heads / op.k_pool.shape[1], dim = op.q.shape[2],
                value_dim = op.o.shape[2], most = op.pages.shape[1];
  for (size_t s = 0; s < lengths.size(); ++s)
    for (int64_t t = cu_q[s]; t < cu_q[s + 1]; ++t)
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t seen = lengths[s] - (cu_q[s + 1] - 1 - t),
                      first = op.window > 0 ? std::max<int64_t>(0, seen - op.window) : 0;
        const auto in_pages = [&](const std::vector<int64_t>& table, int64_t j) {
          return table[static_cast<size_t>(static_cast<int64_t>(s) * most + j / op.page_tokens)] * op.page_tokens +
                 j % op.page_tokens;
        };
        const auto place = [&](int64_t j) {
          const bool exact = op.exact && (j < op.exact_first || j >= seen - op.exact_last);
          return RowPlace{in_pages(pages, j), exact ? in_pages(exact_pages, j) : -1};
        };
        std::vector<T> scores;
        double largest = op.sinks ? value_of(sinks[h]) : -INFINITY;
        for (int64_t j = first; j < seen; ++j) {
          T score = 0;
          for (int64_t d = 0; d < dim; ++d) score += q(t, h, d) * kept(k.at(place(j), h / group, d), of_keys);
          score = T(op.scale) * score;
          if (op.softcap > 0) score = T(op.softcap) * tanh(score / T(op.softcap));
          scores.push_back(score);
          largest = std::max(largest, static_cast<double>(value_of(scores.back())));
        }
        T total = op.sinks ? exp(sinks[h] - T(largest)) : T(0);
        for (T& score : scores) score = exp(score - T(largest)), total += score, score = kept(score, half_ulp);
        for (int64_t d = 0; d < value_dim; ++d) {
          T sum = 0;
          for (int64_t j = first; j < seen; ++j)
            sum += scores[static_cast<size_t>(j - first)] * kept(v.at(place(j), h / group, d), of_values);
          o(t, h, d) = sum / total;
        }
      }
}

QENG_CONFORMANCE(KvStore, .make = kv_store);
QENG_CONFORMANCE(CopyPages, .make = copy_pages, .free_dtype = {"pool"});
QENG_CONFORMANCE(PagedAttention, .make = paged_attention, .free_shape = {"pages"});

}  // namespace qeng::conformance
