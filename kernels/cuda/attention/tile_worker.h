// A thread of paged_tiles.cu at work: the copies that it starts, its part of the scores, of the softmax and of the sums.
#pragma once
#include "kernels/cuda/attention/tile_memory.h"

namespace qeng::tiles {

// One thread's part in an item and a turn of its rows.
template <class F>
struct Worker {
  const PagedSides& a;
  Shared<F>& s;
  const CodeReader key_codes, value_codes;
  const int lane, warp, g, t, value_runs;
  int own_bits[F::kOwnRuns], own_bytes[F::kOwnRuns], own_chunks[F::kOwnRuns];  // of the warp's runs in a tile of codes
  int key_chunks;
  PagedItem item;
  int kv_head, heads, first_head, rows, turn, end, lowest, recent, first, last;  // first, last: keys of the piece
  int high[F::kTiles][2];                                                        // a row sees the keys below

  __device__ Worker(const PagedSides& sides, const CodeTables& layout, Shared<F>& shared)
      : a(sides),
        s(shared),
        key_codes(shared_memory(), layout, false),
        value_codes(shared_memory(), layout, true),
        lane(static_cast<int>(threadIdx.x) % kWarp),
        warp(uniform(static_cast<int>(threadIdx.x) / kWarp)),
        g(lane / 4),
        t(lane % 4),
        value_runs(sides.values.runs) {
#pragma unroll
    for (int own = 0; own < F::kOwnRuns; ++own) {
      const int run = own_run(own);
      own_bits[own] = a.values.run_bits(run), own_bytes[own] = 4 * a.values.run_words(run);
      own_chunks[own] = run < value_runs ? 4 * own_bits[own] : 0;
    }
    key_chunks = a.keys.tile_words / 4 + 2;  // with the scales
  }

  __device__ int own_run(int i) const { return F::kHalves ? warp / 2 : warp + i * kWarps; }
  __device__ int half_of(int unit) const { return F::kHalves ? warp % 2 : unit % 2; }
  __device__ int unit_dim(int unit) const {  // the thread's first dimension of it
    return own_run(unit / 2) * kv_codes::kRun + half_of(unit) * kUnit + 2 * g;
  }
  __device__ bool has_unit(int unit) const { return own_run(unit / 2) < value_runs; }
  __device__ int64_t place_of(int slot) const { return int64_t{slot} * a.out.shape.kv_heads + kv_head; }
  __device__ int64_t row_at(int r, int dim) const {  // the first column of row r in q or o
    return (int64_t{item.first + r / heads} * a.out.shape.heads + first_head + r % heads) * dim;
  }
  // Whether an item takes a key from the rows, for some query.
  __device__ bool is_row(const PagedSide& side, int key) const {
    return key >= lowest && key < last && (!side.codes || key < a.exact_first || key >= recent);
  }

  __device__ void begin_item(int next) {
    const PagedShape& shape = a.out.shape;
    item = a.out.plan->list()[next / shape.columns];
    kv_head = next % shape.columns / shape.head_blocks;
    const int head_block = next % shape.columns % shape.head_blocks * shape.tile_heads;
    heads = min(shape.tile_heads, shape.group - head_block), first_head = kv_head * shape.group + head_block;
    rows = item.queries * heads, end = item.seen + item.queries - 1;
    lowest = shape.window > 0 ? max(0, item.seen - shape.window) : 0, recent = a.recent(item.seen);
  }

  // Rows of q as fragments: in bf16, and in f16 times a power of two that brings the largest element to 2^14, so that
  // nothing is lost but what is 2^-30 of it. Kept is what takes that back.
  __device__ void begin_turn(int first_row) {
    const int dim = a.out.shape.dim;
    turn = first_row;
    __syncthreads();
    for (int i = warp; i < F::kRows; i += kWarps) {
      const bf16* q = turn + i < rows ? static_cast<const bf16*>(a.q) + row_at(turn + i, dim) : nullptr;
      float largest = 0;
      for (int d = lane; d < dim; d += kWarp) largest = fmaxf(largest, q ? fabsf(to_f32(q[d])) : 0.0f);
      const uint32_t exponent = min(max(bits_of(warp_max(largest)) >> 23, 16u), 250u);
      const float up = float_of((268 - exponent) << 23), down = float_of((exponent - 14) << 23);  // 2^(141 - exponent)
      for (int d = lane; d < dim; d += kWarp) {
        const float x = q ? to_f32(q[d]) : 0.0f;
        const int run = d / kv_codes::kRun, place = i % 8 * 4 + d % kv_codes::kRun / 8;
        put(reinterpret_cast<f16*>(&s.q_half[run][i / 8][place]) + d % 8, x * up);
        put(reinterpret_cast<bf16*>(&s.q_bf16[run][i / 8][place]) + d % 8, x);
      }
      if (lane == 0) s.factors[i] = down * a.scale;
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < F::kTiles; ++n)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int i = 8 * n + 2 * t + j;
        high[n][j] = turn + i < rows ? item.seen + (turn + i) / heads : 0;
      }
  }

  // Looks up where the keys of a piece are.
  __device__ void begin_piece(int piece) {
    first = piece * kPieceKeys, last = min(first + kPieceKeys, end);
    __syncthreads();
    if (threadIdx.x < sizeof(s.needs)) {
      const int i = static_cast<int>(threadIdx.x), begin = first + i * kTileKeys, stop = min(begin + kTileKeys, last);
      uint32_t needs = 0;
      if (begin < last && stop > lowest) {
        const Sources keys = sources_of(a, a.keys, begin, stop, item.seen, end),
                      values = sources_of(a, a.values, begin, stop, item.seen, end);
        needs = (keys.codes ? kKeyCodes : 0u) | (keys.rows ? kKeyRows : 0u) | (values.codes ? kValueCodes : 0u) |
                (values.rows ? kValueRows : 0u);
      }
      const auto find = [&](const int32_t* pages, int pool_pages) {
        return slot_of(a.out.shape, pages, pool_pages, item.sequence, begin, a.fault);
      };
      if (needs & (kKeyCodes | kValueCodes)) {
        const int64_t tile = place_of(find(a.pages, a.out.shape.pool_pages) / kTileKeys);
        s.key_tiles[i] = tile * 4 * (a.keys.tile_words + kv_codes::kLanes / 2);
        s.value_tiles[i] = tile * 4 * (a.values.tile_words + kv_codes::kLanes / 2);
      }
      if (needs & kKeyRows) s.key_slots[i] = find(a.keys.row_pages, a.keys.row_pool_pages);
      if (needs & kValueRows) s.value_slots[i] = find(a.values.row_pages, a.values.row_pool_pages);
      reinterpret_cast<unsigned char*>(s.needs)[i] = static_cast<unsigned char>(needs);
    }
    __syncthreads();
  }

  __device__ StepNeeds<F> needs_of(int step) const {
    StepNeeds<F> needs;
#pragma unroll
    for (int i = 0; i < F::kOwnTiles; ++i) needs.words[i] = uniform(s.needs[step][i]);
    return needs;
  }

  // Starts copying the keys of the warp's tiles of a step; and the warp's runs of the values of all its tiles.
  __device__ void stage_keys(int step, const StepNeeds<F>& needs) {
#pragma unroll
    for (int own = 0; own < F::kOwnTiles; ++own) {
      const int tile = warp * F::kOwnTiles + own;
      if (!(needs.own(warp, own) & kKeyCodes)) continue;
      constexpr int kChunks = static_cast<int>(sizeof(s.keys[0][0]) / 16);
      const char* from = a.keys.codes + s.key_tiles[step * F::kStepTiles + tile] + 16 * lane;
#pragma unroll
      for (int i = 0; i < kChunks; i += kWarp)
        if (i + lane < key_chunks) ptx::cp_async_16(s.keys[warp][own] + 16 * (i + lane), from + 16 * i);
    }
    ptx::cp_async_commit();
  }
  __device__ void stage_values(int step, const StepNeeds<F>& needs) {
    const int chunk = lane % 16;
#pragma unroll
    for (int i = 0; i < F::kStepTiles; i += 2) {
      const int tile = i + lane / 16;  // of the step
      if (!((lane < 16 ? needs.of(i) : needs.of(i + 1)) & kValueCodes)) continue;
      const char* from = a.values.codes + s.value_tiles[step * F::kStepTiles + tile] + 16 * chunk;
#pragma unroll
      for (int own = 0; own < F::kOwnRuns; ++own)
        if (chunk < own_chunks[own]) ptx::cp_async_16(s.values[warp][tile][own] + 16 * chunk, from + own_bytes[own]);
    }
    const int tile = warp * F::kOwnTiles + lane / 2;  // whose scales the warp applies
    if (lane < 2 * F::kOwnTiles && ((lane < 2 ? needs.own(warp, 0) : needs.own(warp, F::kOwnTiles - 1)) & kValueCodes))
      ptx::cp_async_16(
          &s.value_scales[tile][4 * (lane % 2)],
          a.values.codes + s.value_tiles[step * F::kStepTiles + tile] + 4 * a.values.tile_words + 16 * (lane % 2));
    ptx::cp_async_commit();
  }

  // Scores of the warp's 16 keys: of keys 2 g and 2 g + 1, each in two rows.
  using Scores = float[F::kTiles][4];
  // Of the runs [begin, stop), which have codes of so many bits; tiles that need none get what nobody asks for.
  __device__ void score_runs(int bits_of_runs, int begin, int stop, Scores (&scores)[F::kOwnTiles]) const {
    if (begin >= stop) return;
    const char* codes = s.keys[warp][0] + 4 * a.keys.run_words(begin);
    const uint32_t runs = (2u << (stop - 1)) - (1u << begin);
    for_bits(bits_of_runs, [&](auto bits) {
      constexpr int kBits = decltype(bits)::value, kBytes = 4 * kv_codes::kLanes * kBits;
      codes -= begin * kBytes;
#pragma unroll
      for (int run = 0; run < F::kRuns; ++run) {
        if (!(runs >> run & 1)) continue;
        uint4 b[F::kTiles];
#pragma unroll
        for (int n = 0; n < F::kTiles; ++n) b[n] = s.q_half[run][n][lane];
#pragma unroll
        for (int own = 0; own < F::kOwnTiles; ++own) {
          uint32_t levels[2][4];
          key_codes.template keys<kBits>(codes + own * sizeof(s.keys[0][0]) + run * kBytes, levels[0], levels[1]);
#pragma unroll
          for (int n = 0; n < F::kTiles; ++n) {
            ptx::mma_f16(scores[own][n], levels[0], b[n].x, b[n].y);
            ptx::mma_f16(scores[own][n], levels[1], b[n].z, b[n].w);
          }
        }
      }
    });
  }
  __device__ void score_codes(Scores (&scores)[F::kOwnTiles]) const {
    score_runs(a.keys.shape.bits + 1, 0, a.keys.wide_runs, scores);
    score_runs(a.keys.shape.bits, a.keys.wide_runs, a.keys.runs, scores);
#pragma unroll
    for (int own = 0; own < F::kOwnTiles; ++own) {
      float scale[2];
      ptx::unpack_f16(reinterpret_cast<const uint32_t*>(s.keys[warp][own])[a.keys.tile_words + g], scale[0], scale[1]);
#pragma unroll
      for (int n = 0; n < F::kTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[own][n][i] *= scale[i / 2] * s.factors[8 * n + 2 * t + i % 2];
    }
  }
  __device__ void score_rows(int tile, Scores& scores) const {
    const PagedShape& shape = a.out.shape;
    const int begin = first + tile * kTileKeys;
    Scores products = {};
#pragma unroll 1
    for (int run = 0; run < a.keys.runs; ++run) {
      uint32_t pairs[2][4], rests[2][4];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float x[8] = {};
        if (is_row(a.keys, begin + 2 * g + j))
          read_rows<8>(a.keys, place_of(s.key_slots[tile] + 2 * g + j) * shape.dim + run * kv_codes::kRun + 8 * t, x);
#pragma unroll
        for (int i = 0; i < 4; ++i) pairs[j][i] = split_bf16(x[2 * i], x[2 * i + 1], rests[j][i]);
      }
#pragma unroll
      for (int n = 0; n < F::kTiles; ++n) {
        const uint4 b = s.q_bf16[run][n][lane];
        ptx::mma_bf16(products[n], {pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1]}, b.x, b.y);
        ptx::mma_bf16(products[n], {pairs[0][2], pairs[1][2], pairs[0][3], pairs[1][3]}, b.z, b.w);
        if (a.keys.stored == Stored::bf16) continue;
        ptx::mma_bf16(products[n], {rests[0][0], rests[1][0], rests[0][1], rests[1][1]}, b.x, b.y);
        ptx::mma_bf16(products[n], {rests[0][2], rests[1][2], rests[0][3], rests[1][3]}, b.z, b.w);
      }
    }
#pragma unroll
    for (int n = 0; n < F::kTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (from_rows(a, a.keys, begin + 2 * g + i / 2, high[n][i % 2])) scores[n][i] = products[n][i] * a.scale;
  }
  // Caps scores, and masks those that a row does not see.
  __device__ void finish_scores(int tile, Scores& scores) const {
    const int begin = first + tile * kTileKeys, window = a.out.shape.window;
    if (a.softcap > 0)
#pragma unroll
      for (int n = 0; n < F::kTiles; ++n)
        for (float& score : scores[n]) score = a.softcap * tanhf(score * a.inverse_cap);
    if (begin + kTileKeys <= min(item.seen, last) && (window == 0 || begin >= end - window)) return;
#pragma unroll
    for (int n = 0; n < F::kTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = begin + 2 * g + i / 2, row_end = high[n][i % 2];
        if (key >= min(row_end, last) || (window > 0 && key < row_end - window)) scores[n][i] = kMasked;
      }
  }

  // The softmax over the keys of a step, and the probabilities of the warp's own as B: lane 4 r + i of a tile has keys
  // 4 i to 4 i + 3 of row r. Ends with a barrier.
  __device__ void probabilities(int step, const StepNeeds<F>& step_needs, const Scores (&scores)[F::kOwnTiles],
                                Sums<F>& sums) {
#pragma unroll
    for (int n = 0; n < F::kTiles; ++n) {
      float2 top = make_float2(kMasked, kMasked);
#pragma unroll
      for (const Scores& own : scores)
        top = make_float2(fmaxf(top.x, fmaxf(own[n][0], own[n][2])), fmaxf(top.y, fmaxf(own[n][1], own[n][3])));
      top = make_float2(rows_max(top.x), rows_max(top.y));
      if (g == 0) *reinterpret_cast<float2*>(&s.tops[warp][8 * n + 2 * t]) = top;
    }
    __syncthreads();
    float offset[F::kTiles][2];
#pragma unroll
    for (int n = 0; n < F::kTiles; ++n) {
      float2 top = make_float2(kMasked, kMasked);
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float2 other = *reinterpret_cast<const float2*>(&s.tops[w][8 * n + 2 * t]);
        top = make_float2(fmaxf(top.x, other.x), fmaxf(top.y, other.y));
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        SoftmaxRow row{sums.top[n][j], sums.total[n][j]};
        const float before = row.raise(j ? top.y : top.x, 1);
        sums.top[n][j] = row.top, sums.total[n][j] = row.total, offset[n][j] = row.offset(1);
#pragma unroll
        for (int u = 0; u < F::kUnits; ++u) sums.o[u][n][j] *= before, sums.o[u][n][2 + j] *= before;
      }
    }
#pragma unroll
    for (int own = 0; own < F::kOwnTiles; ++own) {
      const int tile = warp * F::kOwnTiles + own, key = first + (step * F::kStepTiles + tile) * kTileKeys + 2 * g;
      const uint32_t needs = step_needs.own(warp, own);
      float scale[2] = {};
      if (needs & kValueCodes) {
        ptx::unpack_f16(s.value_scales[tile][g], scale[0], scale[1]);
        const int begin = key - 2 * g;
        if (begin < lowest || begin + kTileKeys > last)  // what nobody has written may be NaN
#pragma unroll
          for (int i = 0; i < 2; ++i)
            if (key + i < lowest || key + i >= last) scale[i] = 0;
      }
#pragma unroll
      for (int n = 0; n < F::kTiles; ++n)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float p[2];
#pragma unroll
          for (int i = 0; i < 2; ++i) p[i] = SoftmaxRow::probability(scores[own][n][j + 2 * i], 1, offset[n][j]);
          sums.total[n][j] += p[0] + p[1];
          const int at = 2 * (4 * (2 * t + j) + g / 2) + g % 2;
          float coded[2] = {p[0] * scale[0], p[1] * scale[1]};
          if (needs & kValueRows) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              const bool is_row = from_rows(a, a.values, key + i, high[n][j]);
              coded[i] = is_row ? 0 : coded[i], p[i] = is_row ? p[i] : 0;
            }
            reinterpret_cast<uint32_t*>(s.p_rows[tile][n])[at] = ptx::pack_bf16(p[0], p[1]);
          }
          reinterpret_cast<uint32_t*>(s.p_codes[tile][n])[at] = ptx::pack_bf16(coded[0], coded[1]);
        }
    }
    __syncthreads();
  }

  // Adds the values of a step, first those of codes, then the rows, to the warp's units.
  template <bool all>
  __device__ void add_codes(const StepNeeds<F>& needs, Sums<F>& sums) const {
#pragma unroll
    for (int own = 0; own < F::kOwnRuns; ++own) {
      if (own_run(own) >= value_runs) continue;
      for_bits(own_bits[own], [&](auto bits) {
        constexpr int kBits = decltype(bits)::value;
#pragma unroll
        for (int i = 0; i < F::kStepTiles; ++i) {
          if (!all && !(needs.of(i) & kValueCodes)) continue;
          uint2 b[F::kTiles];
#pragma unroll
          for (int n = 0; n < F::kTiles; ++n) b[n] = s.p_codes[i][n][lane];
#pragma unroll
          for (int half = 0; half < F::kUnits / F::kOwnRuns; ++half) {
            const int unit = 2 * own + half;
            uint32_t levels[4];
            value_codes.template values<kBits>(s.values[warp][i][own], half_of(unit), levels);
#pragma unroll
            for (int n = 0; n < F::kTiles; ++n) ptx::mma_bf16(sums.o[unit][n], levels, b[n].x, b[n].y);
          }
        }
      });
    }
  }
  __device__ void add_rows(int step, Sums<F>& sums) const {
#pragma unroll 1
    for (int i = 0; i < F::kStepTiles; ++i) {
      if (!(s.needs[step][i / 4] >> (8 * (i % 4)) & kValueRows)) continue;
      const int tile = step * F::kStepTiles + i;
#pragma unroll
      for (int u = 0; u < F::kUnits; ++u) {
        if (!has_unit(u)) continue;
        float x[4][2] = {};
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (is_row(a.values, first + tile * kTileKeys + 4 * t + j))
            read_rows<2>(a.values, place_of(s.value_slots[tile] + 4 * t + j) * a.out.shape.value_dim + unit_dim(u),
                         x[j]);
        const uint32_t rows_of_v[4] = {ptx::pack_bf16(x[0][0], x[1][0]), ptx::pack_bf16(x[0][1], x[1][1]),
                                       ptx::pack_bf16(x[2][0], x[3][0]), ptx::pack_bf16(x[2][1], x[3][1])};
#pragma unroll
        for (int n = 0; n < F::kTiles; ++n) {
          const uint2 b = s.p_rows[i][n][lane];
          ptx::mma_bf16(sums.o[u][n], rows_of_v, b.x, b.y);
        }
      }
    }
  }

  // The sums of the piece's keys. Copies run a step ahead of what uses them.
  __device__ void attend(Sums<F>& sums) {
    const int steps = (last - first + F::kStep - 1) / F::kStep;
    int step = max(0, lowest - first) / F::kStep;
    StepNeeds<F> needs = needs_of(step);
    stage_keys(step, needs), stage_values(step, needs);
    for (; step < steps; ++step) {
      const StepNeeds<F> next = needs_of(step + 1);
      Scores scores[F::kOwnTiles] = {};
      ptx::cp_async_wait<1>();
      __syncwarp();
      uint32_t own_needs = 0;
      for (int own = 0; own < F::kOwnTiles; ++own) own_needs |= needs.own(warp, own);
      if (own_needs & kKeyCodes) score_codes(scores);
      __syncwarp();
      stage_keys(step + 1, next);
#pragma unroll
      for (int own = 0; own < F::kOwnTiles; ++own) {
        const int tile = step * F::kStepTiles + warp * F::kOwnTiles + own;
        if (needs.own(warp, own) & kKeyRows) score_rows(tile, scores[own]);
        finish_scores(tile, scores[own]);
      }
      ptx::cp_async_wait<1>();
      __syncwarp();
      probabilities(step, needs, scores, sums);
      if (needs.all(kValueCodes))
        add_codes<true>(needs, sums);
      else
        add_codes<false>(needs, sums);
      __syncwarp();
      stage_values(step + 1, next);
      if (needs.any(kValueRows)) add_rows(step, sums);
      needs = next;
    }
  }

  // Leaves the sums of a piece as partial ones, or merges them.
  __device__ void end_piece(int next, Sums<F>& sums, Sums<F>& all) {
#pragma unroll
    for (int n = 0; n < F::kTiles; ++n) {
      const float even = rows_sum(sums.total[n][0]), odd = rows_sum(sums.total[n][1]);
      if (g == 0) *reinterpret_cast<float2*>(&s.totals[warp][8 * n + 2 * t]) = make_float2(even, odd);
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < F::kTiles; ++n)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int i = 8 * n + 2 * t + j, value_dim = a.out.shape.value_dim;
        const float total = s.totals[0][i] + s.totals[1][i] + s.totals[2][i] + s.totals[3][i];
        if (!a.out.partial) {
          const MergeFactors factors = merge_pieces(all.top[n][j], all.total[n][j], sums.top[n][j], total);
#pragma unroll
          for (int u = 0; u < F::kUnits; ++u)
#pragma unroll
            for (int c = j; c < 4; c += 2) all.o[u][n][c] = merged(all.o[u][n][c], sums.o[u][n][c], factors);
        } else if (turn + i < rows) {
          float* to = a.out.partial + (int64_t{next} * kTileRows + turn + i) * partial_row(value_dim);
#pragma unroll
          for (int u = 0; u < F::kUnits; ++u)
            if (has_unit(u))
              *reinterpret_cast<float2*>(to + unit_dim(u)) = make_float2(sums.o[u][n][j], sums.o[u][n][2 + j]);
          if (warp == 0 && g == 0) to[value_dim] = sums.top[n][j], to[value_dim + 1] = total;
        }
      }
  }
  __device__ void write(const Sums<F>& all) const {
#pragma unroll
    for (int n = 0; n < F::kTiles; ++n)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int r = turn + 8 * n + 2 * t + j;
        if (r >= rows) continue;
        const float* sink = a.out.sinks ? a.out.sinks + first_head + r % heads : nullptr;
        const float last_factor = finish_row(all.top[n][j], all.total[n][j], sink);
        const int64_t at = row_at(r, a.out.shape.value_dim);
#pragma unroll
        for (int u = 0; u < F::kUnits; ++u)
          if (has_unit(u))
            for (int i = 0; i < 2; ++i) put_output(a.out, at + unit_dim(u) + i, all.o[u][n][j + 2 * i] * last_factor);
      }
  }
};

}  // namespace qeng::tiles
