// KvStore and CopyPages: what writes to a paged cache of keys and values.
#include <algorithm>

#include "kernels/cuda/attention/paged_sides.h"
#include "kernels/cuda/vector.h"
#include "kernels/error.h"

namespace qeng {

namespace {

constexpr int kThreads = 256;

template <class From, class To>
struct Rows {
  const From* from;
  To* to;
  int64_t width, runs, total;  // elements of a row; accesses to one, and to all of them
};
// blockIdx.y: 0 for the keys, 1 for the values.
template <class From, class To>
struct Storing {
  Rows<From, To> keys, values;
  const int32_t* slots;
  int64_t pool_slots;
  Fault* fault;
};

// n: elements to an access.
template <class From, class To, int n>
__global__ void __launch_bounds__(kThreads) kv_store(Storing<From, To> s) {
  const Rows<From, To> rows = blockIdx.y == 0 ? s.keys : s.values;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= rows.total) return;
  const int64_t t = i / rows.runs, column = i % rows.runs * n;
  const int64_t slot = pool_slot(s.slots, t, s.pool_slots, column == 0 && blockIdx.y == 0, s.fault);
  if (slot < 0) return;
  float x[n];
  unpack(load_once<n>(rows.from + t * rows.width + column), x);
  store(rows.to + slot * rows.width + column, pack<To>(x));
}

// A warp encodes a block, as encode(x, .., Q8_0) does: a lane has one of its 32 elements. The product is rounded before
// its whole part is taken off, which a fused instruction would not do.
template <class From>
__global__ void __launch_bounds__(kThreads) kv_store_q8_0(Storing<From, blocks::Q8_0> s) {
  const Rows<From, blocks::Q8_0> rows = blockIdx.y == 0 ? s.keys : s.values;
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;
  if (i >= rows.total) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t t = i / rows.runs, run = i % rows.runs;
  const int64_t slot = pool_slot(s.slots, t, s.pool_slots, run == 0 && lane == 0 && blockIdx.y == 0, s.fault);
  if (slot < 0) return;
  const float x = to_f32(rows.from[t * rows.width + run * kWarp + lane]);
  const float d = warp_max(fabsf(x)) / 127.0f, inverse = blocks::inverse_of(d);
  blocks::Q8_0& block = rows.to[slot * rows.runs + run];
  if (lane == 0) block.d = to_f16(d);
  block.qs[lane] = static_cast<int8_t>(blocks::round_away(__fmul_rn(x, inverse)));
}

template <class From, class To>
Storing<From, To> storing(const KvStore& op, int64_t run, CudaContext& context) {
  const auto rows = [&](const View& from, const View& to) {
    if (!from) return Rows<From, To>{};
    const int64_t width = from.shape[1] * from.shape[2], runs = width / run;
    return Rows<From, To>{from.as<From>(), to.as<To>(), width, runs, from.shape[0] * runs};
  };
  return {rows(op.k, op.k_pool), rows(op.v, op.v_pool), op.slots.as<int32_t>(), op.k_pool.shape[0], context.fault};
}

// As many bytes as a Word has to an access; a thread moves kWords of them.
constexpr int kWords = 4;
template <class Word>
__global__ void __launch_bounds__(kThreads)
    copy_pages(Word* pool, const int32_t* pairs, int64_t words, int64_t pages, unsigned pieces, Fault* fault) {
  const int64_t pair = blockIdx.x / pieces;
  const int64_t first = int64_t{blockIdx.x % pieces} * kThreads * kWords + threadIdx.x;
  const int64_t from = pairs[2 * pair], to = pairs[2 * pair + 1];
  const bool good_from = from >= 0 && from < pages, good_to = to >= 0 && to < pages;
  if (!good_from || !good_to) {
    if (first == 0) report(fault, FaultKind::pair, pair, good_from ? to : from, pages);
    return;
  }
  Word word[kWords] = {};
#pragma unroll
  for (int u = 0; u < kWords; ++u)
    if (first + u * kThreads < words) word[u] = __ldcs(pool + from * words + first + u * kThreads);
#pragma unroll
  for (int u = 0; u < kWords; ++u)
    if (first + u * kThreads < words) pool[to * words + first + u * kThreads] = word[u];
}

unsigned blocks_of(const char* name, int64_t threads) {
  const int64_t count = ceil_div(threads, kThreads);
  if (count > INT32_MAX) fail("unsupported", name, ": more elements than one launch takes");
  return static_cast<unsigned>(count);
}

// Rows to pools of rows of one dtype.
void store_rows(const KvStore& op, CudaContext& context) {
  for_float(op.k, [&](auto* from) {
    using From = std::remove_pointer_t<decltype(from)>;
    if (op.k_pool.dtype == DType::q8_0) {
      const auto s = storing<From, blocks::Q8_0>(op, kWarp, context);
      const dim3 grid(blocks_of(op.name, std::max(s.keys.total, s.values.total) * kWarp), op.v ? 2 : 1);
      QENG_LAUNCH(context, kv_store_q8_0<From>, grid, dim3(kThreads), 0, s);
      return;
    }
    const auto plain = [&](auto* to) {
      using To = std::remove_pointer_t<decltype(to)>;
      constexpr int n = kVector<From, To>;
      const bool vectors = op.k.columns() * op.k.shape[1] % n == 0 &&
                           (!op.v || op.v.columns() * op.v.shape[1] % n == 0) &&
                           aligned_for(n, op.k, op.v, op.k_pool, op.v_pool);
      const auto s = storing<From, To>(op, vectors ? n : 1, context);
      launch(context, op.name, vectors ? kv_store<From, To, n> : kv_store<From, To, 1>,
             dim3(blocks_of(op.name, std::max(s.keys.total, s.values.total)), op.v ? 2 : 1), dim3(kThreads), 0, s);
    };
    if (op.k_pool.dtype == DType::f16)
      plain(static_cast<f16*>(nullptr));
    else
      for_float(op.k_pool, plain);
  });
}

}  // namespace

void run(const KvStore& op, CudaContext& context) {
  if (!op.k_levels && !op.v_levels && (!op.v || op.v_pool.dtype == op.k_pool.dtype)) return store_rows(op, context);
  const auto store = [&](const View& from, const View& pool, const View& levels, bool values) {
    if (levels) return store_codes(from, op.slots, pool, levels, values, context);
    KvStore rows;
    rows.k = from, rows.k_pool = pool, rows.slots = op.slots;
    store_rows(rows, context);
  };
  store(op.k, op.k_pool, op.k_levels, false);
  if (op.v) store(op.v, op.v_pool, op.v_levels, true);
}

void run(const CopyPages& op, CudaContext& context) {
  const int64_t bytes = static_cast<int64_t>(op.pool.bytes()) / std::max<int64_t>(1, op.pool.shape[0]) * op.page_tokens;
  const int64_t pages = op.pool.shape[0] / op.page_tokens;
  const auto copy = [&](auto* word) {
    using Word = std::remove_pointer_t<decltype(word)>;
    const int64_t words = bytes / static_cast<int64_t>(sizeof(Word)), pieces = ceil_div(words, kThreads * kWords);
    const unsigned grid = blocks_of(op.name, op.pairs.shape[0] * pieces * kThreads);
    QENG_LAUNCH(context, copy_pages<Word>, dim3(grid), dim3(kThreads), 0, op.pool.as<Word>(), op.pairs.as<int32_t>(),
                words, pages, static_cast<unsigned>(pieces), context.fault);
  };
  if (bytes % 16 == 0 && aligned(op.pool.data, 16))
    copy(static_cast<uint4*>(nullptr));
  else
    copy(static_cast<uint16_t*>(nullptr));  // every row is of whole pairs of bytes
}

}  // namespace qeng
