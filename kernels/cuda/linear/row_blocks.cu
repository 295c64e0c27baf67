// RowLinear, and GroupedMatmul apart, by block formats: integer dot products of the weight's codes with the codes of x.
//
// A warp copies the blocks of its row to shared memory 1024 to 4096 codes at a time, as they lie in memory, because
// blocks of 18, 34 or 66 bytes let no lane read more than two bytes of them at once; the copies of the next codes are
// under way while these are used. Then each lane takes its part of a block (block_halves.h), the lanes of a block add
// their exact integers, and sums of the products with the scales are f32, in the order of row_linear.h.
#include "kernels/cuda/linear/block_halves.h"
#include "kernels/cuda/linear/grouped_rows.h"
#include "kernels/cuda/ptx/ptx.h"

namespace qeng {

namespace {

constexpr int kStages = 2;
constexpr int kSpanLanes = kSpan / 32;
static_assert(kWarp / kSpanLanes == kSpanSums);
constexpr int kBlocksAtOnce =
    4;  // of a multiprocessor: 128 registers a thread. Unasked, ptxas takes 64 for eight rows and spills

template <class Block>
struct Stage {
  static constexpr int kLanes = Block::kElements / 32;  // of a block
  static constexpr int kStep = kWarp / kLanes;          // blocks that a warp works on at once
  // Of a stage: whole 16-byte vectors, and where blocks are words one for each lane.
  static constexpr int kBlocks = Block::kElements == 256 ? 8
                                 : sizeof(Block) <= 8    ? kWarp * 16 / static_cast<int>(sizeof(Block))
                                                         : kStep;
  static constexpr int kBytes = kBlocks * static_cast<int>(sizeof(Block));
  static_assert(kBytes % 16 == 0 && kBlocks % kStep == 0);
  static constexpr int kRoom = vector_room(kBytes);
};

// Starts copying blocks [first, first + kBlocks) of a row that has `count`; the lanes of a warp share the work.
template <class Block>
__device__ void copy_stage(char* to, const Block* row, int64_t first, int64_t count) {
  const int64_t left = (count - first) * static_cast<int64_t>(sizeof(Block));
  copy_vectors(to, row + first, static_cast<int>(left < Stage<Block>::kBytes ? left : Stage<Block>::kBytes));
}

// Sums over the lanes of a block, the same in each of them.
template <int kLanes>
__device__ inline int block_sum(int x) {
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

// Row j of a weight times rows first .. first + rows of x, by a warp.
template <class Block, int kRows>
__device__ void multiply_blocks(const RowProducts& p, const RowWeight& weight, int64_t j, int64_t first, int rows) {
  using S = Stage<Block>;
  constexpr int kTogether = halves::kGroup<Block> / 32;  // lanes whose integers share a scale of x
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  char* stages = shared_memory() + warp * kStages * S::kRoom;
  const int64_t count = p.k / Block::kElements;
  const Block* row = static_cast<const Block*>(weight.w) + j * count;
  const int begin = vector_offset(row);  // of each stage, which are whole vectors
  const int8_t* codes = p.codes + first * p.k;
  const int64_t steps = p.k / kScaleStep;
  const float* scales = p.scales + first * steps;

  float sum[kRows] = {};
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) {
    if (s * S::kBlocks < count) copy_stage(stages + s * S::kRoom, row, s * S::kBlocks, count);
    ptx::cp_async_commit();
  }
  int turn = 0;
  for (int64_t base = 0; base < count; base += S::kBlocks, turn = turn + 1 == kStages ? 0 : turn + 1) {
    __syncwarp();  // the stage that is filled now has been read by all
    const int64_t ahead = base + (kStages - 1) * S::kBlocks;
    const int filled = turn == 0 ? kStages - 1 : turn - 1;
    if (ahead < count) copy_stage(stages + filled * S::kRoom, row, ahead, count);
    ptx::cp_async_commit();
    ptx::cp_async_wait<kStages - 1>();
    __syncwarp();
#pragma unroll
    for (int step = 0; step < S::kBlocks; step += S::kStep) {
      const int local = step + lane / S::kLanes, part = lane % S::kLanes;
      const int64_t b = base + local;
      const bool real = b < count;
      if (base + step >= count) break;
      const Block& block = reinterpret_cast<const Block*>(stages + turn * S::kRoom + begin)[real ? local : 0];
      int dot[kRows] = {}, less[kRows] = {};
#pragma unroll(kRows == 1 ? 2 : 1)  // both halves at once leave no registers for eight rows
      for (int h = 0; h < 2; ++h) {
        uint32_t words[4];
        halves::codes_of(block, part, h, words);
        const int place = halves::first_of(block, part, h), group = place / Block::kGroup;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          if (r >= rows) continue;
          const uint4 q = *reinterpret_cast<const uint4*>(codes + r * p.k + (real ? b : 0) * Block::kElements + place);
          int part_dot = __dp4a(static_cast<int>(words[0]), static_cast<int>(q.x), 0);
          part_dot = __dp4a(static_cast<int>(words[1]), static_cast<int>(q.y), part_dot);
          part_dot = __dp4a(static_cast<int>(words[2]), static_cast<int>(q.z), part_dot);
          part_dot = __dp4a(static_cast<int>(words[3]), static_cast<int>(q.w), part_dot);
          if constexpr (halves::kFactors<Block>) part_dot *= halves::group_factor(block, group);
          dot[r] += part_dot;
          if constexpr (halves::kMinima<Block>) {
            constexpr int ones = 0x01010101;
            int part_sum = __dp4a(ones, static_cast<int>(q.x), 0);
            part_sum = __dp4a(ones, static_cast<int>(q.y), part_sum);
            part_sum = __dp4a(ones, static_cast<int>(q.z), part_sum);
            part_sum = __dp4a(ones, static_cast<int>(q.w), part_sum);
            if constexpr (halves::kFactors<Block>) part_sum *= halves::group_minimum(block, group);
            less[r] += part_sum;
          }
        }
      }
      const float factor = halves::factor_of(block);
      float minimum = 0;
      if constexpr (halves::kMinima<Block>) minimum = halves::minimum_of(block);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (r >= rows) continue;
        const int total = block_sum<kTogether>(!halves::kSigns<Block> || real ? dot[r] : 0);
        const float d = real ? scales[r * steps + (b * Block::kElements + part * 32) / kScaleStep] : 0.0f;
        float product;
        if constexpr (halves::kMinima<Block>)
          product = block_product(factor, d, total, minimum, block_sum<kTogether>(less[r]));
        else
          product = block_product(factor, d, total);
        if (!real) product = 0.0f;
#pragma unroll
        for (int distance = kTogether; distance < kSpanLanes; distance *= 2)
          product = __fadd_rn(product, __shfl_xor_sync(kAllLanes, product, distance));
        sum[r] = __fadd_rn(sum[r], product);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) continue;
    float total = sum[r];  // of the spans of its eight lanes
    total = __fadd_rn(total, __shfl_xor_sync(kAllLanes, total, 2 * kSpanLanes));
    total = __fadd_rn(total, __shfl_xor_sync(kAllLanes, total, kSpanLanes));
    if (lane == 0) finish_row(p, weight, first + r, j, total);
  }
}

// kRows: 1 or kBatchRows.
template <class Block, int kRows>
__global__ void __launch_bounds__(kRowWarps* kWarp, kRows == 1 ? 1 : kBlocksAtOnce) block_rows(RowProducts p) {
  int64_t j = int64_t{blockIdx.x} * kRowWarps + threadIdx.x / kWarp;
  const RowWeight& weight = weight_of(p, j);
  if (j >= weight.n) return;
  const int64_t first = int64_t{blockIdx.y} * kRows;
  const int rows = kRows == 1 ? 1 : static_cast<int>(p.rows - first < kRows ? p.rows - first : kRows);
  multiply_blocks<Block, kRows>(p, weight, j, first, rows);
}

template <class Block, int kRows>
__global__ void __launch_bounds__(kRowWarps* kWarp, kRows == 1 ? 1 : kBlocksAtOnce)
    grouped_block_rows(GroupedProducts g) {
  if (blockIdx.x == 0 && blockIdx.y == 0) check_experts(g.experts);
  const int64_t j = int64_t{blockIdx.x} * kRowWarps + threadIdx.x / kWarp;
  if (j >= g.p.weight[0].n) return;
  const ExpertRows of = expert_rows<kRows>(g.experts, blockIdx.y);
  if (of.rows == 0) return;
  if (of.expert < g.experts.count)
    multiply_blocks<Block, kRows>(g.p, weight_of(g, of.expert), j, of.first, kRows == 1 ? 1 : of.rows);
  else if (threadIdx.x % kWarp == 0)
    clear_rows(g, of, j);
}

}  // namespace

void block_products(const char* name, const RowProducts& p, DType dtype, CudaContext& context) {
  if (p.rows > kBatchRows) return block_tiles(name, p, dtype, context);
  blocks::with_block(dtype, [&](auto tag) {
    using Block = decltype(tag);
    constexpr size_t shared = size_t{kRowWarps} * kStages * Stage<Block>::kRoom;
    const dim3 grid = row_grid(name, p), block(kRowWarps * kWarp);
    if (p.rows == 1)
      QENG_LAUNCH(context, (block_rows<Block, 1>), grid, block, shared, p);
    else
      QENG_LAUNCH(context, (block_rows<Block, kBatchRows>), grid, block, shared, p);
  });
}

void grouped_blocks(const char* name, const GroupedProducts& g, DType dtype, CudaContext& context) {
  blocks::with_block(dtype, [&](auto tag) {
    using Block = decltype(tag);
    constexpr size_t shared = size_t{kRowWarps} * kStages * Stage<Block>::kRoom;
    const dim3 block(kRowWarps * kWarp);
    if (mostly_single(g.experts))
      QENG_LAUNCH(context, (grouped_block_rows<Block, 1>), grouped_grid<1>(name, g), block, shared, g);
    else
      QENG_LAUNCH(context, (grouped_block_rows<Block, kBatchRows>), grouped_grid<kBatchRows>(name, g), block, shared,
                  g);
  });
}

}  // namespace qeng
