// PagedAttention for every dtype of q and of the pool: keys and values are widened to f32 in shared memory, and sums
// are f32 in one order, so that a query has the same bits alone (decoding) and in any tile (a chunk of a prompt).
//
// A warp owns four of a tile's 16 rows. For their scores a lane has a key; for their sums it has columns, in fours.
#include "kernels/cuda/attention/paged_rows.h"
#include "kernels/cuda/attention/paged_sides.h"
#include "kernels/cuda/bounds.h"

namespace qeng {

namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kStep = kWarp;              // keys at a time
constexpr int kOwn = kTileRows / kWarps;  // rows of a warp: warp, warp + kWarps, ..
constexpr int kBatch = 4;                 // loads of keys, and as many of values, under way in a thread

// kElements neighbouring elements of a row of the pool as they lie in memory.
template <class T, int n>
struct Piece {
  Pack<T, n> pack;
  __device__ static Piece read(const T* row, int piece) { return {load<n>(row + piece * n)}; }
  __device__ void widen(float (&x)[n]) const { unpack(pack, x); }
};
// Of q8_0, whose blocks are aligned to two bytes: 8 codes.
template <>
struct Piece<blocks::Q8_0, 8> {
  uint16_t codes[4];
  f16 scale;
  __device__ static Piece read(const blocks::Q8_0* row, int piece) {
    const blocks::Q8_0& block = row[piece / 4];
    Piece result;
    for (int i = 0; i < 4; ++i) result.codes[i] = reinterpret_cast<const uint16_t*>(block.qs)[piece % 4 * 4 + i];
    result.scale = block.d;
    return result;
  }
  __device__ void widen(float (&x)[8]) const {
    const float d = to_f32(scale);
    for (int i = 0; i < 4; ++i) {
      x[2 * i] = d * static_cast<float>(static_cast<int8_t>(codes[i] & 255));
      x[2 * i + 1] = d * static_cast<float>(static_cast<int8_t>(codes[i] >> 8));
    }
  }
};
template <class T>
constexpr int kRowElements = 1;  // of a pool's row to a T
template <>
constexpr int kRowElements<blocks::Q8_0> = 32;
// Elements to a load: of 16 bytes, and where rows are not whole vectors.
template <class T>
constexpr int kWide = kRowElements<T> == 1 ? static_cast<int>(16 / sizeof(T)) : 8;
template <class T>
constexpr int kNarrow = kRowElements<T> == 1 ? 1 : 8;

template <class T>
struct Paged {
  const void* q;
  void* o;
  bool q_f32;
  const T *k_pool, *v_pool;
  const int32_t* pages;
  float scale, softcap, inverse_cap;  // scale and softcap times log2(e), and 1 / softcap
  const float* sinks;                 // [heads], or null
  bool vectors;                       // rows of the pools are whole 16-byte vectors
  bool in_turn;                       // values take the place of keys, where shared memory is too small for both
  float* partial;                     // of a divided plan: [items, columns, kTileRows, partial_row]
  PagedShape shape;
  PagedPlan* plan;
  Fault* fault;
};

// kPlain: rows of keys and values have one length, and there are neither sinks nor a softcap, which saves registers.
template <bool kPlain>
__device__ int value_dim_of(const PagedShape& shape) {
  return kPlain ? shape.dim : shape.value_dim;
}

// Keys [begin, begin + kStep) of a sequence and their values, as rows of key_pitch and value_pitch floats; those outside
// [low, high) are zeros, and so are columns from the row's end to the next multiple of four. With
// kInTurn k or v may be null: not wanted.
template <class T, int n, bool kPlain, bool kInTurn>
__device__ void load_keys(const Paged<T>& a, int sequence, int kv_head, int begin, int low, int high, int key_pitch,
                          int value_pitch, float* k, float* v) {
  const PagedShape& shape = a.shape;
  const int value_dim = value_dim_of<kPlain>(shape);
  const int key_pieces = (n == 1 ? 4 * fours_of(shape.dim) : shape.dim) / n;
  const int value_pieces = (n == 1 ? 4 * fours_of(value_dim) : value_dim) / n;
  const int pieces = max(key_pieces, value_pieces);
  for (int base = static_cast<int>(threadIdx.x); base < kStep * pieces; base += kBatch * kThreads) {
    Piece<T, n> keys[kBatch] = {}, values[kBatch] = {};
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int i = base + u * kThreads, row = i / pieces, piece = i % pieces, key = begin + row;
      if (row >= kStep || key < low || key >= high || piece * n >= max(shape.dim, value_dim)) continue;
      int page = a.pages[int64_t{sequence} * shape.most_pages + key / shape.page_tokens];
      if (page < 0 || page >= shape.pool_pages) {
        report(a.fault, FaultKind::page, sequence, page, shape.pool_pages);
        page = 0;
      }
      const int64_t slot = int64_t{page} * shape.page_tokens + key % shape.page_tokens;
      const int64_t place = slot * shape.kv_heads + kv_head, at = place * (shape.dim / kRowElements<T>);
      const int64_t value_at = kPlain ? at : place * (value_dim / kRowElements<T>);
      if ((!kInTurn || k) && (kPlain || piece * n < shape.dim)) keys[u] = Piece<T, n>::read(a.k_pool + at, piece);
      if ((!kInTurn || v) && (kPlain || piece * n < value_dim))
        values[u] = Piece<T, n>::read(a.v_pool + value_at, piece);
    }
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int i = base + u * kThreads, row = i / pieces, piece = i % pieces;
      if (row >= kStep) continue;
      float x[n];
      keys[u].widen(x);
      if ((!kInTurn || k) && (kPlain || piece < key_pieces))
        for (int e = 0; e < n; ++e) k[row * key_pitch + piece * n + e] = x[e];
      values[u].widen(x);
      if ((!kInTurn || v) && (kPlain || piece < value_pieces))
        for (int e = 0; e < n; ++e) v[row * value_pitch + piece * n + e] = x[e];
    }
  }
}

template <class T, int kColumns, bool kPlain>
__global__ void QENG_BOUNDS(kThreads, 0, 1) paged_attention_kernel(Paged<T> a) {
  const PagedShape& shape = a.shape;
  const int value_dim = value_dim_of<kPlain>(shape);
  const int fours = fours_of(shape.dim), pitch = 4 * fours + 4;  // pitch_of(), by what is there
  const int value_fours = fours_of(value_dim), value_pitch = 4 * value_fours + 4;
  float* q = reinterpret_cast<float*>(shared_memory());
  const bool in_turn = kColumns > 1 && a.in_turn;
  float *k = q + kTileRows * pitch, *v = in_turn ? k : k + kStep * pitch;
  float* p = in_turn ? k + kStep * max(pitch, value_pitch) : v + kStep * value_pitch;
  int* shared_item = reinterpret_cast<int*>(p + kTileRows * kStep);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;

  for (int next = next_item(a.plan, shape.columns, shared_item); next < a.plan->items * shape.columns;
       next = next_item(a.plan, shape.columns, shared_item)) {
    const PagedItem item = a.plan->list()[next / shape.columns];
    const int kv_head = next % shape.columns / shape.head_blocks;
    const int head_block = next % shape.columns % shape.head_blocks * shape.tile_heads;
    const int heads = min(shape.tile_heads, shape.group - head_block);
    const int rows = item.queries * heads, end = item.seen + item.queries - 1;
    const int lowest = shape.window > 0 ? max(0, item.seen - shape.window) : 0;
    const auto head_of = [&](int r) { return kv_head * shape.group + head_block + r % heads; };
    const auto row_at = [&](int r, int dim) {  // the first column of row r in q or o
      const int64_t token = item.first + r / heads, head = head_of(r);
      return (token * shape.heads + head) * dim;
    };
    for (int r = warp; r < rows; r += kWarps)
      for (int d = lane; d < fours * 4; d += kWarp) {
        float x = 0;
        if (d < shape.dim)
          x = a.q_f32 ? static_cast<const float*>(a.q)[row_at(r, shape.dim) + d]
                      : to_f32(static_cast<const bf16*>(a.q)[row_at(r, shape.dim) + d]);
        q[r * pitch + d] = x * a.scale;
      }

    RowSums<kColumns> all[kOwn];
    for (int piece = item.piece; piece < item.piece + item.pieces; ++piece) {
      RowSums<kColumns> sums[kOwn];
      const int first = piece * kPieceKeys, last = min(first + kPieceKeys, end);
      for (int begin = max(first, lowest / kStep * kStep); begin < last; begin += kStep) {
        const auto load_sides = [&](float* keys, float* values) {
          const auto load_by = [&](auto n) {
            load_keys<T, n, kPlain, (kColumns > 1)>(a, item.sequence, kv_head, begin, lowest, last, pitch, value_pitch,
                                                    keys, values);
          };
          __syncthreads();
          if (a.vectors)
            load_by(std::integral_constant<int, kWide<T>>());
          else
            load_by(std::integral_constant<int, kNarrow<T>>());
          __syncthreads();
        };
        load_sides(k, in_turn ? nullptr : v);

        float scores[kOwn] = {};
        for (int d = 0; d < fours; ++d) {
          float key[4];
          read_four(key, k + lane * pitch + 4 * d);
#pragma unroll
          for (int i = 0; i < kOwn; ++i) {
            if (warp + i * kWarps >= rows) continue;
            float query[4];
            read_four(query, q + (warp + i * kWarps) * pitch + 4 * d);
            for (int e = 0; e < 4; ++e) scores[i] = fmaf(query[e], key[e], scores[i]);
          }
        }
        if (!kPlain && a.softcap > 0)
          for (float& score : scores) score = a.softcap * tanhf(score * a.inverse_cap);
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          const int r = warp + i * kWarps, key = begin + lane;
          if (r >= rows) continue;
          const int high = item.seen + r / heads, low = shape.window > 0 ? high - shape.window : 0;
          const float score = key < high && key >= low ? scores[i] : kMasked;
          RowSums<kColumns>& row = sums[i];
          SoftmaxRow softmax{row.top, row.total};
          const float factor = softmax.raise(warp_max(score), 1);
          const float probability = SoftmaxRow::probability(score, 1, softmax.offset(1));
          row.top = softmax.top, row.total = softmax.total + probability;
          p[r * kStep + lane] = probability;
          for (int u = 0; u < kColumns; ++u)
            for (float& x : row.o[u]) x *= factor;
        }
        __syncwarp();
        if (in_turn) load_sides(nullptr, v);
        for (int j = 0; j < kStep; j += 4) {
          float weights[kOwn][4];
#pragma unroll
          for (int i = 0; i < kOwn; ++i)
            if (warp + i * kWarps < rows) read_four(weights[i], p + (warp + i * kWarps) * kStep + j);
#pragma unroll
          for (int e = 0; e < 4; ++e)
#pragma unroll
            for (int u = 0; u < kColumns; ++u) {
              if (lane + u * kWarp >= value_fours) continue;
              float value[4];
              read_four(value, v + (j + e) * value_pitch + 4 * (lane + u * kWarp));
#pragma unroll
              for (int i = 0; i < kOwn; ++i)
                if (warp + i * kWarps < rows)
                  for (int c = 0; c < 4; ++c) sums[i].o[u][c] = fmaf(weights[i][e], value[c], sums[i].o[u][c]);
            }
        }
      }
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const int r = warp + i * kWarps;
        if (r >= rows) continue;
        const float total = warp_sum(sums[i].total);
        if (a.partial) {
          float* to = a.partial + (int64_t{next} * kTileRows + r) * partial_row(value_dim);
#pragma unroll
          for (int u = 0; u < kColumns; ++u)
            if (lane + u * kWarp < value_fours)
              *reinterpret_cast<float4*>(to + 4 * (lane + u * kWarp)) =
                  make_float4(sums[i].o[u][0], sums[i].o[u][1], sums[i].o[u][2], sums[i].o[u][3]);
          if (lane == 0) to[4 * value_fours] = sums[i].top, to[4 * value_fours + 1] = total;
        } else {
          const MergeFactors factors = merge_pieces(all[i].top, all[i].total, sums[i].top, total);
#pragma unroll
          for (int u = 0; u < kColumns; ++u)
            for (int c = 0; c < 4; ++c) all[i].o[u][c] = merged(all[i].o[u][c], sums[i].o[u][c], factors);
        }
      }
    }
    if (a.partial) continue;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int r = warp + i * kWarps;
      if (r >= rows) continue;
      const float* sink = !kPlain && a.sinks ? a.sinks + head_of(r) : nullptr;
      write_row(a, row_at(r, value_dim), value_dim, sink, all[i], static_cast<int>(threadIdx.x) % kWarp);
    }
  }
}

// The pieces of a tile and column, in their order. Blocks past the plan's tiles find nothing to do. kLanes: to a row.
template <int kColumns, int kLanes>
__global__ void __launch_bounds__(kThreads) merge_pages(PagedOutput a) {
  ptx::begin_ahead();
  const PagedShape& shape = a.shape;
  const auto [tile, column] = shape.by_columns.divide(static_cast<int>(blockIdx.x));
  if (tile >= a.plan->tiles) return;
  const PagedItem item = a.plan->tile_list(shape)[tile];
  const auto [kv_head, block] = shape.by_head_blocks.divide(column);
  const int first = block * shape.tile_heads, heads = min(shape.tile_heads, shape.group - first),
            fours = fours_of(shape.value_dim), floats = partial_row(shape.value_dim);
  const int64_t rows = int64_t{shape.columns} * shape.tile_rows;  // of an item
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  for (int r = static_cast<int>(threadIdx.x) / kLanes; r < item.queries * heads; r += kThreads / kLanes) {
    RowSums<kColumns> all;
    const float* from = a.partial + (item.item * rows + column * shape.tile_rows + r) * floats;
#pragma unroll 2
    for (int i = 0; i < item.pieces; ++i, from += rows * floats) {
      const float2 top_total = *reinterpret_cast<const float2*>(from + 4 * fours);
      const MergeFactors factors = merge_pieces(all.top, all.total, top_total.x, top_total.y);
#pragma unroll
      for (int u = 0; u < kColumns; ++u) {
        if (lane + u * kWarp >= fours) continue;
        float piece[4];
        read_four(piece, from + 4 * (lane + u * kWarp));
        for (int c = 0; c < 4; ++c) all.o[u][c] = merged(all.o[u][c], piece[c], factors);
      }
    }
    const int query = item.queries == 1 ? 0 : r / heads, head = kv_head * shape.group + first + r - query * heads;
    const int64_t at = (int64_t{item.first + query} * shape.heads + head) * shape.value_dim;
    write_row(a, at, shape.value_dim, a.sinks ? a.sinks + head : nullptr, all, lane);
  }
  if (!a.rounded) return;
  __syncthreads();
  const int columns = shape.group * shape.value_dim;  // of the block
  const int64_t k = int64_t{shape.kv_heads} * columns, base = int64_t{column} * columns;
  const int runs = (columns + kWarpRun - 1) / kWarpRun;
  for (int i = static_cast<int>(threadIdx.x) / kWarp; i < item.queries * runs; i += kWarps) {
    const int64_t row = item.first + i / runs;
    const int within = i % runs * kWarpRun + static_cast<int>(threadIdx.x) % kWarp * kRun;
    float values[kRun] = {};
    if (within < columns) unpack(load<kRun>(static_cast<const bf16*>(a.o) + row * k + base + within), values);
    round_run(values, within < columns, row, base + within, k, a.rounded);
  }
}

template <class T, int kColumns, bool kPlain>
void launch_paged(const PagedAttention& op, const PagedOutput& out, CudaContext& context) {
  Paged<T> a{op.q.data, out.o, out.q_f32, op.k_pool.as<T>(), op.v_pool.as<T>(), op.pages.as<int32_t>()};
  a.scale = op.scale * kLog2e, a.softcap = op.softcap * kLog2e, a.inverse_cap = op.softcap > 0 ? 1 / a.softcap : 0;
  a.sinks = out.sinks, a.partial = out.partial, a.shape = out.shape, a.plan = out.plan, a.fault = context.fault;
  if constexpr (kRowElements<T> == 1) {
    constexpr int n = 16 / sizeof(T);
    a.vectors = a.shape.dim % n == 0 && a.shape.value_dim % n == 0 && aligned_for(n, op.k_pool, op.v_pool);
  }
  const int keys = pitch_of(a.shape.dim), values = pitch_of(a.shape.value_dim);
  const auto bytes = [&](int floats) {
    return static_cast<size_t>(kTileRows * (keys + kStep) + kStep * floats + 1) * sizeof(float);
  };
  a.in_turn = bytes(keys + values) > context.shared_limit;
  const size_t shared = bytes(a.in_turn ? std::max(keys, values) : keys + values);
  const int64_t most_items = int64_t{a.shape.most_tiles} * a.shape.most_pieces * a.shape.columns;
  QENG_LAUNCH(context, (paged_attention_kernel<T, kColumns, kPlain>), plan_blocks(most_items, context), dim3(kThreads),
              shared, a);
}

// Pools of rows of one dtype.
void attend_plain(const PagedAttention& op, const PagedOutput& out, CudaContext& context) {
  const auto launch_for = [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    if (out.shape.dim != out.shape.value_dim || op.sinks || op.softcap > 0)
      launch_paged<T, 2, false>(op, out, context);
    else if (out.shape.dim <= 4 * kWarp)
      launch_paged<T, 1, true>(op, out, context);
    else
      launch_paged<T, 2, true>(op, out, context);
  };
  switch (op.k_pool.dtype) {
    case DType::q8_0: return launch_for(static_cast<blocks::Q8_0*>(nullptr));
    case DType::f16: return launch_for(static_cast<f16*>(nullptr));
    case DType::bf16: return launch_for(static_cast<bf16*>(nullptr));
    default: return launch_for(static_cast<float*>(nullptr));
  }
}

}  // namespace

void merge_partials(const PagedOutput& out, CudaContext& context) {
  const dim3 grid(static_cast<unsigned>(out.shape.most_tiles * out.shape.columns));
  const int fours = fours_of(out.shape.value_dim);
  if (fours <= kWarp / 2)
    QENG_LAUNCH_AHEAD(context, (merge_pages<1, kWarp / 2>), grid, dim3(kThreads), 0, out);
  else if (fours <= kWarp)
    QENG_LAUNCH_AHEAD(context, (merge_pages<1, kWarp>), grid, dim3(kThreads), 0, out);
  else
    QENG_LAUNCH_AHEAD(context, (merge_pages<2, kWarp>), grid, dim3(kThreads), 0, out);
}

void attend(const PagedAttention& op, const PagedShape& shape, PagedPlan* plan, const RoundedRows& rounded,
            CudaContext& context) {
  PagedOutput out{op.o.data, op.q.dtype == DType::f32, op.sinks ? op.sinks.as<float>() : nullptr, nullptr, shape, plan,
                  rounded};
  if (shape.divided)
    out.partial = context.scratch.take<float>(int64_t{shape.most_tiles} * shape.most_pieces * shape.columns *
                                              shape.tile_rows * partial_row(shape.value_dim));
  if (shape.tile_rows == kWideTileRows) {
    paged_by_wgmma(op, out, context);
  } else if (suits_paged_mma(op, context)) {
    paged_by_mma(op, out, context);
  } else if (!op.k_levels && !op.v_levels && op.k_pool.dtype == op.v_pool.dtype) {
    attend_plain(op, out, context);
  } else {
    const PagedSides sides = paged_sides(op, out, context);
    if (!paged_by_tiles(sides, context)) paged_by_rows(sides, context);
  }
  if (out.partial) merge_partials(out, context);
}

bool rounds_merged(const PagedShape& shape) {
  return shape.divided && shape.head_blocks == 1 && shape.value_dim % kRun == 0;
}

void run(const PagedAttention& op, CudaContext& context) {
  const PagedShape shape = paged_shape(op, context);
  if (op.q.elements() == 0) return;
  attend(op, shape, plan_pages(shape, op.cu_q, op.lengths, context.scratch, context), {}, context);
}

}  // namespace qeng
