// A tile of a product by plain multiply-adds: any size, stride, alignment and transposition, sums in f32 in order of k.
#pragma once
#include "kernels/cuda/linear/gemm.h"
#include "kernels/cuda/vector.h"

namespace qeng {
namespace simt_tile {

constexpr int kTile = 64, kDepth = 16;  // a block makes 64 x 64 of c, 16 of k at a time
constexpr int kSide = 4;                // a thread makes 4 x 4: 16 multiply-adds for two 16-byte reads of shared memory
constexpr int kThreads = (kTile / kSide) * (kTile / kSide);
constexpr int kRow = kTile + 4;  // of shared memory, in floats: rows stay aligned to 16 bytes, on different banks
constexpr int kLoads = kTile * kDepth / kThreads;
constexpr size_t kShared = 2 * kDepth * kRow * sizeof(float);

// A side of the product seen as [rows, k]: element (i, l) is at i * row_step + l * k_step.
struct Side {
  const void* data;
  int64_t rows, row_step, k_step;
};

// Where thread t puts and finds its u-th element of a tile [kTile, kDepth], so that a warp reads along the steps of 1. Where
// these are of k, its two rows are other ones for the second half of the depth, which would lie in the same banks.
struct Place {
  int row, depth;
  __device__ Place(const Side& side, int u) {
    const int t = static_cast<int>(threadIdx.x) + u * kThreads;
    depth = side.k_step == 1 ? t % kDepth : t / kTile;
    row = side.k_step == 1 ? t / kDepth ^ depth / 8 * 2 : t % kTile;
  }
};

template <class In>
__device__ void fetch(const Side& side, int64_t first_row, int64_t first_k, int64_t k, float (&values)[kLoads]) {
  for (int u = 0; u < kLoads; ++u) {
    const Place place(side, u);
    const int64_t row = first_row + place.row, l = first_k + place.depth;
    values[u] = row < side.rows && l < k
                    ? to_f32(static_cast<const In*>(side.data)[row * side.row_step + l * side.k_step])
                    : 0.0f;
  }
}

__device__ inline void keep(const Side& side, const float (&values)[kLoads], float* tile) {
  for (int u = 0; u < kLoads; ++u) {
    const Place place(side, u);
    tile[place.depth * kRow + place.row] = values[u];
  }
}

// c[row, column .. column + count) from the sums over k.
template <class Out>
__device__ void write(const GemmResult& result, int64_t row, int64_t column, int count, const float (&sum)[kSide]) {
  for (int j = 0; j < kSide; ++j)
    if (j < count) result.write<Out>(row, column + j, sum[j]);
}

// A thread's part of a tile: elements (i0, j0) to (i0 + kSide - 1, j0 + kSide - 1).
struct Part {
  int i0, j0;
  __device__ Part()
      : i0(static_cast<int>(threadIdx.x) / (kTile / kSide) * kSide),
        j0(static_cast<int>(threadIdx.x) % (kTile / kSide) * kSide) {}
};

// sum = the part of the tile of a b^T at (first_m, first_n).
template <class In>
__device__ void multiply(const Side& a, const Side& b, int64_t first_m, int64_t first_n, int64_t k,
                         float (&sum)[kSide][kSide]) {
  float *tile_a = reinterpret_cast<float*>(shared_memory()), *tile_b = tile_a + kDepth * kRow;
  const Part part;
  float next_a[kLoads], next_b[kLoads];
  fetch<In>(a, first_m, 0, k, next_a);
  fetch<In>(b, first_n, 0, k, next_b);
  for (int64_t l = 0; l < k; l += kDepth) {
    keep(a, next_a, tile_a);
    keep(b, next_b, tile_b);
    __syncthreads();
    if (l + kDepth < k) {  // on its way while this tile is worked on
      fetch<In>(a, first_m, l + kDepth, k, next_a);
      fetch<In>(b, first_n, l + kDepth, k, next_b);
    }
#pragma unroll 4
    for (int d = 0; d < kDepth; ++d) {
      float x[kSide], y[kSide];
      unpack(load<kSide>(tile_a + d * kRow + part.i0), x);
      unpack(load<kSide>(tile_b + d * kRow + part.j0), y);
      for (int i = 0; i < kSide; ++i)
        for (int j = 0; j < kSide; ++j) sum[i][j] += x[i] * y[j];
    }
    __syncthreads();
  }
}

// Writes it to c, of which there are m rows and n columns.
template <class Out>
__device__ void write_part(const GemmResult& result, int64_t m, int64_t n, int64_t first_m, int64_t first_n,
                           const float (&sum)[kSide][kSide]) {
  const Part part;
  const int columns = static_cast<int>(n - first_n - part.j0 < kSide ? n - first_n - part.j0 : kSide);
#pragma unroll
  for (int i = 0; i < kSide; ++i) {
    const int64_t row = first_m + part.i0 + i;
    if (row < m) write<Out>(result, row, first_n + part.j0, columns, sum[i]);
  }
}

}  // namespace simt_tile
}  // namespace qeng
