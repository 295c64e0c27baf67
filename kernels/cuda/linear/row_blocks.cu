// RowLinear, and GroupedMatmul apart, by block formats: integer dot products of the weight's codes with the codes of x.
//
// A warp makes several elements of y: of one row of x those of some rows of the weight, so that what is read of x serves
// them all, or of several rows of x those of one row of the weight. It copies the blocks of its rows to shared memory as
// they lie in memory, because blocks of 18, 34 or 66 bytes let no lane read more than two bytes of them at once; copies
// of the next ones are under way while these are used. Each lane takes its part of a block (block_parts.h), the lanes of
// a group of x add their exact integers, and sums of the products with the scales are f32, in the order of row_linear.h.
// Lanes add by halves: with each exchange a lane keeps half of its values, so that in the end it has one.
#include <algorithm>

#include "kernels/cuda/linear/block_parts.h"
#include "kernels/cuda/linear/grouped_rows.h"
#include "kernels/cuda/linear/row_end.h"
#include "kernels/cuda/ptx/ptx.h"
#include "kernels/error.h"

namespace qeng {

namespace {

constexpr int kSpanLanes = kSpan / 32;
static_assert(kWarp / kSpanLanes == kSpanSums);
constexpr int kMostStages = 4, kRing = 72 << 10;  // bytes of a block, of which three share a multiprocessor of 227 KB
// Digits of base 3 take so many instructions and registers that nothing else counts.
template <class Block>
constexpr bool kDigits = std::is_same_v<Block, blocks::TQ1_0> || std::is_same_v<Block, blocks::PTQ1_0>;
// Of a multiprocessor: 168 registers a thread. Unasked, ptxas takes 64 for eight rows and spills.
template <class Block>
constexpr int kBlocksAtOnce = kDigits<Block> ? 2 : 3;
// Rows of a weight to a warp, with one row of x: of the smallest codes twice as many where there are enough rows to keep
// all warps of a GPU at work, as what is done once for all of them is then most of the work.
template <class Block, int kRows>
constexpr int kWeightRows = kRows > 1 || kDigits<Block> ? 1 : 4;
template <class Block>
constexpr int kManyWeightRows = halves::kEvenParts<Block> || halves::kDoubled<Block> ? 8 : kWeightRows<Block, 1>;
#ifdef QENG_EMULATED
constexpr int64_t kManyRows = 24;  // so that tests have both
#else
constexpr int64_t kManyRows = 8192;
#endif

template <class Block>
struct Stage {
  static constexpr int kLanes = Block::kElements / 32;  // of a block
  static constexpr int kStep = kWarp / kLanes;          // blocks that a warp works on at once
  // Of a stage: as many steps as make half a kilobyte of a row, so that what a stage costs is little beside them.
  static constexpr int kStepBytes = kStep * static_cast<int>(sizeof(Block));
  static constexpr int kBlocks = Block::kElements == 256 ? 2 * kStep : (511 + kStepBytes) / kStepBytes * kStep;
  static constexpr int kBytes = kBlocks * static_cast<int>(sizeof(Block));
  static_assert(kBytes % 16 == 0 && kBlocks % kStep == 0);
  static constexpr int kRoom = vector_room(kBytes);
};
// Warps with kWeights rows of a weight each.
template <class Block, int kWeights>
struct RingOf {
  static constexpr int kStage = kWeights * Stage<Block>::kRoom;  // bytes of a warp
  static constexpr int kStages = std::clamp(kRing / (kRowWarps * kStage), 2, kMostStages);
  static constexpr int kWarpBytes = kStages * kStage;
};

__device__ inline int add(int a, int b) { return a + b; }
__device__ inline float add(float a, float b) { return __fadd_rn(a, b); }
// The sum over the eight lanes of a span of value own_value<n>(), in pairs of neighbours and those in pairs.
template <int n, int kDistance = 1, class T>
__device__ inline T share_sums(const T (&values)[n]) {
  if constexpr (kDistance == kSpanLanes) {
    return values[0];
  } else if constexpr (n == 1) {
    const T sums[1] = {add(values[0], __shfl_xor_sync(kAllLanes, values[0], kDistance))};
    return share_sums<1, 2 * kDistance>(sums);
  } else {
    const bool upper = threadIdx.x & kDistance;
    T sums[n / 2];
#pragma unroll
    for (int i = 0; i < n / 2; ++i)
      sums[i] = add(upper ? values[i + n / 2] : values[i],
                    __shfl_xor_sync(kAllLanes, upper ? values[i] : values[i + n / 2], kDistance));
    return share_sums<n / 2, 2 * kDistance>(sums);
  }
}
template <int n>
__device__ inline int own_value() {
  const int lane = static_cast<int>(threadIdx.x) % kSpanLanes;
  int own = 0;
#pragma unroll
  for (int distance = 1, size = n; size > 1; distance *= 2, size /= 2) own += lane & distance ? size / 2 : 0;
  return own;
}

template <int n>
__device__ inline int own_of(const int (&values)[n], int own) {
  int value = values[0];
#pragma unroll
  for (int i = 1; i < n; ++i) value = own == i ? values[i] : value;
  return value;
}

// The rows of a weight that a warp has, on their way to shared memory: a ring of stages, each of kBlocks blocks of every
// row. Stages are whole 16-byte vectors, so all of a row's begin as far into a vector as the row itself.
template <class Block, int kWeights>
struct BlockRing {
  using S = Stage<Block>;
  using R = RingOf<Block, kWeights>;
  static constexpr int kVectors = S::kRoom / 16;  // of a row in a stage, at most

  char* stages;
  uint32_t to;                 // where the lane copies in the first stage, as shared memory is addressed
  int lane, filled = 0;        // the stage that is filled next
  int begin[kWeights];         // of a row's blocks in a stage
  const char* from[kWeights];  // what the lane copies next
  int left;                    // of a row's bytes, from what the lane would copy next of one that begins with a vector

  __device__ BlockRing(const RowWeight& weight, int64_t j, int count) {
    lane = static_cast<int>(threadIdx.x) % kWarp;
    stages = shared_memory() + static_cast<int>(threadIdx.x) / kWarp * R::kWarpBytes;
    to = ptx::opaque(ptx::shared_address(stages) +
                     16 * static_cast<uint32_t>(lane));  // else it is made anew for each copy
    left = count * static_cast<int>(sizeof(Block)) - 16 * lane;
#pragma unroll
    for (int w = 0; w < kWeights; ++w) {
      const char* row = static_cast<const char*>(weight.w) +
                        (j + w < weight.n ? j + w : weight.n - 1) * count * static_cast<int64_t>(sizeof(Block));
      begin[w] = w * S::kRoom + vector_offset(row);
      from[w] = row - vector_offset(row) + 16 * lane;
    }
  }
  __device__ void copy() {
    const uint32_t stage = to + static_cast<uint32_t>(filled * R::kStage);
#pragma unroll
    for (int w = 0; w < kWeights; ++w) {
#pragma unroll
      for (int i = 0; i < kVectors; i += kWarp) {
        const bool real = begin[w] - w * S::kRoom + left > 16 * i && (i + kWarp <= kVectors || lane < kVectors - i);
        if (real) ptx::cp_async_whole(stage + static_cast<uint32_t>(w * S::kRoom + 16 * i), from[w] + 16 * i);
      }
      from[w] += S::kBytes;
    }
    left -= S::kBytes;
    filled = filled + 1 == R::kStages ? 0 : filled + 1;
    ptx::cp_async_commit();
  }
  // The next stage, once it is there; the one before it is filled anew.
  __device__ const char* next() {
    __syncwarp();  // the stage that is filled now has been read by all
    copy();
    ptx::cp_async_wait<R::kStages - 1>();
    __syncwarp();
    return stages + filled * R::kStage;
  }
};

// Rows j .. j + kWeights of a weight times rows first .. first + rows of x, by a warp: value own_value() of them.
template <class Block, int kWeights, int kRows>
__device__ float multiply_blocks(const RowProducts& p, const RowWeight& weight, int64_t j, int64_t first, int rows) {
  using S = Stage<Block>;
  using R = RingOf<Block, kWeights>;
  constexpr int kValues = kWeights * kRows;
  static_assert((kWeights == 1 || kRows == 1) && kValues <= kSpanLanes);
  constexpr bool kTogether =
      halves::kGroup<Block> == kSpan;  // the lanes of a span share a scale of x, and add integers
  const int lane = static_cast<int>(threadIdx.x) % kWarp, part = lane % S::kLanes, mine = lane / S::kLanes;
  const int k = static_cast<int>(p.k), count = k / Block::kElements;
  BlockRing<Block, kWeights> ring(weight, j, count);
  // Of the lane's block in the first step: what it meets of x.
  const int64_t element = first * p.k + mine * Block::kElements;
  const int8_t* codes = p.codes + element;
  const int* x_sums = p.sums + element / kSumStep;
  const float* scales = p.scales + element / kScaleStep;
  const int own = own_value<kValues>(), own_row = kRows == 1 || own >= rows ? 0 : own;
  const int own_begin = own_of(ring.begin, kWeights == 1 ? 0 : own);

  // Steps and stages are multiples of 4 bytes, where it counts.
  static_assert(!halves::kEvenParts<Block> || S::kStep * sizeof(Block) % 4 == 0);
  bool odd[kWeights];
#pragma unroll
  for (int w = 0; w < kWeights; ++w) odd[w] = (ring.begin[w] + mine * static_cast<int>(sizeof(Block))) & 2;

  float sum = 0;
  // Blocks from base + step on, one for each part of it; some are missing where they are not `whole`.
  const auto use_step = [&](auto whole, const char* stage, int base, int step) {
    constexpr bool kWhole = decltype(whole)::value;
    const bool real = kWhole || base + step + mine < count;
    const int at = real ? step : -mine, x_at = at * Block::kElements;  // a lane without a block takes the first
    const auto block = [&](int begin) -> const Block& {
      return *reinterpret_cast<const Block*>(stage + begin + (mine + at) * static_cast<int>(sizeof(Block)));
    };
    // The first block may begin at another multiple of 2 than the lane's own.
    const auto cut = [&](int w, halves::Part& of_block) {
      const Block& from = block(ring.begin[w]);
      halves::cut_part(from, part, kWhole ? odd[w] : halves::is_odd(&from), of_block);
    };
    int dot[kValues] = {};
    [[maybe_unused]] int less[kValues] = {};
    const auto multiply = [&](const halves::Part& w, const halves::PartOfX& x, int v) {
      dot[v] = halves::dot_part<Block>(w, x);
      if constexpr (halves::kMinima<Block>) less[v] = halves::less_of<Block>(w, x);
    };
    const auto read = [&](int r, halves::PartOfX& x) {
      halves::read_x(block(ring.begin[0]), part, codes + r * k + x_at, x_sums + (r * k + x_at) / kSumStep, x);
    };
    if constexpr (kRows == 1) {
      halves::PartOfX x;
      read(0, x);
#pragma unroll
      for (int w = 0; w < kWeights; ++w) {
        halves::Part of_block;
        cut(w, of_block);
        multiply(of_block, x, w);
      }
    } else {
      halves::Part of_block;
      cut(0, of_block);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (r >= rows) continue;
        halves::PartOfX x;
        read(r, x);
        multiply(of_block, x, r);
      }
    }
    float product;
    if constexpr (kTogether) {  // of one value, that of the lane
      if (!real)
#pragma unroll
        for (int v = 0; v < kValues; ++v) dot[v] = less[v] = 0;
      const int total = share_sums(dot);
      [[maybe_unused]] int total_less = 0;
      if constexpr (halves::kMinima<Block>) total_less = share_sums(less);
      constexpr int kBehind = Block::kElements < kSpan ? 1 : 0;  // blocks of a span may be missing, but for its first
      const int back = kBehind * (lane % kSpanLanes);
      const bool some = kWhole || base + step + mine - back < count;
      const float d = some ? scales[(own_row * k + step * Block::kElements) / kScaleStep - back] : 0.0f;
      const Block& of = block(own_begin);
      if constexpr (halves::kMinima<Block>)
        product = block_product(halves::factor_of(of), d, total, halves::minimum_of(of), total_less);
      else
        product = block_product(halves::factor_of(of), d, total);
      if (!some) product = 0;
    } else {
      float products[kValues];
#pragma unroll
      for (int v = 0; v < kValues; ++v) {
        const Block& of = block(ring.begin[kWeights == 1 ? 0 : v]);
        const float d = scales[((kRows == 1 || v >= rows ? 0 : v * k) + x_at) / kScaleStep + part];
        if constexpr (halves::kMinima<Block>)
          products[v] = block_product(halves::factor_of(of), d, dot[v], halves::minimum_of(of), less[v]);
        else
          products[v] = block_product(halves::factor_of(of), d, dot[v]);
        if (!real) products[v] = 0;
      }
      product = share_sums(products);
    }
    sum = __fadd_rn(sum, product);
  };
  const auto use = [&](auto whole, const char* stage, int base) {
    const auto missing = [&](int step) { return !decltype(whole)::value && base + step >= count; };
    if constexpr (kRows == 1) {
#pragma unroll
      for (int step = 0; step < S::kBlocks; step += S::kStep)
        if (!missing(step)) use_step(whole, stage, base, step);
    } else {
#pragma unroll 1  // eight rows of x leave no registers for more
      for (int step = 0; step < S::kBlocks && !missing(step); step += S::kStep) use_step(whole, stage, base, step);
    }
    codes += S::kBlocks * Block::kElements;
    x_sums += S::kBlocks * Block::kElements / kSumStep;
    scales += S::kBlocks * Block::kElements / kScaleStep;
  };
#pragma unroll
  for (int s = 0; s < R::kStages - 1; ++s) ring.copy();
  int base = 0;
  for (; base + S::kBlocks <= count; base += S::kBlocks) use(std::true_type(), ring.next(), base);
  if (base < count) use(std::false_type(), ring.next(), base);
  sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, 2 * kSpanLanes));
  sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, kSpanLanes));
  return sum;
}
// And that to y.
template <int kWeights, int kRows>
__device__ inline void write_sum(const RowProducts& p, const RowWeight& weight, int64_t j, int64_t first, int rows,
                                 float sum) {
  constexpr int kValues = kWeights * kRows;
  const int own = own_value<kValues>();
  if (kWeights > 1) j += own;
  if (threadIdx.x % kWarp >= kValues || j >= weight.n || (kRows > 1 && own >= rows)) return;
  finish_row(p, weight, first + (kRows == 1 ? 0 : own), j, sum);
}

// The weight whose rows warp j has, kWeights of them; j becomes the first.
template <int kWeights>
__device__ inline const RowWeight& weight_rows(const RowProducts& p, int64_t& j) {
  int i = 0;
  for (; i + 1 < p.count; ++i) {
    const int64_t warps = (p.weight[i].n + kWeights - 1) / kWeights;
    if (j < warps) break;
    j -= warps;
  }
  j *= kWeights;
  return p.weight[i];
}
template <int kWeights>
dim3 blocks_grid(const char* name, const RowProducts& p, int rows) {
  int64_t warps = 0;
  for (int i = 0; i < p.count; ++i) warps += ceil_div(p.weight[i].n, kWeights);
  const int64_t blocks = ceil_div(warps, kRowWarps), tiles = ceil_div(p.rows, rows);
  if (blocks > INT32_MAX || tiles > 65535)
    fail("unsupported", name, ": ", p.rows, " rows by ", warps * kWeights, " are more than one launch takes");
  return dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(tiles));
}
template <class Block, int kWeights>
constexpr size_t kSharedBytes = size_t{kRowWarps} * RingOf<Block, kWeights>::kWarpBytes;
// Several rows of some formats take more than the 64 KB of 7.5, which goes on by kernels of one row.
template <class Block, int kWeights>
bool fits(const CudaContext& context) {
  return kSharedBytes<Block, kWeights> + kEndBytes <= context.shared_limit;
}

// What follows the product (row_end.h) may cost the loop no instruction. So it is a call, but for ternary, whose loop is
// shorter with it inside; and IQ1_M's kernels, which would be longer both ways, leave it to a kernel of its own.
template <class Block>
constexpr bool kEndsInside = !std::is_same_v<Block, blocks::IQ1_M>;
template <class Block>
constexpr bool kEndsByCall = !std::is_same_v<Block, blocks::Ternary>;

template <int kWeights>
__device__ __attribute__((noinline)) void end_block(const RowProducts& p, const RowEnd& end, char* shared) {
  int64_t j = int64_t{blockIdx.x} * kRowWarps;
  const RowWeight& weight = weight_rows<kWeights>(p, j);
  end_rows<kRowWarps * kWarp>(end, weight.number, j, kRowWarps * kWeights, shared);
}

// Weights, which nobody writes, may come while the kernel before still runs: of each row as much as a warp asks for at
// once.
template <class Block, int kWeights>
__device__ inline void prefetch_rows(const RowProducts& p, const RowWeight& weight, int64_t j) {
  constexpr int kLine = 128;
  const int64_t bytes = p.k / Block::kElements * static_cast<int64_t>(sizeof(Block)), at = threadIdx.x % kWarp * kLine;
  const char* from = static_cast<const char*>(weight.w) + j * bytes + at;
#pragma unroll 1
  for (int i = 0; i < kWeights && j + i < weight.n && at < bytes; ++i, from += bytes) ptx::prefetch(from);
}

// kRows: 1 or kBatchRows.
template <class Block, int kWeights, int kRows>
__global__ void __launch_bounds__(kRowWarps* kWarp, kBlocksAtOnce<Block>)
    block_rows(const __grid_constant__ RowProducts p, const __grid_constant__ RowEnd end) {
  const auto warp_row = [](unsigned block, unsigned thread) { return int64_t{block} * kRowWarps + thread / kWarp; };
  int64_t j = warp_row(blockIdx.x, threadIdx.x);
  const RowWeight& weight = weight_rows<kWeights>(p, j);
  prefetch_rows<Block, kWeights>(p, weight, j);
  ptx::begin_ahead();
  if (j >= weight.n) return;
  const int64_t first = int64_t{blockIdx.y} * kRows;
  const int rows = kRows == 1 ? 1 : static_cast<int>(p.rows - first < kRows ? p.rows - first : kRows);
  const float sum = multiply_blocks<Block, kWeights, kRows>(p, weight, j, first, rows);
  if constexpr (!kEndsInside<Block>) return write_sum<kWeights, kRows>(p, weight, j, first, rows, sum);
  // Where that was is looked up anew: what is kept takes registers of the loop.
  int64_t again = warp_row(ptx::opaque(blockIdx.x), ptx::opaque(threadIdx.x));
  const RowWeight& made = weight_rows<kWeights>(p, again);
  write_sum<kWeights, kRows>(p, made, again, first, rows, sum);
  if (end.kind == EndKind::none) return;
  char* const shared = shared_memory() + kRowWarps * RingOf<Block, kWeights>::kWarpBytes;
  if constexpr (kEndsByCall<Block>)
    end_block<kWeights>(p, end, shared);
  else
    end_rows<kRowWarps * kWarp>(end, made.number, again - threadIdx.x / kWarp * kWeights, kRowWarps * kWeights, shared);
}

template <class Block, int kRows>
__global__ void __launch_bounds__(kRowWarps* kWarp, kBlocksAtOnce<Block>) grouped_block_rows(GroupedProducts g) {
  if (blockIdx.x == 0 && blockIdx.y == 0) check_experts(g.experts);
  constexpr int kWeights = kWeightRows<Block, kRows>;
  const int64_t j = (int64_t{blockIdx.x} * kRowWarps + threadIdx.x / kWarp) * kWeights;
  const int64_t n = g.p.weight[0].n;
  if (j >= n) return;
  const ExpertRows of = expert_rows<kRows>(g.experts, blockIdx.y);
  if (of.rows == 0) return;
  if (of.expert < g.experts.count) {
    const RowWeight weight = weight_of(g, of.expert);
    const int rows = kRows == 1 ? 1 : of.rows;
    const float sum = multiply_blocks<Block, kWeights, kRows>(g.p, weight, j, of.first, rows);
    write_sum<kWeights, kRows>(g.p, weight, j, of.first, rows, sum);
  } else if (threadIdx.x % kWarp < kWeights && j + threadIdx.x % kWarp < n) {
    clear_rows(g, of, j + threadIdx.x % kWarp);
  }
}

}  // namespace

bool block_ends_inside(DType dtype) {
  bool inside = false;
  blocks::with_block(dtype, [&](auto tag) { inside = kEndsInside<decltype(tag)>; });
  return inside;
}

void block_products(const char* name, const RowProducts& p, const RowEnd& end, DType dtype, CudaContext& context) {
  if (p.rows > kBatchRows) return block_tiles(name, p, dtype, context);
  int64_t n = 0;
  for (int i = 0; i < p.count; ++i) n += p.weight[i].n;
  blocks::with_block(dtype, [&](auto tag) {
    using Block = decltype(tag);
    const auto queue = [&](auto weights, auto rows) {
      constexpr int kWeights = decltype(weights)::value, kRows = decltype(rows)::value;
      QENG_LAUNCH_AHEAD(context, (block_rows<Block, kWeights, kRows>), blocks_grid<kWeights>(name, p, kRows),
                        dim3(kRowWarps * kWarp), (kSharedBytes<Block, kWeights> + kEndBytes), p, end);
    };
    constexpr std::integral_constant<int, 1> one;
    constexpr int kMany = kManyWeightRows<Block>, kSome = kWeightRows<Block, 1>;
    if constexpr (std::is_same_v<Block, blocks::OneBit>)
      bit_products(p, end, context);
    else if (p.rows == 1 && n >= kManyRows && fits<Block, kMany>(context))
      queue(std::integral_constant<int, kMany>(), one);
    else if (p.rows == 1 && fits<Block, kSome>(context))
      queue(std::integral_constant<int, kSome>(), one);
    else
      queue(one, std::integral_constant<int, kBatchRows>());
  });
}

void grouped_blocks(const char* name, const GroupedProducts& g, DType dtype, CudaContext& context) {
  if (rows_of_expert(g.experts) > kBatchRows) return block_tiles(name, g, dtype, context);
  blocks::with_block(dtype, [&](auto tag) {
    using Block = decltype(tag);
    const auto queue = [&](auto rows) {
      constexpr int kRows = decltype(rows)::value, kWeights = kWeightRows<Block, kRows>;
      const dim3 grid(static_cast<unsigned>(ceil_div(g.p.weight[0].n, kRowWarps * kWeights)),
                      expert_slots<kRows>(name, g.experts));
      QENG_LAUNCH(context, (grouped_block_rows<Block, kRows>), grid, dim3(kRowWarps * kWarp),
                  (kSharedBytes<Block, kWeights>), g);
    };
    if (mostly_single(g.experts) && fits<Block, kWeightRows<Block, 1>>(context))
      queue(std::integral_constant<int, 1>());
    else
      queue(std::integral_constant<int, kBatchRows>());
  });
}

}  // namespace qeng
