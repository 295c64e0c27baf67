// PagedAttention for keys and values that are stored in different ways, or coded, in f32: what paged_tiles.cu refuses. As
// paged_attention.cu, a warp owns four of a tile's 16 rows; 32 keys, or their values, lie in shared memory at a time.
#include <algorithm>

#include "kernels/cuda/attention/paged_rows.h"
#include "kernels/cuda/attention/paged_sides.h"

namespace qeng {

namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kStep = kWarp;              // keys at a time
constexpr int kOwn = kTileRows / kWarps;  // rows of a warp: warp, warp + kWarps, ..
constexpr int kColumns = 2;               // heads of at most 256

// A word at any address.
__device__ inline uint32_t read_word(const char* at) {
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word |= static_cast<uint32_t>(static_cast<unsigned char>(at[i])) << (8 * i);
  return word;
}

// Element d of a coded key or value.
__device__ float decoded(const PagedSide& side, int64_t kv_heads, int64_t slot, int kv_head, int d, bool values) {
  const kv_codes::Shape& shape = side.shape;
  const char* tile = side.codes + (slot / kv_codes::kLanes * kv_heads + kv_head) * kv_codes::tile_bytes(shape);
  const int run = d / kv_codes::kRun, bits = kv_codes::bits_of(shape, run),
            row = static_cast<int>(slot) % kv_codes::kLanes;
  const kv_codes::Place place = values ? kv_codes::value_place(row, d) : kv_codes::key_place(row, d);
  const int first = place.position * bits;
  const auto word = [&](int w) {
    return read_word(tile + 4 * (kv_codes::words_before(shape, run) + kv_codes::kLanes * w + place.lane));
  };
  const uint32_t code =
      __funnelshift_r(word(first / 32), word((first + bits - 1) / 32), static_cast<unsigned>(first % 32)) &
      ((1u << bits) - 1);
  const uint32_t scale = read_word(tile + 4 * kv_codes::tile_words(shape) + row / 2 * 4) >> (16 * (row % 2));
  return to_f32(f16{static_cast<uint16_t>(scale)}) * side.levels[code + (d < shape.wide ? 1u << shape.bits : 0u)];
}

struct Keys {
  int sequence, kv_head, begin, low, high;  // from `begin` on; those outside [low, high) are zeros
  int first_rows_end, last_rows_begin;      // from the rows come those below the one and from the other on
};
// A step of keys or values as rows of `pitch` floats, zeros to the next multiple of four.
__device__ inline void load_step(const PagedSides& a, const PagedSide& side, bool values, bool rows, const Keys& keys,
                                 float* to, int pitch) {
  const PagedShape& shape = a.out.shape;
  const int width = 4 * fours_of(side.dim);
  for (int i = static_cast<int>(threadIdx.x); i < kStep * width; i += kThreads) {
    const int d = i % width, key = keys.begin + i / width;
    const bool wanted = !rows || !side.codes || key < keys.first_rows_end || key >= keys.last_rows_begin;
    float x = 0;
    if (key >= keys.low && key < keys.high && d < side.dim && wanted) {
      const int64_t slot = rows ? slot_of(shape, side.row_pages, side.row_pool_pages, keys.sequence, key, a.fault)
                                : slot_of(shape, a.pages, shape.pool_pages, keys.sequence, key, a.fault);
      if (rows) {
        float one[1];
        read_rows<1>(side, (slot * shape.kv_heads + keys.kv_head) * side.dim + d, one);
        x = one[0];
      } else {
        x = decoded(side, shape.kv_heads, slot, keys.kv_head, d, values);
      }
    }
    to[i / width * pitch + d] = x;
  }
}

__global__ void __launch_bounds__(kThreads, 2) paged_rows_kernel(PagedSides a) {
  const PagedShape& shape = a.out.shape;
  const int fours = fours_of(shape.dim), value_fours = fours_of(shape.value_dim);
  const int pitch = pitch_of(shape.dim), value_pitch = pitch_of(shape.value_dim);
  float* q = reinterpret_cast<float*>(shared_memory());
  float *step = q + kTileRows * pitch, *p = step + kStep * max(pitch, value_pitch);
  int* shared_item = reinterpret_cast<int*>(p + kTileRows * kStep);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;

  for (int next = next_item(a.out.plan, shape.columns, shared_item); next < a.out.plan->items * shape.columns;
       next = next_item(a.out.plan, shape.columns, shared_item)) {
    const PagedItem item = a.out.plan->list()[next / shape.columns];
    const int kv_head = next % shape.columns / shape.head_blocks;
    const int head_block = next % shape.columns % shape.head_blocks * shape.tile_heads;
    const int heads = min(shape.tile_heads, shape.group - head_block);
    const int rows = item.queries * heads, end = item.seen + item.queries - 1;
    const int lowest = shape.window > 0 ? max(0, item.seen - shape.window) : 0;
    const auto head_of = [&](int r) { return kv_head * shape.group + head_block + r % heads; };
    const auto row_at = [&](int r, int dim) {  // the first column of row r in q or o
      return (int64_t{item.first + r / heads} * shape.heads + head_of(r)) * dim;
    };
    for (int r = warp; r < rows; r += kWarps)
      for (int d = lane; d < fours * 4; d += kWarp) {
        const int64_t at = row_at(r, shape.dim) + d;
        float x = 0;
        if (d < shape.dim) x = a.q_f32 ? static_cast<const float*>(a.q)[at] : to_f32(static_cast<const bf16*>(a.q)[at]);
        q[r * pitch + d] = x * a.scale;
      }

    RowSums<kColumns> all[kOwn];
    for (int piece = item.piece; piece < item.piece + item.pieces; ++piece) {
      RowSums<kColumns> sums[kOwn];
      const int first = piece * kPieceKeys, last = min(first + kPieceKeys, end);
      for (int begin = max(first, lowest / kStep * kStep); begin < last; begin += kStep) {
        const Keys keys{item.sequence, kv_head, begin, lowest, last, a.exact_first, a.recent(item.seen)};
        const int step_end = min(begin + kStep, last), key = begin + lane;
        const Sources key_sources = sources_of(a, a.keys, begin, step_end, item.seen, end),
                      value_sources = sources_of(a, a.values, begin, step_end, item.seen, end);
        float scores[kOwn] = {};
        for (int source = 0; source < 2; ++source) {
          if (!(source ? key_sources.rows : key_sources.codes)) continue;
          __syncthreads();
          load_step(a, a.keys, false, source == 1, keys, step, pitch);
          __syncthreads();
          float products[kOwn] = {};
          for (int d = 0; d < fours; ++d) {
            float four[4];
            read_four(four, step + lane * pitch + 4 * d);
#pragma unroll
            for (int i = 0; i < kOwn; ++i) {
              if (warp + i * kWarps >= rows) continue;
              float query[4];
              read_four(query, q + (warp + i * kWarps) * pitch + 4 * d);
              for (int e = 0; e < 4; ++e) products[i] = fmaf(query[e], four[e], products[i]);
            }
          }
#pragma unroll
          for (int i = 0; i < kOwn; ++i)
            if (from_rows(a, a.keys, key, item.seen + (warp + i * kWarps) / heads) == (source == 1))
              scores[i] = products[i];
        }
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          const int r = warp + i * kWarps;
          if (r >= rows) continue;
          const int high = item.seen + r / heads, low = shape.window > 0 ? high - shape.window : 0;
          if (a.softcap > 0) scores[i] = a.softcap * tanhf(scores[i] * a.inverse_cap);
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
        for (int source = 0; source < 2; ++source) {
          if (!(source ? value_sources.rows : value_sources.codes)) continue;
          __syncthreads();
          load_step(a, a.values, true, source == 1, keys, step, value_pitch);
          __syncthreads();
          for (int j = 0; j < kStep; ++j)
#pragma unroll
            for (int i = 0; i < kOwn; ++i) {
              const int r = warp + i * kWarps;
              if (r >= rows || from_rows(a, a.values, begin + j, item.seen + r / heads) != (source == 1)) continue;
              const float weight = p[r * kStep + j];
#pragma unroll
              for (int u = 0; u < kColumns; ++u) {
                if (lane + u * kWarp >= value_fours) continue;
                float value[4];
                read_four(value, step + j * value_pitch + 4 * (lane + u * kWarp));
                for (int c = 0; c < 4; ++c) sums[i].o[u][c] = fmaf(weight, value[c], sums[i].o[u][c]);
              }
            }
        }
      }
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const int r = warp + i * kWarps;
        if (r >= rows) continue;
        const int64_t place = (int64_t{next} * kTileRows + r) * partial_row(shape.value_dim);
        end_piece(all[i], sums[i], value_fours, a.out.partial ? a.out.partial + place : nullptr);
      }
    }
    if (a.out.partial) continue;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int r = warp + i * kWarps;
      if (r < rows)
        write_row(a.out, row_at(r, shape.value_dim), shape.value_dim, a.out.sinks ? a.out.sinks + head_of(r) : nullptr,
                  all[i], static_cast<int>(threadIdx.x) % kWarp);
    }
  }
}

}  // namespace

void paged_by_rows(const PagedSides& sides, CudaContext& context) {
  const PagedShape& shape = sides.out.shape;
  const int pitch = pitch_of(shape.dim), widest = std::max(pitch, pitch_of(shape.value_dim));
  const size_t shared = static_cast<size_t>(kTileRows * pitch + kStep * widest + kTileRows * kStep + 1) * sizeof(float);
  const int64_t most_items = int64_t{shape.most_tiles} * shape.most_pieces * shape.columns;
  QENG_LAUNCH(context, paged_rows_kernel, plan_blocks(most_items, context), dim3(kThreads), shared, sides);
}

}  // namespace qeng
