// What the kernels of RowLinear by bf16 tensor cores share (row_mma.cu, row_wgmma.cu): which part of y a thread block
// makes, and how sums go there.
//
// The rows of a weight are the first side of a product, which is as high as the instruction, and the rows of x the
// second, of which there may be few. An element of y is a chain of instructions of 16 k each, in the order of k,
// whichever tile it lies in: so its bits are the same in any batch.
#pragma once
#include "kernels/cuda/linear/row_linear.h"
#include "kernels/cuda/vector.h"

namespace qeng {

constexpr int kTensorDepth = 64;  // k of a stage: 128 bytes of a row, which the widest swizzle spans
constexpr int kBand = 16;         // tiles of weights that meet all rows of x before the next: 16 MB at k = 4096, in L2

// Tile `number` of a launch: rows first_j .. of a weight, rows first_row .. of x.
struct RowPlace {
  int weight;
  int64_t first_j, first_row;
};
template <int kWeights, int kRows>
struct RowTiles {
  static int64_t across(const RowProducts& p) {
    int64_t across = 0;
    for (int i = 0; i < p.count; ++i) across += ceil_div(p.weight[i].n, kWeights);
    return across;
  }
  static int64_t count(const RowProducts& p) { return across(p) * ceil_div(p.rows, kRows); }

  __device__ static RowPlace place(const RowProducts& p, int64_t across, int64_t number) {
    const int64_t down = (p.rows + kRows - 1) / kRows, band = number / (kBand * down), left = across - band * kBand;
    const int64_t width = left < kBand ? left : kBand, within = number - band * kBand * down;
    RowPlace place{0, band * kBand + within % width, within / width * kRows};
    for (; place.weight + 1 < p.count; ++place.weight) {
      const int64_t tiles = (p.weight[place.weight].n + kWeights - 1) / kWeights;
      if (place.first_j < tiles) break;
      place.first_j -= tiles;
    }
    place.first_j *= kWeights;
    return place;
  }
};

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

// sums: [rows][kColumns] in shared memory, `pitch` floats from one row to the next, to rows first_row .. and columns
// first_j .. of y. By kThreads threads.
template <int kColumns, int kThreads>
__device__ inline void write_sums(const RowProducts& p, const RowWeight& weight, const float* sums, int pitch,
                                  int64_t first_row, int rows, int64_t first_j, int thread) {
  constexpr int kAcross = kColumns / 8;
  for (int i = thread; i < rows * kAcross; i += kThreads) {
    const int row = i / kAcross, column = i % kAcross * 8;
    const int64_t r = first_row + row, j = first_j + column;
    if (r >= p.rows || j >= weight.n) continue;
    if (weight.y_vectors) {
      float total[8];
      unpack(load<8>(sums + row * pitch + column), total);
      weight.y_f32 ? finish_eight<float>(p, weight, r, j, total) : finish_eight<bf16>(p, weight, r, j, total);
      continue;
    }
#pragma unroll 1
    for (int k = 0; k < 8 && j + k < weight.n; ++k) finish_row(p, weight, r, j + k, sums[row * pitch + column + k]);
  }
}
// Floats from a row of sums to the next: threads of a quad are two rows apart and lie eight banks apart.
constexpr int sum_pitch(int columns) { return columns + 4; }
static_assert(sum_pitch(32) % 16 == 4 && sum_pitch(64) % 16 == 4 && sum_pitch(128) % 16 == 4);

// Whether tensor cores take the products: bf16 weights whose rows lie at multiples of 16 bytes. Nothing else counts, so
// that all rows of all batches go one way.
bool suits_tensor_cores(const RowProducts& p, DType dtype);
// x: [rows, k] bf16 at a multiple of 16 bytes.
void row_mma(const RowProducts& p, CudaContext& context);
bool suits_row_wgmma(const RowProducts& p, const CudaContext& context);
void row_wgmma(const RowProducts& p, CudaContext& context);

}  // namespace qeng
