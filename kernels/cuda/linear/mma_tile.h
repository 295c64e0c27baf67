// A tile of a product of bf16 by mma.m16n8k16, sums in f32: 64 rows by 128 columns for a block of four warps, 64 of the
// depth at a time, the next of which arrive while these are used.
#pragma once
#include "kernels/cuda/linear/tile_copy.h"

namespace qeng {
namespace mma_tile {

constexpr int kRows = 64, kColumns = 128, kDepth = 64, kThreads = 4 * kWarp;
constexpr int kWarpRows = 32, kWarpColumns = 64;  // 16 products of a warp for 6 reads of 16 bytes a lane
using Sums = float[kWarpRows / 16][kWarpColumns / 8][4];

// A side of a product, its first element at `data`: [sides, depth], or with kDown [depth, sides] in memory, rows `stride`
// elements apart. Memory is aligned to 16 bytes, and stride and what runs along rows are multiples of 8.
template <bool kDown>
struct Side {
  const bf16* data;
  int64_t stride, sides, depth;
};

template <int kSides, bool kDown>
struct Stage {
  using Tile = std::conditional_t<kDown, SharedTile<kSides, kDepth>, SharedTile<kDepth, kSides>>;
  // Starts copying the depths from the given one on; zeros where there are none.
  __device__ static void load(char* tile, const Side<kDown>& side, int64_t depth) {
    constexpr int kChunks = (kDown ? kSides : kDepth) / 8, kTileRows = kDown ? kDepth : kSides;
    using Copy = TileCopy<kThreads, kChunks>;
    const int64_t rows = kDown ? side.depth - depth : side.sides, columns = kDown ? side.sides : side.depth - depth;
    const bf16* from =
        side.data + (kDown ? depth * side.stride : depth) + Copy::row() * side.stride + Copy::chunk() * 8;
    Copy::template start<Tile, kTileRows>(tile, from, side.stride, rows, Copy::chunk() * 8 < columns);
  }
};

template <bool kDownA, bool kDownB>
constexpr size_t kShared = 2 * (Stage<kRows, kDownA>::Tile::kBytes + Stage<kColumns, kDownB>::Tile::kBytes);

// The warp's place in the tile.
__device__ inline int warp_row() { return static_cast<int>(threadIdx.x) / kWarp / 2 * kWarpRows; }
__device__ inline int warp_column() { return static_cast<int>(threadIdx.x) / kWarp % 2 * kWarpColumns; }

// sums += a b^T of the depths of one stage, by product(c, a, b0, b1), which is mma_bf16 or like it.
template <bool kDownA, bool kDownB, class Product>
__device__ inline void multiply_stage(const char* stage_a, const char* stage_b, int lane_a, int lane_b, int row0,
                                      int column0, Sums& sums, Product product) {
  using TileA = typename Stage<kRows, kDownA>::Tile;
  using TileB = typename Stage<kColumns, kDownB>::Tile;
#pragma unroll
  for (int d = 0; d < kDepth / 16; ++d) {
    uint32_t left[kWarpRows / 16][4];
#pragma unroll
    for (int i = 0; i < kWarpRows / 16; ++i) {
      uint32_t(&r)[4] = left[i];
      if constexpr (kDownA) {
        ptx::ldmatrix_x4_trans(r, stage_a + TileA::moved(lane_a, 16 * d, (row0 + 16 * i) / 8));
        const uint32_t other = r[1];
        r[1] = r[2], r[2] = other;
      } else {
        ptx::ldmatrix_x4(r, stage_a + TileA::moved(lane_a, row0 + 16 * i, 2 * d));
      }
    }
#pragma unroll
    for (int n = 0; n < kWarpColumns / 16; ++n) {
      uint32_t r[4];
      if constexpr (kDownB)
        ptx::ldmatrix_x4_trans(r, stage_b + TileB::moved(lane_b, 16 * d, (column0 + 16 * n) / 8));
      else
        ptx::ldmatrix_x4(r, stage_b + TileB::moved(lane_b, column0 + 16 * n, 2 * d));
#pragma unroll
      for (int i = 0; i < kWarpRows / 16; ++i) {
        product(sums[i][2 * n], left[i], r[0], kDownB ? r[1] : r[2]);
        product(sums[i][2 * n + 1], left[i], kDownB ? r[2] : r[1], r[3]);
      }
    }
  }
}

// sums += a b^T of the tile that begins at both sides' data.
template <bool kDownA, bool kDownB>
__device__ void multiply(const Side<kDownA>& a, const Side<kDownB>& b, Sums& sums) {
  using A = Stage<kRows, kDownA>;
  using B = Stage<kColumns, kDownB>;
  constexpr int kBytes = A::Tile::kBytes + B::Tile::kBytes;
  const int lane_a = lane_offset<typename A::Tile>(), lane_b = lane_offset<typename B::Tile>();
  const int row0 = warp_row(), column0 = warp_column();
  const bool work = row0 < a.sides && column0 < b.sides;
  const auto load = [&](int64_t depth) {
    char* stage = shared_memory() + depth / kDepth % 2 * kBytes;
    A::load(stage, a, depth);
    B::load(stage + A::Tile::kBytes, b, depth);
    ptx::cp_async_commit();
  };
  if (a.depth > 0) load(0);
  for (int64_t depth = 0; depth < a.depth; depth += kDepth) {
    ptx::cp_async_wait<0>();
    __syncthreads();  // this stage is there, and nobody needs the other
    if (depth + kDepth < a.depth) load(depth + kDepth);
    if (!work) continue;
    const char* stage_a = shared_memory() + depth / kDepth % 2 * kBytes;
    multiply_stage<kDownA, kDownB>(
        stage_a, stage_a + A::Tile::kBytes, lane_a, lane_b, row0, column0, sums,
        [](auto& c, const auto& left, uint32_t b0, uint32_t b1) { ptx::mma_bf16(c, left, b0, b1); });
  }
}

// Calls f(row, column, value, next) for each pair of neighbours of the tile that the thread holds.
template <class F>
__device__ void each_pair(const Sums& sums, F f) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int i = 0; i < kWarpRows / 16; ++i)
#pragma unroll
    for (int n = 0; n < kWarpColumns / 8; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        f(warp_row() + 16 * i + lane / 4 + 8 * half, warp_column() + 8 * n + lane % 4 * 2, sums[i][n][2 * half],
          sums[i][n][2 * half + 1]);
}

}  // namespace mma_tile
}  // namespace qeng
