// The product of bf16 for GPUs of 7.5, whose tensor cores multiply IEEE halves alone. A row of a, and a column of b, is
// brought to their range by a power of two, exact but for what lies below 2^-40 of its largest number, and the sums are
// brought back. Where the largest numbers are, one pass over a and b finds beforehand.
#include <algorithm>

#include "kernels/cuda/linear/gemm.h"
#include "kernels/cuda/linear/mma_tile.h"
#include "kernels/cuda/vector.h"

namespace qeng {
namespace {

using namespace mma_tile;

constexpr uint32_t kInfinity = 0x7f80;  // bits of bf16, without the sign
constexpr int kFindThreads = 256, kFindWarps = kFindThreads / kWarp, kFindDepth = 512;

// The power of two by which a side's numbers come below 2^15, from the bits of its largest.
__device__ inline int shift_of(int largest) { return min(127 + 14 - (largest >> 7), 127); }
__device__ inline float power_of(int shift) { return float_of(static_cast<uint32_t>(shift + 127) << 23); }

__device__ inline void take_larger(int& most, uint32_t bits) {
  const uint32_t size = bits & 0x7fff;
  if (size < kInfinity) most = max(most, static_cast<int>(size));
}

// The largest |x| of each side as bits; infinities and NaN, which stay what they are, do not count. `largest` begins as 0.
template <bool kDown>
__global__ void __launch_bounds__(kFindThreads) find_largest(Side<kDown> side, int* largest) {
  if (ptx::multiplies_bf16()) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t first = int64_t{blockIdx.y} * kFindDepth, end = min(first + kFindDepth, side.depth);
  int most[8] = {};
  const auto add = [&](const bf16* from) {
    const uint4 eight = *reinterpret_cast<const uint4*>(from);
    const uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) take_larger(most[i], pairs[i / 2] >> i % 2 * 16);
  };
  if constexpr (kDown) {  // eight sides a thread
    const int64_t own = (int64_t{blockIdx.x} * kWarp + lane) * 8;
    if (own >= side.sides) return;
    for (int64_t depth = first + warp; depth < end; depth += kFindWarps) add(side.data + depth * side.stride + own);
#pragma unroll
    for (int i = 0; i < 8; ++i) atomicMax(largest + own + i, most[i]);
  } else {  // one a warp
    const int64_t own = int64_t{blockIdx.x} * kFindWarps + warp;
    if (own >= side.sides) return;
    for (int64_t depth = first + lane * 8; depth < end; depth += kWarp * 8) add(side.data + own * side.stride + depth);
#pragma unroll
    for (int i = 1; i < 8; ++i) most[0] = max(most[0], most[i]);
    atomicMax(largest + own, most[0]);
  }
}

// A side's tile on its way: what a thread has of it, from memory to registers and then, as halves, to shared memory.
template <int kSides, bool kDown>
struct Ahead {
  using Tile = typename Stage<kSides, kDown>::Tile;
  using Copy = TileCopy<kThreads, (kDown ? kSides : kDepth) / 8>;
  static constexpr int kTileRows = kDown ? kDepth : kSides, kChunks = kTileRows / Copy::kAtOnce;
  uint4 chunks[kChunks];

  __device__ void load(const Side<kDown>& side, int64_t depth) {
    const int64_t rows = (kDown ? side.depth - depth : side.sides) - Copy::row();
    const int64_t columns = kDown ? side.sides : side.depth - depth;
    const bool real = Copy::chunk() * 8 < columns;
    const bf16* from =
        side.data + (kDown ? depth * side.stride : depth) + Copy::row() * side.stride + Copy::chunk() * 8;
#pragma unroll
    for (int i = 0; i < kChunks; ++i, from += Copy::kAtOnce * side.stride)
      chunks[i] = real && i * Copy::kAtOnce < rows ? *reinterpret_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
  }
  // Where a side's scale lies: those that lanes read at once lie side by side.
  __device__ static int place(int side) { return kDown ? side % 8 * (kSides / 8) + side / 8 : side; }
  __device__ void keep(char* tile, const float* scales) const {
    char* const to = tile + Tile::offset(Copy::row(), Copy::chunk());
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const uint32_t pairs[4] = {chunks[i].x, chunks[i].y, chunks[i].z, chunks[i].w};
      uint32_t halves[4];
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        const int side = kDown ? Copy::chunk() * 8 + 2 * pair : Copy::row() + i * Copy::kAtOnce;
        halves[pair] = ptx::pack_f16(float_of(pairs[pair] << 16) * scales[place(side)],
                                     float_of(pairs[pair] & 0xffff0000u) * scales[place(kDown ? side + 1 : side)]);
      }
      *reinterpret_cast<uint4*>(to + i * Copy::kAtOnce * Tile::kRowBytes) =
          make_uint4(halves[0], halves[1], halves[2], halves[3]);
    }
  }
};

// largest: of a's sides, then of b's.
template <bool kDownA, bool kDownB, class Out>
__global__ void __launch_bounds__(kThreads, 2)
    half_product(Side<kDownA> a, Side<kDownB> b, const int* largest, GemmResult result) {
  if (ptx::multiplies_bf16()) return;  // nothing is compiled for GPUs that do
  Ahead<kRows, kDownA> ahead_a;
  Ahead<kColumns, kDownB> ahead_b;
  using TileA = typename decltype(ahead_a)::Tile;
  using TileB = typename decltype(ahead_b)::Tile;
  const int64_t tiles = (a.sides + kRows - 1) / kRows;
  const int64_t first_row = int64_t{blockIdx.x} % tiles * kRows, first_column = int64_t{blockIdx.x} / tiles * kColumns;
  const int *of_a = largest + first_row, *of_b = largest + a.sides + first_column;
  a.data += first_row * (kDownA ? 1 : a.stride), a.sides -= first_row;
  b.data += first_column * (kDownB ? 1 : b.stride), b.sides -= first_column;
  char *stage_a = shared_memory(), *stage_b = stage_a + TileA::kBytes;
  int* shifts_a = reinterpret_cast<int*>(stage_b + TileB::kBytes);
  int* shifts_b = shifts_a + kRows;
  float *scales_a = reinterpret_cast<float*>(shifts_b + kColumns), *scales_b = scales_a + kRows;
  for (int i = static_cast<int>(threadIdx.x); i < kRows + kColumns; i += kThreads) {
    const bool is_a = i < kRows, real = is_a ? i < a.sides : i - kRows < b.sides;
    const int shift = real ? shift_of(is_a ? of_a[i] : of_b[i - kRows]) : 0;
    shifts_a[i] = shift;
    (is_a ? scales_a[ahead_a.place(i)] : scales_b[ahead_b.place(i - kRows)]) = power_of(shift);
  }
  const int lane_a = lane_offset<TileA>(), lane_b = lane_offset<TileB>();
  const int row0 = warp_row(), column0 = warp_column();
  const bool work = row0 < a.sides && column0 < b.sides;
  Sums sums = {};
  ahead_a.load(a, 0), ahead_b.load(b, 0);
  for (int64_t depth = 0; depth < a.depth; depth += kDepth) {
    __syncthreads();  // nobody needs the tiles before
    ahead_a.keep(stage_a, scales_a), ahead_b.keep(stage_b, scales_b);
    __syncthreads();
    if (depth + kDepth < a.depth) ahead_a.load(a, depth + kDepth), ahead_b.load(b, depth + kDepth);
    if (work)
      multiply_stage<kDownA, kDownB>(
          stage_a, stage_b, lane_a, lane_b, row0, column0, sums,
          [](auto& c, const auto& left, uint32_t b0, uint32_t b1) { ptx::mma_f16(c, left, b0, b1); });
  }
  each_pair(sums, [&](int row, int column, float value, float next) {
    if (row >= a.sides) return;
    const auto write = [&](int at, float sum) {
      if (at < b.sides)
        result.write<Out>(first_row + row, first_column + at, ldexpf(sum, -shifts_a[row] - shifts_b[at]));
    };
    write(column, value), write(column + 1, next);
  });
}

template <bool kDown>
void queue_largest(const Side<kDown>& side, int* largest, CudaContext& context) {
  const int64_t of_block = kDown ? kWarp * 8 : kFindWarps;
  const dim3 grid(static_cast<unsigned>(ceil_div(side.sides, of_block)),
                  static_cast<unsigned>(ceil_div(side.depth, kFindDepth)));
  QENG_LAUNCH(context, find_largest<kDown>, grid, dim3(kFindThreads), 0, side, largest);
}

}  // namespace

bool gemm_half(const CudaGemm& gemm, CudaContext& context) {
  const bool down_a = gemm.trans_a, down_b = !gemm.trans_b;
  const auto whole = [](const void* data, int64_t stride, int64_t columns) {
    return aligned(data, 16) && stride % 8 == 0 && columns % 8 == 0;
  };
  const int64_t tiles = ceil_div(gemm.m, kRows) * ceil_div(gemm.n, kColumns);
  if (context.tensor_bf16() || gemm.in != DType::bf16 || gemm.k == 0 || tiles > INT32_MAX ||
      ceil_div(gemm.k, kFindDepth) > 65535 || !whole(gemm.a, gemm.lda, down_a ? gemm.m : gemm.k) ||
      !whole(gemm.b, gemm.ldb, down_b ? gemm.n : gemm.k))
    return false;
  int* largest = context.scratch.take<int>(gemm.m + gemm.n);
  check_cuda(cudaMemsetAsync(largest, 0, static_cast<size_t>(gemm.m + gemm.n) * sizeof(int), context.stream),
             "clearing");
  const auto launch = [&](auto is_down_a, auto is_down_b) {
    constexpr bool kDownA = is_down_a(), kDownB = is_down_b();
    const Side<kDownA> a{static_cast<const bf16*>(gemm.a), gemm.lda, gemm.m, gemm.k};
    const Side<kDownB> b{static_cast<const bf16*>(gemm.b), gemm.ldb, gemm.n, gemm.k};
    queue_largest(a, largest, context), queue_largest(b, largest + gemm.m, context);
    for_gemm_types(gemm, [&](auto*, auto* out) {
      using Out = std::remove_pointer_t<decltype(out)>;
      constexpr size_t kBytes = kShared<kDownA, kDownB> / 2 + 2 * (kRows + kColumns) * sizeof(float);
      QENG_LAUNCH(context, (half_product<kDownA, kDownB, Out>), dim3(static_cast<unsigned>(tiles)), dim3(kThreads),
                  kBytes, a, b, largest, result_of(gemm));
    });
  };
  const auto with_b = [&](auto is_down_a) {
    down_b ? launch(is_down_a, std::true_type()) : launch(is_down_a, std::false_type());
  };
  down_a ? with_b(std::true_type()) : with_b(std::false_type());
  return true;
}

}  // namespace qeng
