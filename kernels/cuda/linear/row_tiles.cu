// RowLinear by block formats for many rows of x: int8 tensor cores.
//
// A thread block makes 128 rows of x times 32 rows of a weight, a span of 256 elements at a time: the blocks are copied
// to shared memory as they lie in memory, cut into codes there, and multiplied. Integers are exact, and floats are
// added in the order of row_linear.h, so the bits are those of row_blocks.cu.
#include "kernels/cuda/linear/block_halves.h"
#include "kernels/cuda/linear/row_linear.h"
#include "kernels/cuda/ptx/ptx_int8.h"

namespace qeng {

namespace {

constexpr int kTileX = 128, kTileW = 32;  // rows
constexpr int kWarps = kTileX / 16, kThreads = kWarps * kWarp;
constexpr int kColumns = kTileW / 8;  // products of 8 columns to a warp
constexpr int kPitch = kSpan + 16;    // bytes: rows four banks apart

template <class Block>
struct Layout {
  static constexpr int kBlocks = kSpan / Block::kElements;  // of a row in a span
  static constexpr int kGroups = kSpan / Block::kGroup;
  static constexpr int kProducts = kSpan / halves::kGroup<Block>;  // of one scale of x each
  static constexpr int kDepth = Block::kGroup == 16 ? 16 : 32;     // k of a product, which lies in one group
  static constexpr int kBytes = kBlocks * static_cast<int>(sizeof(Block));

  const Block* rows[kTileW];  // of the weights, or null
  alignas(16) char raw[kTileW][vector_room(kBytes)];
  alignas(16) int8_t w[kTileW][kPitch];
  alignas(16) int8_t x[kTileX][kPitch];
  float x_scale[kTileX][kProducts];
  float factor[kTileW][kBlocks], minimum[kTileW][kBlocks];
  int group_factor[kTileW][kGroups], group_minimum[kTileW][kGroups];
  int x_sum[kTileX][kGroups + 1];  // of the codes of a group
};

// Starts copying blocks [first, first + kBlocks) of each row of the tile.
template <class Block>
__device__ void copy_blocks(Layout<Block>& shared, int64_t first, int64_t count) {
  const int64_t left = (count - first) * static_cast<int64_t>(sizeof(Block));
  const int bytes = static_cast<int>(left < Layout<Block>::kBytes ? left : Layout<Block>::kBytes);
  for (int row = static_cast<int>(threadIdx.x) / kWarp; row < kTileW; row += kWarps)
    if (shared.rows[row]) copy_vectors(shared.raw[row], shared.rows[row] + first, bytes);
}

// The codes and scales of the tile's rows of x; zeros past the rows' ends.
template <class Block>
__device__ void copy_x(Layout<Block>& shared, const RowProducts& p, int64_t first_row, int64_t span) {
  constexpr int kChunks = kSpan / 16, kProducts = Layout<Block>::kProducts;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kTileX * kChunks; i += kThreads) {
    const int64_t row = first_row + i / kChunks, k = span * kSpan + i % kChunks * 16;
    uint4 codes = make_uint4(0, 0, 0, 0);
    if (row < p.rows && k < p.k) codes = *reinterpret_cast<const uint4*>(p.codes + row * p.k + k);
    *reinterpret_cast<uint4*>(&shared.x[i / kChunks][i % kChunks * 16]) = codes;
  }
  constexpr int kSteps = kSpan / kScaleStep;  // scales of a span, as they are stored
  const int64_t count = p.k / kScaleStep;
  for (int i = thread; i < kTileX * kProducts; i += kThreads) {
    const int64_t row = first_row + i / kProducts, s = span * kSteps + i % kProducts * (kSteps / kProducts);
    shared.x_scale[i / kProducts][i % kProducts] = row < p.rows && s < count ? p.scales[row * count + s] : 0.0f;
  }
}

// From the copies: codes, factors and minima of the weights; sums of x. Blocks past a row's end are zeros. first: that
// of each row.
template <class Block>
__device__ void cut_blocks(Layout<Block>& shared, int64_t first, int real_blocks) {
  constexpr int kHalves = Block::kElements / 16, kBlocks = Layout<Block>::kBlocks, kGroups = Layout<Block>::kGroups;
  const int thread = static_cast<int>(threadIdx.x);
  const auto block_of = [&](int row, int b) -> const Block& {
    return reinterpret_cast<const Block*>(shared.raw[row] + vector_offset(shared.rows[row] + first))[b];
  };
  for (int i = thread; i < kTileW * kBlocks * kHalves; i += kThreads) {
    const int row = i / (kBlocks * kHalves), b = i / kHalves % kBlocks, part = i % kHalves / 2, h = i % 2;
    uint32_t words[4] = {};
    int place = 32 * part + 16 * h;
    if (shared.rows[row] && b < real_blocks) {
      halves::codes_of(block_of(row, b), part, h, words);
      place = halves::first_of(block_of(row, b), part, h);
    }
    *reinterpret_cast<uint4*>(&shared.w[row][b * Block::kElements + place]) =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
  for (int i = thread; i < kTileW * kBlocks; i += kThreads) {
    const int row = i / kBlocks, b = i % kBlocks;
    const bool real = shared.rows[row] && b < real_blocks;
    shared.factor[row][b] = real ? halves::factor_of(block_of(row, b)) : 0.0f;
    if constexpr (halves::kMinima<Block>) shared.minimum[row][b] = real ? halves::minimum_of(block_of(row, b)) : 0.0f;
  }
  if constexpr (halves::kFactors<Block>)
    for (int i = thread; i < kTileW * kGroups; i += kThreads) {
      const int row = i / kGroups, g = i % kGroups;
      const bool real = shared.rows[row] && real_blocks > 0;
      shared.group_factor[row][g] = real ? halves::group_factor(block_of(row, 0), g) : 0;
      if constexpr (halves::kMinima<Block>)
        shared.group_minimum[row][g] = real ? halves::group_minimum(block_of(row, 0), g) : 0;
    }
  if constexpr (halves::kMinima<Block>)
    for (int i = thread; i < kTileX * kGroups; i += kThreads) {
      const int* codes = reinterpret_cast<const int*>(&shared.x[i / kGroups][i % kGroups * Block::kGroup]);
      int sum = 0;
      for (int c = 0; c < Block::kGroup / 4; ++c) sum = __dp4a(0x01010101, codes[c], sum);
      shared.x_sum[i / kGroups][i % kGroups] = sum;
    }
}

template <class Block>
__global__ void __launch_bounds__(kThreads) block_tiles_kernel(RowProducts p) {
  using L = Layout<Block>;
  constexpr int kRegisters = L::kDepth / 16;
  constexpr int kProducts = L::kProducts, kElements = halves::kGroup<Block>;
  auto& shared = *reinterpret_cast<L*>(shared_memory());
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const int g = lane / 4, t = lane % 4, row0 = 16 * warp + g;
  const int64_t first_row = int64_t{blockIdx.y} * kTileX, first_j = int64_t{blockIdx.x} * kTileW;
  const int64_t count = p.k / Block::kElements, spans = (p.k + kSpan - 1) / kSpan;
  if (thread < kTileW) {
    int64_t j = first_j + thread;
    const RowWeight& weight = weight_of(p, j);
    shared.rows[thread] = j < weight.n ? static_cast<const Block*>(weight.w) + j * count : nullptr;
  }

  float sums[kSpanSums][kColumns][4] = {};  // of which the first is this span's; they change places after each
  for (int64_t span = 0; span < spans; ++span) {
    __syncthreads();
    copy_blocks(shared, span * L::kBlocks, count);
    copy_x(shared, p, first_row, span);
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    __syncthreads();
    cut_blocks(shared, span * L::kBlocks,
               static_cast<int>(count - span * L::kBlocks < L::kBlocks ? count - span * L::kBlocks : L::kBlocks));
    __syncthreads();
    if (first_row + 16 * warp < p.rows) {
      float pairs[4][kColumns][4];  // [n]: of 2^n groups, waiting for their neighbours
#pragma unroll
      for (int a = 0; a < kProducts; ++a) {
        int dot[kColumns][4] = {}, less[kColumns][4] = {};
#pragma unroll 2
        for (int k = a * kElements; k < (a + 1) * kElements; k += L::kDepth) {
          uint32_t rows[2 * kRegisters];
#pragma unroll
          for (int i = 0; i < 2 * kRegisters; ++i)
            rows[i] = *reinterpret_cast<const uint32_t*>(&shared.x[row0 + i % 2 * 8][k + 4 * t + i / 2 * 16]);
#pragma unroll
          for (int n = 0; n < kColumns; ++n) {
            uint32_t columns[kRegisters];
#pragma unroll
            for (int i = 0; i < kRegisters; ++i)
              columns[i] = *reinterpret_cast<const uint32_t*>(&shared.w[8 * n + g][k + 4 * t + i * 16]);
            if constexpr (halves::kFactors<Block>) {
              int c[4] = {};
              ptx::mma_int8(c, rows, columns);
#pragma unroll
              for (int i = 0; i < 4; ++i)
                dot[n][i] += shared.group_factor[8 * n + 2 * t + i % 2][k / Block::kGroup] * c[i];
            } else {
              ptx::mma_int8(dot[n], rows, columns);
            }
            if constexpr (halves::kMinima<Block>)
#pragma unroll
              for (int i = 0; i < 4; ++i) {
                int sum = shared.x_sum[row0 + i / 2 * 8][k / Block::kGroup];
                if constexpr (halves::kFactors<Block>)
                  sum *= shared.group_minimum[8 * n + 2 * t + i % 2][k / Block::kGroup];
                less[n][i] += sum;
              }
          }
        }
#pragma unroll
        for (int n = 0; n < kColumns; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int column = 8 * n + 2 * t + i % 2;
            const int b = a * kElements / Block::kElements;
            const float d = shared.x_scale[row0 + i / 2 * 8][a], factor = shared.factor[column][b];
            float product;
            if constexpr (halves::kMinima<Block>)
              product = block_product(factor, d, dot[n][i], shared.minimum[column][b], less[n][i]);
            else
              product = block_product(factor, d, dot[n][i]);
            int level = 0;
#pragma unroll
            for (; a >> level & 1; ++level) product = __fadd_rn(pairs[level][n][i], product);
            pairs[level][n][i] = product;
          }
      }
      constexpr int kWhole = kProducts == 8 ? 3 : 0;
      static_assert(kProducts == 1 << kWhole);
#pragma unroll
      for (int n = 0; n < kColumns; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float done = __fadd_rn(sums[0][n][i], pairs[kWhole][n][i]);
          for (int s = 0; s + 1 < kSpanSums; ++s) sums[s][n][i] = sums[s + 1][n][i];
          sums[kSpanSums - 1][n][i] = done;
        }
    }
  }
  // Whichever of the sums comes first now, the even ones are added to each other, and the odd ones.
#pragma unroll
  for (int n = 0; n < kColumns; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t row = first_row + row0 + i / 2 * 8;
      int64_t j = first_j + 8 * n + 2 * t + i % 2;
      const RowWeight& weight = weight_of(p, j);
      const float total = __fadd_rn(__fadd_rn(sums[0][n][i], sums[2][n][i]), __fadd_rn(sums[1][n][i], sums[3][n][i]));
      if (row < p.rows && j < weight.n) finish_row(p, weight, row, j, total);
    }
}

}  // namespace

void block_tiles(const char* name, const RowProducts& p, DType dtype, CudaContext& context) {
  int64_t n = 0;
  for (int i = 0; i < p.count; ++i) n += p.weight[i].n;
  const int64_t across = ceil_div(n, kTileW), down = ceil_div(p.rows, kTileX);
  if (across > INT32_MAX || down > 65535)
    fail("unsupported", name, ": ", p.rows, " rows by ", n, "; cuda takes at most ", 65535 * kTileX, " rows");
  blocks::with_block(dtype, [&](auto tag) {
    using Block = decltype(tag);
    QENG_LAUNCH(context, block_tiles_kernel<Block>, dim3(static_cast<unsigned>(across), static_cast<unsigned>(down)),
                dim3(kThreads), sizeof(Layout<Block>), p);
  });
}

}  // namespace qeng
