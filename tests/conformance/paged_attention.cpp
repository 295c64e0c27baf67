// KvStore, CopyPages and PagedAttention: pages in any order, shared by sequences, of every dtype of a pool. Slots that
// no sequence has hold NaN, which nobody may read.
#include <algorithm>
#include <numeric>

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

std::vector<double> shuffled(Draw& draw, int64_t count) {
  std::vector<double> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1], order[static_cast<size_t>(draw.integer(0, static_cast<int64_t>(i) - 1))]);
  return order;
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
  if (draw.integer(0, 3) == 0) op.v = op.v_pool = {};
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

Op paged_attention(Draw& draw) {
  draw.sometimes_misalign();
  PagedAttention op;
  const DType stored = pool_dtype(draw), dtype = draw.float_dtype();
  const bool is_long = draw.integer(0, 9) == 0;  // more keys than one piece of the division over threads
  const int64_t dim = is_long ? draw.pick<int64_t>({32, 160}) : pool_head_dim(draw, stored),
                kv_heads = draw.integer(1, is_long ? 1 : 3), group = draw.integer(1, is_long ? 2 : 5);
  const int64_t sequences = draw.integer(0, is_long ? 2 : 5);
  op.page_tokens = static_cast<int>(draw.pick<int64_t>({16, 16, 8, 1, 5, 64}));
  if (draw.integer(0, 2) == 0) op.window = static_cast<int>(draw.size(is_long ? 1500 : 60));
  std::vector<double> cu{0}, lengths;
  int64_t most = draw.integer(1, 3);
  for (int64_t s = 0; s < sequences; ++s) {
    const int64_t keys = draw.integer(0, 4) == 0 ? 0 : is_long ? draw.integer(1000, 2300) : draw.size(150);
    const int64_t queries = keys == 0 || draw.integer(0, 5) == 0 ? 0
                            : draw.flip()                        ? 1
                                                                 : std::min(keys, draw.size(is_long ? 4 : 150));
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
  const int64_t value_dim = is_long || draw.integer(0, 2) ? dim : pool_head_dim(draw, stored);
  op.k_pool = draw.empty(stored, {pool_pages * op.page_tokens, kv_heads, dim});
  op.v_pool = draw.empty(stored, {pool_pages * op.page_tokens, kv_heads, value_dim});
  if (draw.integer(0, 3) == 0) op.softcap = draw.pick({0.7f, 2.0f, 30.0f});
  if (draw.integer(0, 2) == 0) op.sinks = draw.tensor(DType::f32, {kv_heads * group}, draw.pick({1.0, 4.0}));
  const double deviation = draw.pick({1.0, 1.0, 10.0});
  for (int64_t row = 0; row < op.k_pool.shape[0]; ++row)
    if (held[static_cast<size_t>(row / op.page_tokens)])
      fill_row(draw, op.k_pool, row, deviation), fill_row(draw, op.v_pool, row, 1);
  op.q = draw.tensor(dtype, {rows, kv_heads * group, dim});
  op.o = draw.empty(dtype, {rows, kv_heads * group, value_dim});
  op.cu_q = draw.values(DType::i32, cu), op.lengths = draw.values(DType::i32, lengths);
  op.pages = draw.values(DType::i32, table);
  op.pages.rank = 2, op.pages.shape[0] = sequences, op.pages.shape[1] = most;
  op.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(dim)));
  return op;
}

}  // namespace

template <class T>
void reference(const KvStore& op, Sheet<T>& sheet) {
  const auto slots = sheet.integers(op.slots);
  for (const auto& [from, to] : {std::pair{op.k, op.k_pool}, std::pair{op.v, op.v_pool}}) {
    if (!from) continue;
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

template <class T>
void reference(const PagedAttention& op, Sheet<T>& sheet) {
  using std::exp, std::tanh;
  const Array<T> q = sheet.in(op.q), k = sheet.in(op.k_pool), v = sheet.in(op.v_pool);
  const Array<T> sinks = op.sinks ? sheet.in(op.sinks) : Array<T>();
  const auto cu_q = sheet.integers(op.cu_q), lengths = sheet.integers(op.lengths), pages = sheet.integers(op.pages);
  Array<T>& o = sheet.out(op.o);
  const double half_ulp = unit_roundoff(op.q.dtype);  // tensor cores take the probabilities in q's dtype
  const int64_t heads = op.q.shape[1], group = heads / op.k_pool.shape[1], dim = op.q.shape[2],
                value_dim = op.o.shape[2], most = op.pages.shape[1];
  for (size_t s = 0; s < lengths.size(); ++s)
    for (int64_t t = cu_q[s]; t < cu_q[s + 1]; ++t)
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t seen = lengths[s] - (cu_q[s + 1] - 1 - t),
                      first = op.window > 0 ? std::max<int64_t>(0, seen - op.window) : 0;
        const auto slot = [&](int64_t j) {
          return pages[static_cast<size_t>(static_cast<int64_t>(s) * most + j / op.page_tokens)] * op.page_tokens +
                 j % op.page_tokens;
        };
        std::vector<T> scores;
        double largest = op.sinks ? value_of(sinks[h]) : -INFINITY;
        for (int64_t j = first; j < seen; ++j) {
          T score = 0;
          for (int64_t d = 0; d < dim; ++d) score += q(t, h, d) * k(slot(j), h / group, d);
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
            sum += scores[static_cast<size_t>(j - first)] * v(slot(j), h / group, d);
          o(t, h, d) = sum / total;
        }
      }
}

QENG_CONFORMANCE(KvStore, .make = kv_store);
QENG_CONFORMANCE(CopyPages, .make = copy_pages);
QENG_CONFORMANCE(PagedAttention, .make = paged_attention, .free_shape = {"pages"});

}  // namespace qeng::conformance
