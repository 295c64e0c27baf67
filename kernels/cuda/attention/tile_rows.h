// What few pieces need of a thread of paged_tiles.cu (tile_worker.h): keys and values that are rows, a softcap, masks, and
// results that no kernel merges after it.
#pragma once
#include "kernels/cuda/attention/tile_worker.h"

namespace qeng::tiles {

// Scores of the keys of a tile that are rows, for those queries that take them so.
template <class F>
__device__ void Worker<F>::score_rows(int tile, Scores& scores) const {
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
      const uint4 b = q_part(q_row(n), run);
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
    for (int i = 0; i < 4; ++i) {
      const int r = 8 * n + 2 * t + i % 2;
      if (from_rows(a, a.keys, begin + 2 * g + i / 2, seen(r)))
        scores[n][i] = products[n][i] * (scaled_late() ? s.ups[r] : a.scale);
    }
}

// Keys that are rows, a softcap, and masks where a row does not see a key.
template <class F>
__device__ void Worker<F>::finish_scores(Scores (&scores)[kOwnTiles]) const {
  const int window = a.out.shape.window;
#pragma unroll
  for (int own = 0; own < kOwnTiles; ++own) {
    const int tile = own_tile(own), begin = first + tile * kTileKeys;
    if (!scaled_late())
#pragma unroll
      for (int n = 0; n < F::kTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[own][n][i] *= s.factors[8 * n + 2 * t + i % 2];
    if (needs.rows >> tile & 1) score_rows(tile, scores[own]);
    if (a.softcap > 0)
#pragma unroll
      for (int n = 0; n < F::kTiles; ++n)
        for (float& score : scores[own][n]) score = a.softcap * tanhf(score * a.inverse_cap);
    if (!(needs.edges >> tile & 1)) continue;
#pragma unroll
    for (int n = 0; n < F::kTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = begin + 2 * g + i / 2, row_end = seen(8 * n + 2 * t + i % 2);
        if (key >= min(row_end, last) || (window > 0 && key < row_end - window)) scores[own][n][i] = kMasked;
      }
  }
}

// Merges the sums of a piece into those of the pieces before it.
template <class F>
__device__ void Worker<F>::merge(const Sums<F>& sums, Sums<F>& all) const {
#pragma unroll
  for (int n = 0; n < F::kTiles; ++n)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float total = sum_of(s.totals[8 * n + 2 * t + j]);
      const MergeFactors factors = merge_pieces(all.top[n][j], all.total[n][j], sums.top[n][j], total);
#pragma unroll
      for (int u = 0; u < F::kUnits; ++u)
#pragma unroll
        for (int c = j; c < 4; c += 2) all.o[u][n][c] = merged(all.o[u][n][c], sums.o[u][n][c], factors);
    }
}

// Values that are rows.
template <class F>
__device__ void Worker<F>::add_rows(Sums<F>& sums) const {
#pragma unroll 1
  for (int tile = 0; tile < kPieceTiles; ++tile) {
    if (!(value_rows() >> tile & 1)) continue;
#pragma unroll
    for (int u = 0; u < F::kUnits; ++u) {
      if (!has_unit(u)) continue;
      float x[4][2] = {};
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (is_row(a.values, first + tile * kTileKeys + 4 * t + j))
          read_rows<2>(a.values, place_of(s.value_slots[tile] + 4 * t + j) * a.out.shape.value_dim + unit_dim(u), x[j]);
      const uint32_t rows_of_v[4] = {ptx::pack_bf16(x[0][0], x[1][0]), ptx::pack_bf16(x[0][1], x[1][1]),
                                     ptx::pack_bf16(x[2][0], x[3][0]), ptx::pack_bf16(x[2][1], x[3][1])};
#pragma unroll
      for (int n = 0; n < F::kTiles; ++n) {
        const uint2 b = s.p_rows[tile][n][lane];
        ptx::mma_bf16(sums.o[u][n], rows_of_v, b.x, b.y);
      }
    }
  }
}
// The output of an item that has all its pieces.
template <class F>
__device__ void Worker<F>::write(const Sums<F>& all) const {
#pragma unroll
  for (int n = 0; n < F::kTiles; ++n)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int r = turn + 8 * n + 2 * t + j;
      if (r >= s.task.rows) continue;
      const float* sink = a.out.sinks ? a.out.sinks + s.task.heads[r] : nullptr;
      const float last_factor = finish_row(all.top[n][j], all.total[n][j], sink);
      const int64_t at = s.task.places[r] * a.out.shape.value_dim;
#pragma unroll
      for (int u = 0; u < F::kUnits; ++u)
        if (has_unit(u))
          for (int i = 0; i < 2; ++i) put_output(a.out, at + unit_dim(u) + i, all.o[u][n][j + 2 * i] * last_factor);
    }
}

}  // namespace qeng::tiles
