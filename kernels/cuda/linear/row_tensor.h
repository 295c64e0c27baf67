// What the kernels of RowLinear, and of GroupedMatmul apart, by tensor cores share (row_mma.cu, row_few.cu,
// row_wgmma.cu): which part of y a thread block makes, and how sums go there.
//
// The rows of a weight are the first side of a product, which is as high as the instruction, and the rows of x the
// second, of which there may be few. An element of y is a chain of instructions of 16 k each, in the order of k (of f16
// weights: as row_halves.h says), whichever tile it lies in: so its bits are the same in any batch.
#pragma once
#include "kernels/cuda/linear/grouped_rows.h"
#include "kernels/cuda/vector.h"

namespace qeng {

constexpr int kTensorDepth = 64;  // k of a stage: 128 bytes of a row, which the widest swizzle spans
constexpr int kBand = 16;         // tiles of weights that meet all rows of x before the next: 16 MB at k = 4096, in L2

// What a tile of y is made of: rows first_j .. of a weight, and `rows` rows of x from first_row on, none where a slot
// of experts is empty. map: the number of the weight; map_row: the row of its matrix that first_j is, where experts
// follow each other. unclaimed: rows of no expert, to become 0.
struct RowTile {
  RowWeight weight;
  int map, rows;
  int64_t map_row, first_j, first_row;
  bool unclaimed;
};

// Tiles of kWeights by kRows, of which `across` lie side by side.
template <int kWeights, int kRows>
struct RowTiles {
  static int64_t across(const RowProducts& p) {
    int64_t across = 0;
    for (int i = 0; i < p.count; ++i) across += ceil_div(p.weight[i].n, kWeights);
    return across;
  }
  static int64_t count(const char*, const RowProducts& p) { return across(p) * ceil_div(p.rows, kRows); }

  __device__ static RowTile tile(const RowProducts& p, int64_t across, int64_t number) {
    const int64_t down = (p.rows + kRows - 1) / kRows, band = number / (kBand * down), left = across - band * kBand;
    const int64_t width = left < kBand ? left : kBand, within = number - band * kBand * down;
    int64_t first_j = band * kBand + within % width;
    const int64_t first_row = within / width * kRows;
    int i = 0;
    for (; i + 1 < p.count; ++i) {
      const int64_t tiles = (p.weight[i].n + kWeights - 1) / kWeights;
      if (first_j < tiles) break;
      first_j -= tiles;
    }
    first_j *= kWeights;
    return {p.weight[i], i,       static_cast<int>(p.rows - first_row < kRows ? p.rows - first_row : kRows),
            first_j,     first_j, first_row,
            false};
  }

  static int64_t across(const GroupedProducts& g) { return across(g.p); }
  static int64_t count(const char* name, const GroupedProducts& g) {
    return across(g) * expert_slots<kRows>(name, g.experts);
  }
  __device__ static RowTile tile(const GroupedProducts& g, int64_t across, int64_t number) {
    const ExpertRows of = expert_rows<kRows>(g.experts, number / across);
    const int64_t first_j = number % across * kWeights;
    return {weight_of(g, of.expert),     0, of.rows, of.expert * g.p.weight[0].n + first_j, first_j, of.first,
            of.expert == g.experts.count};
  }
};
// By all threads of the first block.
__device__ inline void check_rows(const RowProducts&) {}
__device__ inline void check_rows(const GroupedProducts& g) { check_experts(g.experts); }

// Zeros in a tile of rows of no expert. By kThreads threads.
template <int kWeights, int kThreads>
__device__ inline void clear_tile(const RowProducts& p, const RowTile& tile, int thread) {
  if (p.acc) return;
  for (int i = thread; i < tile.rows * kWeights; i += kThreads) {
    const int64_t j = tile.first_j + i % kWeights, at = (tile.first_row + i / kWeights) * tile.weight.n + j;
    if (j >= tile.weight.n) continue;
    if (tile.weight.y_f32)
      static_cast<float*>(tile.weight.y)[at] = 0.0f;
    else
      put(static_cast<bf16*>(tile.weight.y) + at, 0.0f);
  }
}

// Eight elements of row r of y from column j on, which exist and lie at a multiple of 16 bytes: the roundings of
// finish_row.
template <class Y>
__device__ inline void finish_eight(const RowProducts& p, const RowWeight& weight, int64_t r, int64_t j,
                                    const float (&total)[8]) {
  float value[8], old[8];
  Y* y = static_cast<Y*>(weight.y) + r * weight.n + j;
  if (p.acc) unpack(load<8>(y), old);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    value[i] = row_value(p, weight, j + i, total[i]);
    if (p.acc) value[i] = __fadd_rn(value[i], old[i]);
  }
  store(y, pack<Y>(value));
}

// sums: `rows` rows of kColumns floats in shared memory, `pitch` floats from one to the next, to rows first .. of a
// tile and columns first_j .. of y. By kThreads threads.
template <int kColumns, int kThreads>
__device__ inline void write_sums(const RowProducts& p, const RowTile& tile, const float* sums, int pitch, int first,
                                  int rows, int64_t first_j, int thread) {
  constexpr int kAcross = kColumns / 8;
  for (int i = thread; i < rows * kAcross; i += kThreads) {
    const int row = i / kAcross, column = i % kAcross * 8;
    const int64_t r = tile.first_row + first + row, j = first_j + column;
    if (first + row >= tile.rows || j >= tile.weight.n) continue;
    if (tile.weight.y_vectors) {
      float total[8];
      unpack(load<8>(sums + row * pitch + column), total);
      tile.weight.y_f32 ? finish_eight<float>(p, tile.weight, r, j, total)
                        : finish_eight<bf16>(p, tile.weight, r, j, total);
      continue;
    }
#pragma unroll 1
    for (int k = 0; k < 8 && j + k < tile.weight.n; ++k)
      finish_row(p, tile.weight, r, j + k, sums[row * pitch + column + k]);
  }
}
// Floats from a row of sums to the next: threads of a quad are two rows apart and lie eight banks apart.
constexpr int sum_pitch(int columns) { return columns + 4; }
static_assert(sum_pitch(32) % 16 == 4 && sum_pitch(64) % 16 == 4 && sum_pitch(128) % 16 == 4);

// Whether tensor cores take the products: weights in bf16 or f16 whose rows lie at multiples of 16 bytes. Nothing else
// counts, so that all rows of all batches go one way.
bool suits_tensor_cores(const RowProducts& p, DType dtype, const CudaContext& context);
// x: [rows, k] at a multiple of 16 bytes, in bf16; for f16 weights as x_f32 says. dtype: of the weights.
void row_mma(const char* name, const RowProducts& p, DType dtype, const RowEnd& end, CudaContext& context);
void row_mma(const char* name, const GroupedProducts& g, DType dtype, CudaContext& context);
bool suits_row_wgmma(const RowProducts& p, const CudaContext& context);
void row_wgmma(const char* name, const RowProducts& p, const RowEnd& end, CudaContext& context);
void row_wgmma(const char* name, const GroupedProducts& g, CudaContext& context);

}  // namespace qeng
