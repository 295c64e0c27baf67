// Products of delta_mma.h by Hopper's own instructions: left operands in registers, as mma's, and right ones in panels of
// shared memory (ptx_sm90.h), which the four warps of a warpgroup read together.
#pragma once
#include "kernels/cuda/delta/delta_mma.h"
#include "kernels/cuda/ptx/ptx_sm90.h"

namespace qeng {

// Parts of a matrix in panels of 64 columns. Its address is a multiple of 1024.
template <int kParts>
struct PanelTile {
  bf16* data;
  int rows, columns;

  __host__ __device__ static constexpr int elements(int rows, int columns) { return kParts * rows * columns; }
  __device__ bf16* at(int part, int row, int column) const {
    return data + (part * columns + column / kPanelColumns * kPanelColumns) * rows + row * kPanelColumns +
           ((column % kPanelColumns / 8) ^ (row % 8)) * 8 + column % 8;
  }
  __device__ float value(int row, int column) const { return value_of<kParts>(*this, row, column); }
  // Row `down` of the eight that begin at a multiple of 8, which the compiler would not know.
  __device__ float2 pair(int row, int down, int column) const {
    return pair_of(data + (column / kPanelColumns * rows + row + down) * kPanelColumns +
                   ((column % kPanelColumns / 8) ^ down) * 8 + column % 8);
  }
  __device__ void eight(int row, int column, float (&x)[8]) const { eight_of<kParts>(*this, row, column, x); }
  __device__ Parts<kParts> left_down(int row, int column) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    Parts<kParts> left;
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      ptx::ldmatrix_x4_trans(left.r[part], at(part, row + lane % 8 + lane / 16 * 8, column + lane / 8 % 2 * 8));
    return left;
  }
  // 16 rows as a right operand whose rows they are.
  __device__ uint64_t descriptor(int part, int row) const {
    return ptx::tile_descriptor(data + part * rows * columns + row * kPanelColumns,
                                static_cast<uint32_t>(rows * kPanelColumns * 2));
  }

  // Starts to fill it, as PartsTile's. lines: those that exist, part after part; the others become zeros.
  template <int kThreads, int kRows, int kColumns>
  __device__ void fetch(int thread, const bf16* from, int64_t stride, int count, int lines = kParts * kRows) const {
    constexpr int kChunks = kColumns / 8, kAtOnce = kThreads / kChunks;
    static_assert(kThreads % kChunks == 0 && kAtOnce % 8 == 0);
    const int line = static_cast<int>(static_cast<unsigned>(thread) / kChunks),
              chunk = static_cast<int>(static_cast<unsigned>(thread) % kChunks) * 8;
    bf16* to = data + chunk / kPanelColumns * kPanelColumns * kRows + (chunk % kPanelColumns ^ line % 8 * 8);
    from += chunk < count ? chunk : 0;
#pragma unroll
    for (int i = 0; i < kParts * kRows; i += kAtOnce) {
      const auto own = static_cast<unsigned>(line + i);
      if (kParts * kRows % kAtOnce != 0 && own >= kParts * kRows) break;
      const bool real = static_cast<int>(own) < lines;
      ptx::cp_async_16(to + own / kRows * (kRows * kColumns) + own % kRows * kPanelColumns,
                       from + (real ? own : 0) * stride, real && chunk < count ? 16 : 0);
    }
  }
};
template <int kThreads, int kRows, int kColumns>
__device__ inline void fetch_rows(int thread, const PanelTile<1>& tile, const bf16* from, int64_t stride, int count,
                                  int rows) {
  tile.fetch<kThreads, kRows, kColumns>(thread, from, stride, count, rows);
}

// d += left times 16 rows of right; started, and not waited for.
template <int n, int kA, int kB>
__device__ inline void multiply_panels(float (&d)[n], const Parts<kA>& left, const PanelTile<kB>& right, int row) {
#if QENG_SM90
  each_product<kA, kB>([&](int i, int j) { ptx::wgmma<ptx::Major::mn>(d, left.r[i], right.descriptor(j, row)); });
#endif
}

// A batch of products, where they are by wgmma; else nothing, as they are done when they are written.
template <bool kWgmma>
struct Products {
  // Ordinary and asynchronous copies to shared memory that ended are seen by products, after a barrier.
  __device__ static void show_stores() {
    if constexpr (kWgmma && QENG_SM90) ptx::fence_proxy_async();
  }
  template <class... Registers>
  __device__ static void start(Registers&... registers) {
    if constexpr (kWgmma && QENG_SM90) ptx::wgmma_start(registers...);
  }
  __device__ static void commit() {
    if constexpr (kWgmma && QENG_SM90) ptx::wgmma_commit();
  }
  template <class... Sums>
  __device__ static void wait(Sums&... sums) {
    if constexpr (kWgmma && QENG_SM90) ptx::wgmma_wait<0>(sums...);
  }
};

}  // namespace qeng
