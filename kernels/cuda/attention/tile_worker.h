// A thread of paged_tiles.cu at work: the copies that it starts, its part of the scores, of the softmax and of the sums.
#pragma once
#include "kernels/cuda/attention/tile_memory.h"

namespace qeng::tiles {

// One thread's part in an item and a turn of its rows.
template <class F>
struct Worker {
  const PagedSides& a;
  Shared<F>& s;
  const CodeReader key_levels, value_levels;
  const int lane, warp, g, t, items;
  static constexpr int kKeyCopies = F::kRuns * kRunBytes / 16 / kWarp;  // of a tile, for a lane, at most
  int own_bits[F::kOwnRuns], own_bytes[F::kOwnRuns];                    // of the warp's runs in a tile of codes
  int own_copies[F::kOwnRuns];          // of values: whether a copy of 16 bytes is the lane's
  const char *keys_from, *values_from;  // what the thread takes of tile 0 of a pool
  const char* scales_from;              // and of the scales: two lanes to each of the warp's tiles, first those of keys
  uint32_t scales_every, scales_to, scales_bit;  // bytes of a tile there; where they go; which codes must be there
  int turn, first, last;                         // first, last: keys of the piece
  Needs needs;

  __device__ Worker(const PagedSides& sides, const CodeTables& layout, Shared<F>& shared)
      : a(sides),
        s(shared),
        key_levels(shared_memory(), layout, false),
        value_levels(shared_memory(), layout, true),
        lane(static_cast<int>(threadIdx.x) % kWarp),
        warp(uniform(static_cast<int>(threadIdx.x) / kWarp)),
        g(lane / 4),
        t(lane % 4),
        items(sides.out.plan->items * sides.out.shape.columns) {
#pragma unroll
    for (int own = 0; own < F::kOwnRuns; ++own) {
      const int run = own_run(own), bits = own_bits[own] = a.values.run_bits(run);
      own_bytes[own] = 4 * a.values.run_words(run) + kWordBytes * words_before_half(bits);
      const int chunks = run < a.values.runs ? kWordBytes / 16 * (F::kHalves ? (bits + 1) / 2 : bits) : 0;
      own_copies[own] = ptx::opaque(lane % F::kCopyLanes < chunks ? 1 : 0);
    }
    keys_from = in_registers(a.keys.codes + 16 * lane);
    values_from = in_registers(a.values.codes + own_bytes[0] + 16 * (lane % F::kCopyLanes));
    const bool of_keys = lane < 2 * kOwnTiles;
    const PagedSide& side = of_keys ? a.keys : a.values;
    const int tile = scaled_tile();
    scales_from = in_registers(side.codes + 4 * side.tile_words + 16 * (lane % 2));
    scales_every = ptx::opaque(of_keys ? key_bytes() : value_bytes());
    scales_to = of_keys ? ptx::shared_address(s.keys[warp][tile % F::kStagedKeys]) + 4 * a.keys.tile_words
                        : ptx::shared_address(&s.value_scales[own_tile(tile)]);
    scales_to = ptx::opaque(scales_to + 16 * (lane % 2));
    scales_bit = ptx::opaque(lane < 4 * kOwnTiles ? 1u << (own_tile(tile) + (of_keys ? 0 : kPieceTiles)) : 0);
    if (warp == 0 && lane == 0) s.task.rows = s.task.turn = s.task.piece = s.task.pieces_end = 0;  // no item yet
  }

  __device__ int own_run(int i) const { return F::kHalves ? warp / 2 : warp + i * kWarps; }
  __device__ int half_of(int unit) const { return F::kHalves ? warp % 2 : unit % 2; }
  __device__ int unit_dim(int unit) const {  // the thread's first dimension of it
    return own_run(unit / 2) * kv_codes::kRun + half_of(unit) * kUnit + 2 * g;
  }
  // Words of each lane of its run, that lie before those of the warp's half.
  __device__ int words_before_half(int bits) const { return F::kHalves ? half_of(0) * bits / 2 : 0; }
  __device__ bool has_unit(int unit) const { return own_run(unit / 2) < a.values.runs; }
  __device__ int own_tile(int i) const { return warp * kOwnTiles + i; }  // of the piece
  __device__ uint32_t own(uint32_t tiles) const { return tiles >> (warp * kOwnTiles) & ((1u << kOwnTiles) - 1); }
  __device__ int64_t place_of(int slot) const { return int64_t{slot} * a.out.shape.kv_heads + s.task.kv_head; }
  __device__ uint32_t value_codes() const { return needs.codes >> kPieceTiles; }
  __device__ uint32_t value_rows() const { return needs.rows >> kPieceTiles; }
  // Whether an item takes a key from the rows, for some query.
  __device__ bool is_row(const PagedSide& side, int key) const {
    return key >= s.task.lowest && key < last && (!side.codes || key < a.exact_first || key >= s.task.recent);
  }
  // Whether scores are multiplied by a row's factor in the softmax: else they have it before.
  __device__ bool scaled_late() const { return a.softcap <= 0 && a.scale > 0; }

  // Goes on to the next piece of the item, the next turn or the next item, and finds what is there; false: no item is
  // left. By the first warp, as others need little of it.
  __device__ bool next_piece() {
    __syncthreads();
    if (warp == 0) advance();
    __syncthreads();
    turn = uniform(s.task.turn), first = uniform(s.task.piece) * kPieceKeys;
    return uniform(s.task.number) < items;
  }
  // In tile_items.h.
  __device__ void advance();
  __device__ void describe(int next);
  __device__ void find_piece(int piece);
  __device__ uint32_t of_tiles(bool keys, bool values) const {
    return __ballot_sync(kAllLanes, lane < kPieceTiles ? keys : values);
  }

  // Starts copying a piece that has been found; behind a barrier.
  __device__ void begin_piece() {
    last = min(first + kPieceKeys, s.task.end);
    needs = {uniform(s.needs.codes), uniform(s.needs.rows), uniform(s.needs.edges), uniform(s.needs.care)};
    stage_keys(0);
#pragma unroll
    for (int begin = 0; begin < F::kStagedValues; begin += F::kGroup) stage_values(begin);
  }

  // A row of q, of which a lane of B takes eight dimensions in each run; null where the turn has no such row.
  __device__ const uint4* q_row(int n) const {
    const int r = turn + 8 * n + g;
    if (r >= s.task.rows) return nullptr;
    return static_cast<const uint4*>(a.q) + s.task.places[r] * (a.out.shape.dim / 8) + t;
  }
  __device__ static uint4 q_part(const uint4* row, int run) { return row ? row[run * (kv_codes::kRun / 8)] : uint4{}; }
  // Rows of q as fragments, in f16 times a power of two that brings the largest element to 2^14, so that nothing is lost
  // but what is 2^-30 of it. Eight rows by a warp, the first of which has found the piece meanwhile.
  __device__ void begin_turn() {
    static_assert(F::kTiles < kWarps);
    if (warp > 0 && warp <= F::kTiles) put_queries(warp - 1);
    __syncthreads();
  }
  __device__ void put_queries(int n) {
    const uint4* const row = q_row(n);
    uint4 parts[F::kRuns];
    float largest = 0;
#pragma unroll
    for (int run = 0; run < F::kRuns; ++run) {
      const uint4 part = parts[run] = run < a.keys.runs ? q_part(row, run) : uint4{};
      for (const uint32_t word : {part.x, part.y, part.z, part.w})  // what lies behind a number keeps its exponent
        largest = fmaxf(largest, fmaxf(fabsf(float_of(word << 16)), fabsf(float_of(word))));
    }
    for (int distance = 1; distance < 4; distance *= 2)
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, distance));
    const uint32_t exponent = min(max(bits_of(largest) >> 23, 16u), 250u);
    const float up = float_of((268 - exponent) << 23), down = float_of((exponent - 14) << 23);  // 2^(141 - exponent)
#pragma unroll
    for (int run = 0; run < F::kRuns; ++run) {
      if (run >= a.keys.runs) continue;
      const auto halves = [&](uint32_t word) {
        return ptx::pack_f16(float_of(word << 16) * up, float_of(word & 0xffff0000u) * up);
      };
      const uint4 part = parts[run];
      s.q[run][n][lane] = make_uint4(halves(part.x), halves(part.y), halves(part.z), halves(part.w));
    }
    if (t > 0) return;
    const int r = 8 * n + g;
    s.ups[r] = up, s.factors[r] = down * a.scale, s.late[r] = scaled_late() ? s.factors[r] : 1;
  }

  // Each warp copies the keys of its tiles, and of all values its runs. Where all tiles have codes, which is so but at the
  // ends of a sequence, copies follow each other without a condition.
  __device__ void stage_keys(int begin) {
    constexpr int kTile = sizeof(s.keys[0][0]), kTiles = F::kStagedKeys;
    const uint32_t to = ptx::shared_address(s.keys[warp][0]) + 16 * lane;
    const auto copy = [&](int i, const char* from) {
#pragma unroll
      for (int c = 0; c < kKeyCopies; ++c)
        if (c * kWarp + lane < a.keys.tile_words / 4)
          ptx::cp_async_whole(to + i * kTile + 16 * kWarp * c, from + 16 * kWarp * c);
    };
    const auto from = [&](int i) { return keys_from + ptx::wide_product(code_tile(begin + i), key_bytes()); };
    const uint32_t wanted = own(needs.codes) >> begin & ((1u << kTiles) - 1);
    // With the first, the scales of the values whose probabilities the warp makes.
    const int scaled = scaled_tile(), staged = lane < 2 * kOwnTiles ? kTiles : kOwnTiles;
    const bool in_part = kTiles == kOwnTiles || static_cast<uint32_t>(scaled - begin) < static_cast<uint32_t>(staged);
    if (in_part && (needs.codes & scales_bit))
      ptx::cp_async_whole(scales_to, scales_from + ptx::wide_product(code_tile(scaled), scales_every));
    if (wanted == (1u << kTiles) - 1) {
      const char* every[kTiles];
#pragma unroll
      for (int i = 0; i < kTiles; ++i) every[i] = from(i);
      if (a.keys.tile_words == kKeyCopies * 4 * kWarp) {  // each copy is for all lanes
#pragma unroll
        for (int i = 0; i < kTiles; ++i)
#pragma unroll
          for (int c = 0; c < kKeyCopies; ++c)
            ptx::cp_async_whole(to + i * kTile + 16 * kWarp * c, every[i] + 16 * kWarp * c);
      } else {
#pragma unroll
        for (int i = 0; i < kTiles; ++i) copy(i, every[i]);
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < kTiles; ++i)
        if (wanted >> i & 1) copy(i, from(i));
    }
    ptx::cp_async_commit();
  }
  __device__ int scaled_tile() const { return lane / 2 % kOwnTiles; }  // whose scales the thread copies
  __device__ uint32_t code_tile(int own) const { return s.code_tiles[own_tile(own)]; }
  __device__ void stage_values(int begin) {
    constexpr int kTile = sizeof(s.values[0][0]), kEach = F::kGroup * F::kCopyLanes / kWarp;
    const int chunk = lane % F::kCopyLanes, own_begin = lane / F::kCopyLanes * kEach;
    const uint32_t to = ptx::shared_address(s.values[warp][begin % F::kStagedValues]) + own_begin * kTile + 16 * chunk;
    const auto copy = [&](int i, const char* from) {
#pragma unroll
      for (int own = 0; own < F::kOwnRuns; ++own)
        ptx::cp_async_if(own_copies[own], to + i * kTile + own * kRunBytes, from + (own_bytes[own] - own_bytes[0]));
    };
    const auto from = [&](int i) {
      return values_from + ptx::wide_product(s.code_tiles[begin + own_begin + i], value_bytes());
    };
    if (value_codes() == kEveryTile) {
      const char* every[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) every[i] = from(i);
#pragma unroll
      for (int i = 0; i < kEach; ++i) copy(i, every[i]);
    } else {
#pragma unroll 1
      for (int i = 0; i < kEach; ++i)
        if (value_codes() >> (begin + own_begin + i) & 1) copy(i, from(i));
    }
    ptx::cp_async_commit();
  }
  __device__ uint32_t key_bytes() const { return static_cast<uint32_t>(4 * a.keys.tile_words + 2 * kv_codes::kLanes); }
  __device__ uint32_t value_bytes() const {
    return static_cast<uint32_t>(4 * a.values.tile_words + 2 * kv_codes::kLanes);
  }

  // Scores of the warp's keys, before a row's factor: of keys 2 g and 2 g + 1 of each tile, each in two rows.
  using Scores = float[F::kTiles][4];
  // Of the tiles that are staged, in some runs, which have codes of so many bits; codes: where run 0 would begin. Tiles
  // that need none get what nobody asks for. first: run 0 is among them, as the compiler is told, so that its products
  // begin the sums.
  template <bool first>
  __device__ void score_runs(int bits_of_runs, uint32_t runs, const char* codes, Scores* scores) const {
    for_bits(bits_of_runs, [&](auto bits) {
      constexpr int kBits = decltype(bits)::value, kBytes = 4 * kv_codes::kLanes * kBits;
#pragma unroll
      for (int run = 0; run < F::kRuns; ++run) {
        if (!(runs >> run & 1) && !(run == 0 && first)) continue;
        uint4 b[F::kTiles];
#pragma unroll
        for (int n = 0; n < F::kTiles; ++n) b[n] = s.q[run][n][lane];
#pragma unroll
        for (int i = 0; i < F::kStagedKeys; ++i) {
          uint32_t levels[2][4];
          key_levels.template fragments<kBits>(codes + i * sizeof(s.keys[0][0]) + run * kBytes, key_bit(kBits, t),
                                               levels[0], levels[1]);
#pragma unroll
          for (int n = 0; n < F::kTiles; ++n) {
            ptx::mma_f16(scores[i][n], levels[0], b[n].x, b[n].y);
            ptx::mma_f16(scores[i][n], levels[1], b[n].z, b[n].w);
          }
        }
      }
    });
  }
  __device__ void score_codes(Scores* scores) const {
    if (!own(needs.codes)) return;  // what rows or a mask give
#pragma unroll
    for (int i = 0; i < F::kStagedKeys; ++i)
#pragma unroll
      for (int n = 0; n < F::kTiles; ++n)
#pragma unroll
        for (float& score : scores[i][n]) score = 0;
    const char* const codes = s.keys[warp][0];
    if (a.keys.wide_set) {
      score_runs<true>(a.keys.shape.bits + 1, a.keys.wide_set, codes, scores);
      score_runs<false>(a.keys.shape.bits, a.keys.narrow_set, codes + kWordBytes * a.keys.wide_runs, scores);
    } else {
      score_runs<true>(a.keys.shape.bits, a.keys.narrow_set, codes, scores);
    }
#pragma unroll
    for (int i = 0; i < F::kStagedKeys; ++i) {
      float scale[2];
      ptx::unpack_f16(reinterpret_cast<const uint32_t*>(s.keys[warp][i])[a.keys.tile_words + g], scale[0], scale[1]);
#pragma unroll
      for (int n = 0; n < F::kTiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) scores[i][n][e] *= scale[e / 2];
    }
  }
  __device__ int seen(int r) const { return turn + r < s.task.rows ? s.task.seen[turn + r] : 0; }
  // In tile_rows.h, as few pieces need them.
  __device__ void score_rows(int tile, Scores& scores) const;
  __device__ void finish_scores(Scores (&scores)[kOwnTiles]) const;
  __device__ void add_rows(Sums<F>& sums) const;
  __device__ void merge(const Sums<F>& sums, Sums<F>& all) const;
  __device__ void write(const Sums<F>& all) const;

  // The softmax over the keys of a piece, and the probabilities of the warp's own as B: of two tiles, lane 4 r + i has
  // eight keys of row r, 8 (i % 2) and following of tile i / 2; of rows of a tile, keys 4 i to 4 i + 3. Ends with a
  // barrier.
  __device__ void probabilities(const Scores (&scores)[kOwnTiles], Sums<F>& sums) {
#pragma unroll
    for (int n = 0; n < F::kTiles; ++n) {
      const auto top_of = [&](int i) {
        return make_float2(fmaxf(scores[i][n][0], scores[i][n][2]), fmaxf(scores[i][n][1], scores[i][n][3]));
      };
      float2 top = top_of(0);
#pragma unroll
      for (int i = 1; i < kOwnTiles; ++i) top = make_float2(fmaxf(top.x, top_of(i).x), fmaxf(top.y, top_of(i).y));
      const float whole = over_rows(top.x, top.y, g, [](float x, float y) { return fmaxf(x, y); });
      if (g < 2) reinterpret_cast<float*>(&s.tops[8 * n + 2 * t + g])[warp] = whole;
    }
    __syncthreads();
    float factor[F::kTiles][2], offset[F::kTiles][2];
#pragma unroll
    for (int n = 0; n < F::kTiles; ++n)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int r = 8 * n + 2 * t + j;
        factor[n][j] = s.late[r];
        const SoftmaxRow row{largest_of(s.tops[r])};
        offset[n][j] = row.offset(factor[n][j]);
        sums.top[n][j] = row.top * factor[n][j];
      }
    if (own(needs.care))
      put_probabilities<true>(scores, factor, offset, sums);
    else
      put_probabilities<false>(scores, factor, offset, sums);
#pragma unroll
    for (int n = 0; n < F::kTiles; ++n) {
      const float whole = over_rows(sums.total[n][0], sums.total[n][1], g, [](float x, float y) { return x + y; });
      if (g < 2) reinterpret_cast<float*>(&s.totals[8 * n + 2 * t + g])[warp] = whole;
    }
    __syncthreads();
  }
  template <bool any>  // some keys are rows, or are not there
  __device__ void put_probabilities(const Scores (&scores)[kOwnTiles], const float (&factor)[F::kTiles][2],
                                    const float (&offset)[F::kTiles][2], Sums<F>& sums) {
#pragma unroll
    for (int i = 0; i < kOwnTiles; ++i) {
      const int tile = own_tile(i), key = first + tile * kTileKeys + 2 * g;
      float scale[2];
      ptx::unpack_f16(s.value_scales[tile][g], scale[0], scale[1]);
      if (any && (needs.edges >> tile & 1))  // what nobody has written may be NaN
#pragma unroll
        for (int k = 0; k < 2; ++k)
          if (key + k < s.task.lowest || key + k >= last) scale[k] = 0;
#pragma unroll
      for (int n = 0; n < F::kTiles; ++n)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float p[2];
#pragma unroll
          for (int k = 0; k < 2; ++k)
            p[k] = SoftmaxRow::probability(scores[i][n][j + 2 * k], factor[n][j], offset[n][j]);
          sums.total[n][j] = i > 0 ? sums.total[n][j] + (p[0] + p[1]) : p[0] + p[1];
          float coded[2] = {p[0] * scale[0], p[1] * scale[1]};
          if (any && (value_rows() >> tile & 1)) {
#pragma unroll
            for (int k = 0; k < 2; ++k) {
              const bool is_row = from_rows(a, a.values, key + k, seen(8 * n + 2 * t + j));
              coded[k] = is_row ? 0 : coded[k], p[k] = is_row ? p[k] : 0;
            }
            reinterpret_cast<uint32_t*>(&s.p_rows[tile][n][4 * (2 * t + j) + g / 2])[g % 2] =
                ptx::pack_bf16(p[0], p[1]);
          }
          const int place = probability_place(4 * (2 * t + j) + tile % 2 * 2 + g / 4);
          reinterpret_cast<uint32_t*>(&s.p_codes[tile / 2][n][place])[g % 4] = ptx::pack_bf16(coded[0], coded[1]);
        }
    }
  }

  // Adds values to the warp's units: those of codes, of a group of tiles, and the rows.
  template <bool all>
  __device__ void add_codes(int group, Sums<F>& sums) const {
#pragma unroll
    for (int own = 0; own < F::kOwnRuns; ++own) {
      if (own_run(own) >= a.values.runs) continue;
      for_bits(own_bits[own], [&](auto bits) {
        constexpr int kBits = decltype(bits)::value;
        const char* const run = s.values[warp][t / 2] + own * kRunBytes - kWordBytes * words_before_half(kBits);
#pragma unroll
        for (int tile = group * F::kGroup; tile < (group + 1) * F::kGroup; tile += 2) {
          if (!all && !(value_codes() >> tile & 3)) continue;  // probabilities of codes that are not there are zeros
          uint4 p[F::kTiles];
#pragma unroll
          for (int n = 0; n < F::kTiles; ++n) p[n] = s.p_codes[tile / 2][n][probability_place(lane)];
#pragma unroll
          for (int half = 0; half < F::kUnits / F::kOwnRuns; ++half) {
            const int unit = 2 * own + half;
            uint32_t levels[2][4];
            value_levels.template fragments<kBits>(run + tile % F::kStagedValues * F::kOwnBytes,
                                                   value_bit(kBits, half_of(unit), t), levels[0], levels[1]);
#pragma unroll
            for (int n = 0; n < F::kTiles; ++n) {
              ptx::mma_bf16(sums.o[unit][n], levels[0], p[n].x, p[n].y);
              ptx::mma_bf16(sums.o[unit][n], levels[1], p[n].z, p[n].w);
            }
          }
        }
      });
    }
  }
  // The sums of the piece's keys.
  __device__ void attend(Sums<F>& sums) {
    constexpr int kGroups = kPieceTiles / F::kGroup, kAhead = F::kStagedValues / F::kGroup;  // the latter under way
    Scores scores[kOwnTiles];
#pragma unroll
    for (int begin = 0; begin < kOwnTiles; begin += F::kStagedKeys) {
      if (begin > 0) {
        __syncwarp();
        stage_keys(begin);
        ptx::cp_async_wait<0>();
      } else {
        ptx::cp_async_wait<kAhead>();
      }
      __syncwarp();
      score_codes(scores + begin);
    }
    if (own(needs.care)) finish_scores(scores);
    probabilities(scores, sums);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      ptx::cp_async_wait<kAhead - 1>();
      __syncwarp();
      if (value_codes() == kEveryTile)
        add_codes<true>(group, sums);
      else
        add_codes<false>(group, sums);
      if (kAhead == 1) continue;
      __syncwarp();
      if (group + kAhead < kGroups)
        stage_values((group + kAhead) * F::kGroup);
      else
        ptx::cp_async_commit();
    }
    if (value_rows()) add_rows(sums);
  }

  // Leaves the sums of a piece for the kernel that merges them.
  __device__ void put_partial(const Sums<F>& sums) const {
    const int value_dim = a.out.shape.value_dim, row_floats = value_dim + 4;  // partial_row(value_dim)
    const auto row_at = [&](int r) {                                          // of the turn
      return a.out.partial + static_cast<uint32_t>(s.task.partial + (turn + r) * row_floats);
    };
#pragma unroll
    for (int n = 0; n < F::kTiles; ++n)
#pragma unroll
      for (int j = 0; j < 2; ++j)
        if (turn + 8 * n + 2 * t + j < s.task.rows)
#pragma unroll
          for (int u = 0; u < F::kUnits; ++u)
            if (has_unit(u))
              *reinterpret_cast<float2*>(row_at(8 * n + 2 * t + j) + static_cast<uint32_t>(unit_dim(u))) =
                  make_float2(sums.o[u][n][j], sums.o[u][n][2 + j]);
    if (warp < kWarps - 1 || g > 1) return;
#pragma unroll
    for (int n = 0; n < F::kTiles; ++n) {
      const int r = 8 * n + 2 * t + g;
      if (turn + r < s.task.rows)
        *reinterpret_cast<float2*>(row_at(r) + static_cast<uint32_t>(value_dim)) =
            make_float2(g ? sums.top[n][1] : sums.top[n][0], sum_of(s.totals[r]));
    }
  }
};

}  // namespace qeng::tiles
