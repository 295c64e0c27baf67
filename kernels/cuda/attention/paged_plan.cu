#include <algorithm>

#include "kernels/cuda/attention/paged_rows.h"
#include "kernels/error.h"
#include "kernels/kv_pools.h"
#include "kernels/view_text.h"

namespace qeng {

namespace {

constexpr int kThreads = 1024, kWarps = kThreads / kWarp;

// The sum of x over the threads before this one, and over all: `all`. exchange: [kWarps + 1] in shared memory.
__device__ int sum_before(int x, int* exchange, int& all) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  int sum = x;
  for (int step = 1; step < kWarp; step *= 2) {
    const int other = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads();  // exchange may still be read from the call before
  if (lane == kWarp - 1) exchange[warp] = sum;
  __syncthreads();
  int before = 0;
  all = 0;
  for (int w = 0; w < kWarps; ++w) {
    const int part = exchange[w];
    if (w < warp) before += part;
    all += part;
  }
  return before + sum - x;
}

// starts: [sequences + 2]: the first tile of each sequence, of the rows past the last one, and the number of tiles.
__global__ void __launch_bounds__(kThreads)
    plan_pages_kernel(PagedShape shape, const int32_t* cu_q, const int32_t* lengths, int* starts, PagedPlan* plan,
                      Fault* fault) {
  ptx::begin_ahead();
  int* exchange = reinterpret_cast<int*>(shared_memory());
  const int thread = static_cast<int>(threadIdx.x), sequences = shape.sequences;
  int tiles = 0, wrong = 0;
  for (int base = 0; base <= sequences; base += kThreads) {
    const int s = base + thread;
    int begin = 0, end = 0;
    if (s <= sequences) {
      begin = cu_q[s], end = s < sequences ? cu_q[s + 1] : shape.tokens;
      if (begin < (s ? cu_q[s - 1] : 0) || begin > shape.tokens || (s == 0 && begin != 0)) {
        report(fault, FaultKind::queries, s, begin, shape.tokens);
        wrong = 1;
      }
      if (s < sequences && begin < end &&
          (lengths[s] < end - begin || lengths[s] > shape.most_pages * shape.page_tokens))
        report(fault, FaultKind::length, s, lengths[s], int64_t{shape.most_pages} * shape.page_tokens);
    }
    int more = 0, any = 0;
    sum_before(wrong, exchange, any);
    wrong = any > 0;
    const int count = any || begin >= end ? 0 : (end - begin + shape.tile_queries - 1) / shape.tile_queries;
    const int before = sum_before(count, exchange, more);
    if (s <= sequences) starts[s] = tiles + before;
    tiles += more;
  }
  if (wrong) tiles = 0;
  if (thread == 0) starts[sequences + 1] = tiles;
  __syncthreads();  // starts are for all

  int items = 0;
  for (int base = 0; base < tiles; base += kThreads) {
    const int t = tiles - 1 - (base + thread);  // from the last on, which sees the most keys
    PagedItem item{};
    if (t >= 0) {
      int low = 0, high = sequences + 1;  // the sequence that begins at or before t and has a tile: the last such
      while (high - low > 1) {
        const int middle = (low + high) / 2;
        starts[middle] <= t ? low = middle : high = middle;
      }
      const int begin = cu_q[low], end = low < sequences ? cu_q[low + 1] : shape.tokens;
      item.first = begin + (t - starts[low]) * shape.tile_queries;
      item.queries = min(shape.tile_queries, end - item.first), item.sequence = low;
      const int length = low < sequences ? lengths[low] : 0;
      if (length >= end - begin && length <= shape.most_pages * shape.page_tokens) {
        item.seen = length - (end - 1 - item.first);
        if (shape.window > 0) item.piece = max(0, item.seen - shape.window) / kPieceKeys;
        item.pieces = (item.seen + item.queries - 1 + kPieceKeys - 1) / kPieceKeys - item.piece;
      }
    }
    if (!shape.divided) {
      if (t >= 0) plan->list()[base + thread] = item;
      continue;
    }
    int more = 0;
    item.item = items + sum_before(item.pieces, exchange, more);
    items += more;
    if (t < 0) continue;
    plan->tile_list(shape)[base + thread] = item;
    PagedItem part = item;
    part.pieces = 1;
    for (int i = 0; i < item.pieces; ++i, ++part.piece) plan->list()[item.item + i] = part;
  }
  if (thread == 0) plan->items = shape.divided ? items : tiles, plan->tiles = tiles, plan->taken = 0;
}

}  // namespace

PagedShape paged_shape(const PagedAttention& op, const CudaContext& context) {
  constexpr int64_t kMost = int64_t{1} << 30;  // positions are 32 bit
  const int64_t tokens = op.q.shape[0], heads = op.q.shape[1], dim = op.q.shape[2], kv_heads = op.k_pool.shape[1];
  const int64_t value_dim = op.o.shape[2];
  const int64_t slots = pool_slots(op.k_pool, op.k_levels);
  const int64_t sequences = op.lengths.elements(), most = op.pages.shape[1], keys = most * op.page_tokens;
  if (tokens > kMost || keys > kMost || slots > kMost || heads > kMost / 1024)
    fail("unsupported", op.name, ": q is ", shape_text(op.q), ", k_pool is ", shape_text(op.k_pool), ", pages is ",
         shape_text(op.pages), "; cuda takes at most 2^30 tokens, slots and keys, and 2^20 heads");
  if (std::max(dim, value_dim) > 256)
    fail("unsupported", op.name, ": q is ", shape_text(op.q), ", v_pool is ", shape_text(op.v_pool),
         "; cuda takes heads of at most 256, the cpu backend any");
  const auto i = [](int64_t x) { return static_cast<int>(x); };
  PagedShape shape{};
  shape.tokens = i(tokens), shape.sequences = i(sequences), shape.heads = i(heads), shape.kv_heads = i(kv_heads);
  shape.group = i(heads / kv_heads), shape.dim = i(dim), shape.value_dim = i(value_dim);
  shape.most_pages = i(most), shape.page_tokens = op.page_tokens;
  shape.pool_pages = i(slots / op.page_tokens);
  shape.window = i(std::min<int64_t>(std::max(0, op.window), kMost));
  shape.tile_heads = std::min(shape.group, kTileRows);
  shape.head_blocks = i(ceil_div(shape.group, shape.tile_heads));
  // Which of them makes no difference to the bits.
  const int64_t rows = tokens * shape.tile_heads;
  const bool many = suits_paged_mma(op, context) && dim <= 128 && rows > 2 * kTileRows * sequences,
             wide = many && rows > kManyTileRows * sequences && suits_paged_sm90(op, context);
  shape.tile_rows = wide ? kWideTileRows : many ? kManyTileRows : kTileRows;
  shape.tile_queries = std::max(1, shape.tile_rows / shape.tile_heads);
  shape.columns = shape.kv_heads * shape.head_blocks;
  shape.most_tiles = i(std::min<int64_t>(tokens, tokens / shape.tile_queries + sequences + 1));
  int64_t pieces = std::max<int64_t>(1, ceil_div(keys, kPieceKeys));
  if (op.window > 0) pieces = std::min<int64_t>(pieces, (int64_t{op.window} + shape.tile_queries) / kPieceKeys + 2);
  const int64_t partials =
      int64_t{shape.most_tiles} * pieces * shape.columns * shape.tile_rows * partial_row(shape.value_dim);
  constexpr int64_t kMostPartials = int64_t{1} << 26;  // floats: 256 MB
  // Tiles that fill the device are not divided; of wide ones, half of it, as their sums are much to write.
  const int64_t fill = wide ? context.multiprocessors / 2 : int64_t{kResident} * context.multiprocessors - 1;
  shape.divided = pieces > 1 && shape.most_tiles * int64_t{shape.columns} <= fill && partials <= kMostPartials;
  shape.most_pieces = shape.divided ? i(pieces) : 1;
  shape.by_page_tokens = Divisor(shape.page_tokens), shape.by_head_blocks = Divisor(shape.head_blocks);
  shape.by_columns = Divisor(shape.columns);
  return shape;
}

PagedPlan* plan_pages(const PagedShape& shape, const View& cu_q, const View& lengths, CudaScratch& memory,
                      CudaContext& context) {
  const size_t items = static_cast<size_t>(shape.most_tiles) * static_cast<size_t>(shape.most_pieces),
               tiles = shape.divided ? static_cast<size_t>(shape.most_tiles) : 0;
  auto* plan = static_cast<PagedPlan*>(memory.take(sizeof(PagedPlan) + (items + tiles) * sizeof(PagedItem)));
  int* starts = memory.take<int>(shape.sequences + 2);
  QENG_LAUNCH_AHEAD(context, plan_pages_kernel, dim3(1), dim3(kThreads), kWarps * sizeof(int), shape,
                    cu_q.as<int32_t>(), lengths.as<int32_t>(), starts, plan, context.fault);
  return plan;
}

}  // namespace qeng
