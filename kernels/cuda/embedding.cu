// Rows of the embedding table by token, and the sums of gradient rows by token.
//
// The gradient sorts the rows by token, stably, and gives each 32 of the sorted rows to a warp for each slice of the
// columns. A warp adds its rows in order. A run of equal tokens that lies within the 32 goes straight to the table;
// what a run that crosses into a neighbouring warp has here is left as a partial sum, keyed by the token, and the
// partial sums are rows of the same problem, 16 times smaller. So a token that fills half of the batch is summed as
// quickly as any other, no atomics are needed, and the order of each sum follows from the tokens alone.
#include <utility>

#include "kernels/cuda/linear/stored.h"
#include "kernels/cuda/vector.h"
#include "kernels/error.h"
#include "kernels/view_text.h"

namespace qeng {

namespace {

// ---------------------------------------------------------------- forward

constexpr int kCopyWarps = 8, kCopyVectors = 4;

// A warp copies four accesses a lane of one row. token: checked by the warps of the row's first piece.
template <class T, int n>
__global__ void __launch_bounds__(kCopyWarps* kWarp) gather_rows(const int32_t* tokens, int64_t count, const T* table,
                                                                 int64_t vocab, int64_t hidden, T* y, Fault* fault) {
  const int64_t row = int64_t{blockIdx.x} * kCopyWarps + threadIdx.x / kWarp;
  if (row >= count) return;
  int64_t token = tokens[row];
  if (token < 0 || token >= vocab) {
    if (blockIdx.y == 0 && threadIdx.x % kWarp == 0) report(fault, FaultKind::token, row, token, vocab);
    token = 0;
  }
  const int64_t column = (int64_t{blockIdx.y} * kCopyVectors * kWarp + threadIdx.x % kWarp) * n;
  const T* from = table + token * hidden;
  Pack<T, n> packs[kCopyVectors] = {};
  for (int u = 0; u < kCopyVectors; ++u)
    if (column + u * kWarp * n < hidden) packs[u] = load<n>(from + column + u * kWarp * n);
  for (int u = 0; u < kCopyVectors; ++u)
    if (column + u * kWarp * n < hidden) store(y + row * hidden + column + u * kWarp * n, packs[u]);
}

// ---------------------------------------------------------------- stable sort

// A digit of 9 bits: two passes sort the tokens of a vocabulary of up to 262143, and the counts of 32 warps fit 48 KB.
constexpr int kDigitBits = 9, kDigits = 1 << kDigitBits, kSortThreads = 1024, kSortWarps = kSortThreads / kWarp;

struct SortShared {
  uint32_t total[kDigits];                 // keys with this digit; after the scan, those with a digit up to this one
  uint32_t before[kDigits];                // keys with this digit in earlier tiles
  uint16_t in_warps[kSortWarps][kDigits];  // in this tile: of each warp, then of the warps before it
};

// Keys in the order of one digit, each with its row; a block places a tile of 1024. rows: null where they are 0,
// 1, 2.., which is the first pass; it reports the tokens outside [0, vocab), which become keys of value vocab. Each
// block counts all the keys itself: 64 times the reading for 65536 of them, but from the L2 cache, and one launch in
// place of three.
__global__ void __launch_bounds__(kSortThreads)
    sort_digit(const int32_t* keys, const int32_t* rows, int count, int64_t vocab, int shift, int32_t* sorted_keys,
               int32_t* sorted_rows, Fault* fault) {
  auto& shared = *reinterpret_cast<SortShared*>(shared_memory());
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const int begin = static_cast<int>(blockIdx.x) * kSortThreads, mine = begin + thread;
  const auto key_of = [=](int i) {
    const int32_t key = keys[i];
    return key < 0 || key > vocab ? static_cast<uint32_t>(vocab) : static_cast<uint32_t>(key);
  };
  const auto digit_of = [=](uint32_t key) { return key >> shift & (kDigits - 1); };

  for (int i = thread; i < kDigits; i += kSortThreads) shared.total[i] = shared.before[i] = 0;
  for (int i = thread; i < kSortWarps * kDigits; i += kSortThreads) shared.in_warps[i / kDigits][i % kDigits] = 0;
  __syncthreads();
  constexpr int kBatch = 8;  // loads under way in a thread
  for (int base = thread; base < count; base += kBatch * kSortThreads) {
    uint32_t digits[kBatch] = {};
    for (int u = 0; u < kBatch; ++u)
      if (base + u * kSortThreads < count) digits[u] = digit_of(key_of(base + u * kSortThreads));
    for (int u = 0; u < kBatch; ++u) {
      if (base + u * kSortThreads < count) atomicAdd(&shared.total[digits[u]], 1u);
      if (base + u * kSortThreads < begin) atomicAdd(&shared.before[digits[u]], 1u);
    }
  }

  // Lanes with the same digit, in the order of the lanes.
  const bool present = mine < count;
  const uint32_t key = present ? key_of(mine) : 0, digit = digit_of(key);
  if (present && !rows && (keys[mine] < 0 || keys[mine] >= vocab))
    report(fault, FaultKind::token, mine, keys[mine], vocab);
  uint32_t peers = __ballot_sync(kAllLanes, present);
  for (int bit = 0; bit < kDigitBits; ++bit) {
    const bool set = digit >> bit & 1u;
    const uint32_t lanes = __ballot_sync(kAllLanes, set);
    peers &= set ? lanes : ~lanes;
  }
  const int earlier = __popc(peers & ((1u << lane) - 1u));
  if (present && earlier == 0) shared.in_warps[warp][digit] = static_cast<uint16_t>(__popc(peers));
  __syncthreads();

  if (thread < kDigits) {
    int sum = 0;
    for (int w = 0; w < kSortWarps; ++w) {
      const int in_warp = shared.in_warps[w][thread];
      shared.in_warps[w][thread] = static_cast<uint16_t>(sum);
      sum += in_warp;
    }
  }
  for (int step = 1; step < kDigits; step *= 2) {
    const bool adds = thread < kDigits && thread >= step;
    const uint32_t addend = adds ? shared.total[thread - step] : 0;
    __syncthreads();
    if (adds) shared.total[thread] += addend;
    __syncthreads();
  }
  if (!present) return;
  const uint32_t place = (digit ? shared.total[digit - 1] : 0) + shared.before[digit] + shared.in_warps[warp][digit] +
                         static_cast<uint32_t>(earlier);
  sorted_keys[place] = static_cast<int32_t>(key), sorted_rows[place] = rows ? rows[mine] : mine;
}

// ---------------------------------------------------------------- sums of runs

// Rows to be added: that of place i is row rows[i] of source (-1: none) and belongs to token keys[i]. Equal keys are
// neighbours; a key outside [0, vocab) belongs to nothing.
template <class T>
struct SortedRows {
  const int32_t *keys, *rows;
  int count;
  const T* source;
  bool to_table;  // a sum begins with what the table holds; partial sums have that already
};
// A place for the first run of a window of 32 places and one for the last: [2 * windows] keys and rows, whose sums are
// the rows of sums.
struct PartialRows {
  int32_t *keys, *rows;
  float* sums;
};

constexpr int kWindow = kWarp, kRunWarps = 8, kRunRows = 8;  // rows: under way at once in a lane

template <class T, int n>
__global__ void __launch_bounds__(kRunWarps* kWarp)
    sum_runs(SortedRows<T> in, int vocab, int64_t hidden, float* dtable, PartialRows out) {
  const int window = static_cast<int>(blockIdx.x * kRunWarps + threadIdx.x / kWarp), begin = window * kWindow;
  if (begin >= in.count) return;
  const int lane = static_cast<int>(threadIdx.x % kWarp), place = begin + lane;
  const int64_t column = (int64_t{blockIdx.y} * kWarp + lane) * n;
  constexpr int kNone = -1;
  const auto key_at = [&](int i) {
    const int key = i >= 0 && i < in.count ? in.keys[i] : kNone;
    return key < vocab ? key : kNone;
  };

  const int key = key_at(place), row = key != kNone ? in.rows[place] : -1;
  const int left = key_at(begin - 1), right = key_at(begin + kWindow);
  const int first = __shfl_sync(kAllLanes, key, 0), last = __shfl_sync(kAllLanes, key, kWindow - 1);
  const int previous = __shfl_up_sync(kAllLanes, key, 1), next = __shfl_down_sync(kAllLanes, key, 1);
  const bool enters = first != kNone && left == first, leaves = last != kNone && right == last;
  const uint32_t starts = __ballot_sync(kAllLanes, key != kNone && (lane == 0 ? !enters : key != previous)),
                 ends = __ballot_sync(kAllLanes, key != kNone && (lane == kWindow - 1 || key != next));
  const auto crosses = [=](int token) { return (enters && token == first) || (leaves && token == last); };
  if (blockIdx.y == 0 && lane < 2 && out.keys) {
    // The last place of a window that its first run fills keeps the run together: it has the token and no row.
    const int token = lane == 0 ? first : leaves ? last : kNone;
    out.keys[2 * window + lane] = crosses(token) ? token : kNone;
    out.rows[2 * window + lane] = crosses(token) && (lane == 0 || first != last) ? 2 * window + lane : -1;
  }

  float sum[n] = {};
  for (int j = 0; j < kWindow && ends >> j != 0; j += kRunRows) {
    Pack<float, n> table[kRunRows] = {};
    Pack<T, n> rows[kRunRows] = {};
    int tokens[kRunRows];
    for (int u = 0; u < kRunRows; ++u) {
      const int from = __shfl_sync(kAllLanes, row, j + u);
      tokens[u] = __shfl_sync(kAllLanes, key, j + u);
      const bool starts_here = in.to_table && (starts >> (j + u) & 1u);
      if (starts_here && column < hidden) table[u] = load<n>(dtable + tokens[u] * hidden + column);
      if (from >= 0 && column < hidden) rows[u] = load_once<n>(in.source + from * hidden + column);
    }
    for (int u = 0; u < kRunRows; ++u) {
      float before[n], value[n];
      unpack(table[u], before), unpack(rows[u], value);
      for (int k = 0; k < n; ++k) sum[k] = sum[k] + before[k] + value[k];
      if (!(ends >> (j + u) & 1u)) continue;
      float* to =
          crosses(tokens[u]) ? out.sums + (2 * window + (tokens[u] != first)) * hidden : dtable + tokens[u] * hidden;
      if (column < hidden) store(to + column, pack<float>(sum));
      for (int k = 0; k < n; ++k) sum[k] = 0;
    }
  }
}

// ---------------------------------------------------------------- launchers

// Every token is outside a table of no rows, and there is no row to read in its place.
void check_rows(const char* op, const char* label, const View& table, int64_t count) {
  if (count > 0 && table.rows() == 0) fail("value", op, ": ", label, " is ", shape_text(table), ": no rows");
}

// Sorts the rows of dy by their tokens; the rows of tokens outside the table come last, with the key vocab.
template <class T>
SortedRows<T> sort_by_token(const EmbeddingGrad& op, int count, int64_t vocab, CudaContext& context) {
  SortedRows<T> in{op.tokens.as<int32_t>(), nullptr, count, op.dy.as<T>(), true};
  int32_t* buffers[2] = {context.scratch.take<int32_t>(2 * int64_t{count}),
                         context.scratch.take<int32_t>(2 * int64_t{count})};
  for (int shift = 0, pass = 0; pass == 0 || vocab >> shift != 0; shift += kDigitBits, ++pass) {
    int32_t *keys = buffers[pass % 2], *rows = keys + count;
    launch(context, op.name, sort_digit, dim3(static_cast<unsigned>(ceil_div(count, kSortThreads))), dim3(kSortThreads),
           sizeof(SortShared), in.keys, in.rows, count, vocab, shift, keys, rows, context.fault);
    in.keys = keys, in.rows = rows;
  }
  return in;
}

template <class T>
void sum_windows(const EmbeddingGrad& op, const SortedRows<T>& in, int64_t windows, const PartialRows& out,
                 CudaContext& context) {
  constexpr int width = kVector<T, float>;
  const int64_t hidden = op.dtable.columns();
  const bool vectors = hidden % width == 0 && aligned_for(width, op.dy, op.dtable);
  const int n = vectors ? width : 1;
  launch(context, op.name, vectors ? sum_runs<T, width> : sum_runs<T, 1>,
         dim3(static_cast<unsigned>(ceil_div(windows, kRunWarps)), static_cast<unsigned>(ceil_div(hidden, kWarp * n))),
         dim3(kRunWarps * kWarp), 0, in, op.dtable.rows(), hidden, op.dtable.as<float>(), out);
}

}  // namespace

void run(const Embedding& op, CudaContext& context) {
  const int64_t count = op.tokens.elements(), hidden = op.table.columns();
  check_rows(op.name, "table", op.table, count);
  if (is_stored_only(op.table.dtype) || op.table.dtype != op.y.dtype)
    return decode_rows(op.name, {op.table, 0, count, 0, hidden, op.tokens.as<int32_t>(), op.y.data, op.y.dtype},
                       context);
  for_float(op.table, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int width = kVector<T>;
    const bool vectors = hidden % width == 0 && aligned_for(width, op.table, op.y);
    const int piece = kCopyVectors * kWarp * (vectors ? width : 1);
    launch(context, op.name, vectors ? gather_rows<T, width> : gather_rows<T, 1>,
           dim3(static_cast<unsigned>(ceil_div(count, kCopyWarps)), static_cast<unsigned>(ceil_div(hidden, piece))),
           dim3(kCopyWarps * kWarp), 0, op.tokens.as<int32_t>(), count, op.table.as<T>(), op.table.rows(), hidden,
           op.y.as<T>(), context.fault);
  });
}

void run(const EmbeddingGrad& op, CudaContext& context) {
  const int64_t count = op.tokens.elements(), hidden = op.dtable.columns();
  check_rows(op.name, "dtable", op.dtable, count);
  if (count * hidden == 0) return;

  const auto partials = [&](int64_t places) {
    int32_t* keys = context.scratch.take<int32_t>(2 * places);
    return PartialRows{keys, keys + places, context.scratch.take<float>(places * hidden)};
  };
  int64_t windows = ceil_div(count, kWindow), places = windows > 1 ? 2 * windows : 0;
  PartialRows out{}, spare{};
  if (places > 0) out = partials(places);
  for_float(op.dy, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    sum_windows(op, sort_by_token<T>(op, static_cast<int>(count), op.dtable.rows(), context), windows, out, context);
  });
  if (places > kWindow) spare = partials(2 * ceil_div(places, kWindow));
  while (places > 0) {
    const SortedRows<float> in{out.keys, out.rows, static_cast<int>(places), out.sums, false};
    windows = ceil_div(places, kWindow), places = windows > 1 ? 2 * windows : 0;
    std::swap(out, spare);
    sum_windows(op, in, windows, places > 0 ? out : PartialRows{}, context);
  }
}

}  // namespace qeng
