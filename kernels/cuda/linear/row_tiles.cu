// RowLinear, and GroupedMatmul apart, by block formats for many rows of x: int8 tensor cores.
//
// A thread block makes 128 rows of x times 32 rows of a weight, a span of 256 elements at a time: blocks are copied to
// shared memory as they lie in memory, a span ahead, and cut into codes there; codes of x come to registers as products
// take them. Integers are exact, so they are tensor cores' wherever the order of row_linear.h leaves a choice: a
// group's integer factor is multiplied into its codes, and sums of x meet groups' minima as a product of their own.
// Floats are added in that order, so the bits are those of row_blocks.cu.
#include "kernels/cuda/bounds.h"
#include "kernels/cuda/linear/block_halves.h"
#include "kernels/cuda/linear/grouped_rows.h"
#include "kernels/cuda/ptx/ptx_int8.h"
#include "kernels/error.h"

namespace qeng {

namespace {

constexpr int kTileX = 128, kTileW = 32;  // rows
constexpr int kWarps = kTileX / 16, kThreads = kWarps * kWarp;
constexpr int kColumns = kTileW / 8;  // products of 8 columns
constexpr int kSteps = kSpan / 32;    // products of a span, one after another
constexpr int kPitch = kSpan + 16;    // bytes: rows four banks apart
constexpr int kLow = 7;               // bits of the low part of a code times a factor
constexpr int kMost = 1 << 14;  // more than such a product: -128 .. 127 by -32 .. 63, or Q6_K's -32 .. 31 by a byte

template <class Block>
struct Tile {
  static constexpr bool kWhole = halves::kGroup<Block> == kSpan;  // x has one scale in a span, else one for 32
  static constexpr bool kFactors = halves::kFactors<Block>, kMinima = halves::kMinima<Block>;
  static constexpr int kBlocks = kSpan / Block::kElements;  // of a row in a span
  static constexpr int kBytes = kBlocks * static_cast<int>(sizeof(Block));
  static constexpr int kParts = kFactors ? 2 : 1;              // of the codes of a weight: low and high
  static constexpr int kScales = kWhole ? 1 : kSteps;          // of a row in a span
  static constexpr int kScalePitch = kWhole ? 1 : kSteps + 4;  // floats: rows that are read together, in other banks
  static constexpr bool kSumsApart = kMinima && !kWhole;
  static_assert(kWhole || (halves::kGroup<Block> == 32 && kScaleStep == 32 && kSumStep == 16));
  static_assert(!kFactors || (kWhole && kBlocks == 1));

  alignas(16) char raw[kTileW][vector_room(kBytes)];
  alignas(16) int8_t w[kParts][kTileW][kPitch];
  alignas(16) float factor[kTileW][kScalePitch], minimum[kMinima ? kTileW : 1][kScalePitch];
  alignas(16) int8_t group_minimum[kFactors && kMinima ? kTileW : 1][16];
  alignas(16) float x_scale[kWhole ? 1 : kWarps][16][kScalePitch], x_sum[kSumsApart ? kWarps : 1][16][kScalePitch];
  float kept[2][4 * kColumns][kThreads];  // sums of spans 0, 4, .. and 2, 6, ..; of 1, 5, ..
  const Block* rows[kTileW];              // of the weights, or null
  int end, expert;                        // of an expert: behind its last row of x; its number
};

// What a tile is made of, which is kept in shared memory of experts: registers are short. Behind the last row of x; of
// which weight column j of y is, j being counted over all of them; and the first row of x, or -1 where there is nothing
// to multiply.
template <class Block>
__device__ inline int rows_end(const Tile<Block>&, const RowProducts& p) {
  return static_cast<int>(p.rows);
}
template <class Block>
__device__ inline int rows_end(const Tile<Block>& shared, const GroupedProducts&) {
  return shared.end;
}
template <class Block>
__device__ inline const RowWeight& tile_weight(const Tile<Block>&, const RowProducts& p, int64_t& j) {
  return weight_of(p, j);
}
template <class Block>
__device__ inline RowWeight tile_weight(const Tile<Block>& shared, const GroupedProducts& g, int64_t&) {
  return weight_of(g, shared.expert);
}
template <class Block>
__device__ inline int first_row_of(Tile<Block>&, const RowProducts&, int64_t) {
  return static_cast<int>(blockIdx.y) * kTileX;
}
template <class Block>
__device__ inline int first_row_of(Tile<Block>& shared, const GroupedProducts& g, int64_t first_j) {
  if (blockIdx.x == 0 && blockIdx.y == 0) check_experts(g.experts);
  const ExpertRows of = expert_rows<kTileX>(g.experts, blockIdx.y);
  if (of.expert < g.experts.count && of.rows > 0) {
    if (threadIdx.x == 0) shared.end = static_cast<int>(of.first) + of.rows, shared.expert = of.expert;
    __syncthreads();
    return static_cast<int>(of.first);
  }
  const int64_t j = first_j + threadIdx.x % kWarp;
  for (int r = static_cast<int>(threadIdx.x) / kWarp; r < of.rows && j < g.p.weight[0].n; r += kWarps)
    clear_rows(g, {of.expert, 1, of.first + r}, j);
  return -1;
}

// Starts copying blocks [first, first + kBlocks) of each row of the tile, a row by eight threads.
template <class Block>
__device__ void copy_blocks(Tile<Block>& shared, int first, int count) {
  using T = Tile<Block>;
  const int blocks = min(count - first, T::kBlocks);
  const int thread = ptx::thread_anew(), row = thread / 8;
  if (shared.rows[row]) {
    const auto* from = reinterpret_cast<const char*>(shared.rows[row] + first);
    const int begin = vector_offset(from), end = begin + blocks * static_cast<int>(sizeof(Block));
#pragma unroll
    for (int vector = 0; vector < static_cast<int>(sizeof shared.raw[0]); vector += 8 * 16) {
      const int i = vector + thread % 8 * 16;
      if (i < end) ptx::cp_async_16(shared.raw[row] + i, from - begin + i, static_cast<uint32_t>(min(16, end - i)));
    }
  }
  ptx::cp_async_commit();
}

// Four codes times a factor, each as 128 high + low.
__device__ inline void multiply_codes(uint32_t codes, int factor, uint32_t& low, uint32_t& high) {
  const uint32_t shifted = codes ^ 0x80808080u;  // more by 128: bytes without a sign
  const uint32_t offset = static_cast<uint32_t>(kMost - 128 * factor) * 0x00010001u;
  const uint32_t even = (shifted & 0x00ff00ffu) * static_cast<uint32_t>(factor) + offset;
  const uint32_t odd = (shifted >> 8 & 0x00ff00ffu) * static_cast<uint32_t>(factor) + offset;
  low = (even & 0x007f007fu) | (odd & 0x007f007fu) << 8;
  high = ((even >> kLow & 0x00ff00ffu) | (odd >> kLow & 0x00ff00ffu) << 8) ^ 0x80808080u;
}

// From the copies: codes, factors and minima of the weights. Blocks past a row's end are zeros. first: of each row.
template <class Block>
__device__ void cut_blocks(Tile<Block>& shared, int first, int real_blocks) {
  using T = Tile<Block>;
  constexpr int kHalves = Block::kElements / 16;
  const int thread = ptx::thread_anew();
  const auto block_of = [&](int row, int b) -> const Block& {
    return reinterpret_cast<const Block*>(shared.raw[row] + vector_offset(shared.rows[row] + first))[b];
  };
  const int half = thread % (kSpan / 16), b = half / kHalves, part = half % kHalves / 2, h = half % 2;
#pragma unroll
  for (int row = thread / (kSpan / 16); row < kTileW; row += kThreads / (kSpan / 16)) {
    uint32_t words[T::kParts][4] = {};
    int place = 32 * part + 16 * h;
    if (shared.rows[row] && b < real_blocks) {
      const Block& block = block_of(row, b);
      halves::codes_of(block, part, h, words[0]);
      place = halves::first_of(block, part, h);
      if constexpr (T::kFactors) {
        const int factor = halves::group_factor(block, place / Block::kGroup);
#pragma unroll
        for (int k = 0; k < 4; ++k) multiply_codes(words[0][k], factor, words[0][k], words[1][k]);
      }
    }
#pragma unroll
    for (int i = 0; i < T::kParts; ++i)
      *reinterpret_cast<uint4*>(&shared.w[i][row][b * Block::kElements + place]) =
          make_uint4(words[i][0], words[i][1], words[i][2], words[i][3]);
  }
  for (int i = thread; i < kTileW * T::kScales; i += kThreads) {
    const int row = i / T::kScales, a = i % T::kScales, number = a * 32 / Block::kElements;
    const bool real = shared.rows[row] && number < real_blocks;
    shared.factor[row][a] = real ? halves::factor_of(block_of(row, number)) : 0.0f;
    if constexpr (T::kMinima) shared.minimum[row][a] = real ? halves::minimum_of(block_of(row, number)) : 0.0f;
  }
  if constexpr (T::kFactors && T::kMinima)
    for (int i = thread; i < kTileW * 16; i += kThreads) {
      const int row = i / 16, g = i % 16;
      const bool real = shared.rows[row] && real_blocks > 0 && g < kSpan / Block::kGroup;
      shared.group_minimum[row][g] = static_cast<int8_t>(real ? halves::group_minimum(block_of(row, 0), g) : 0);
    }
}

// Of the two rows of x of a thread, g and g + 8 of its warp's: a span's codes as products take them, and scales, which
// shared memory holds where there are more than one.
template <class Block>
struct RowsOfX {
  using T = Tile<Block>;
  uint32_t codes[kSteps][4];
  float scale[T::kWhole ? 2 : 4], sum[T::kSumsApart ? 4 : 1];

  // Of a warp's 16 rows the i-th of a lane: those of all lanes lie in different banks of shared memory.
  __device__ static int row_of_lane(int lane, int i) { return lane / kSteps * 2 + i % 2 + i / 2 * 8; }
  // Rows past the end are the last once more. groups: of 32 that the span has; what follows is read (take_rounded has
  // room behind the last row), meets weights of 0, and has a scale of 0.
  __device__ void load(const RowProducts& p, int first, int end, int span, int groups) {
    const int lane = ptx::thread_anew() % kWarp;
    const auto row_of = [&](int row) { return int64_t{min(first + row, end - 1)}; };
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int64_t row = row_of(lane / 4 + 8 * r);
      const int8_t* from = p.codes + row * p.k + span * kSpan + lane % 4 * 4;
#pragma unroll
      for (int a = 0; a < kSteps; ++a) {
        codes[a][r] = *reinterpret_cast<const uint32_t*>(from + a * 32);
        codes[a][2 + r] = *reinterpret_cast<const uint32_t*>(from + a * 32 + 16);
      }
      if constexpr (T::kWhole) scale[r] = p.scales[row * (p.k / kScaleStep) + span * kSteps];
    }
    if constexpr (!T::kWhole)  // a lane for a group of four rows
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t at = row_of(row_of_lane(lane, i)) * (p.k / kScaleStep) + span * kSteps + lane % kSteps;
        scale[i] = lane % kSteps < groups ? p.scales[at] : 0.0f;
        if constexpr (T::kSumsApart) {
          const int2 pair = reinterpret_cast<const int2*>(p.sums)[at];
          sum[i] = static_cast<float>(pair.x + pair.y);
        }
      }
  }
  __device__ void share(Tile<Block>& shared) const {
    const int thread = ptx::thread_anew(), lane = thread % kWarp, warp = thread / kWarp;
    if constexpr (!T::kWhole)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        shared.x_scale[warp][row_of_lane(lane, i)][lane % kSteps] = scale[i];
        if constexpr (T::kSumsApart) shared.x_sum[warp][row_of_lane(lane, i)][lane % kSteps] = sum[i];
      }
  }
};

// Sums of codes of x over the groups of a weight, four to a word as a product's first side: 128 high + low.
template <class Block>
__device__ void load_sums(uint32_t (&low)[2], uint32_t (&high)[2], const RowProducts& p, int row, int end, int span,
                          int t) {
  constexpr int kOfGroup = Block::kGroup / kSumStep;  // sums
#pragma unroll
  for (int r = 0; r < 2; ++r, row += 8) {
    low[r] = high[r] = 0;
    if (4 * t >= kSpan / Block::kGroup) continue;
    const int64_t real = min(row, end - 1);
    const int4* from =
        reinterpret_cast<const int4*>(p.sums + (real * (p.k / kSpan) + span) * (kSpan / kSumStep)) + t * kOfGroup;
    int sum[4];
    if constexpr (kOfGroup == 2) {
      const int4 a = from[0], b = from[1];
      sum[0] = a.x + a.y, sum[1] = a.z + a.w, sum[2] = b.x + b.y, sum[3] = b.z + b.w;
    } else {
      const int4 a = from[0];
      sum[0] = a.x, sum[1] = a.y, sum[2] = a.z, sum[3] = a.w;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int above = (sum[i] + 64) >> kLow, rest = sum[i] - (above << kLow);
      low[r] |= (static_cast<uint32_t>(rest) & 255u) << (8 * i);
      high[r] |= (static_cast<uint32_t>(above) & 255u) << (8 * i);
    }
  }
}

// The sums over a span, of which x has one scale: y (+)= x w for 8 rows of the weight from row 8 n on.
template <class Block>
__device__ __forceinline__ void add_whole(float (&sum)[4], Tile<Block>& shared, const RowsOfX<Block>& x,
                                          const uint32_t (&low_sums)[2], const uint32_t (&high_sums)[2],
                                          uint32_t minima, int n, int lane) {
  using T = Tile<Block>;
  int dot[T::kParts][4] = {}, less[4] = {};
#pragma unroll
  for (int half = 0; half < T::kParts; ++half)
#pragma unroll
    for (int a = 0; a < kSteps; a += 2) {
      uint32_t w[4];
      ptx::ldmatrix_x4(w, &shared.w[half][8 * n + lane % 8][32 * a + lane / 8 * 16]);
      ptx::mma_int8(dot[half], x.codes[a], {w[0], w[1]});
      ptx::mma_int8(dot[half], x.codes[a + 1], {w[2], w[3]});
    }
  if constexpr (T::kFactors)
#pragma unroll
    for (int i = 0; i < 4; ++i) dot[0][i] += dot[1][i] << kLow;
  if constexpr (T::kMinima) {
    int high[4] = {};
    ptx::mma_int8(less, low_sums, {minima});
    ptx::mma_int8(high, high_sums, {minima});
#pragma unroll
    for (int i = 0; i < 4; ++i) less[i] += high[i] << kLow;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int column = 8 * n + lane % 4 * 2 + i % 2;
    const float d = x.scale[i / 2], factor = shared.factor[column][0];
    float product;
    if constexpr (T::kMinima)
      product = block_product(factor, d, dot[0][i], shared.minimum[column][0], less[i]);
    else
      product = block_product(factor, d, dot[0][i]);
    sum[i] = __fadd_rn(sum[i], product);
  }
}

// The same where x has a scale for 32 elements.
template <class Block>
__device__ __forceinline__ void add_groups(float (&sum)[4], Tile<Block>& shared, const RowsOfX<Block>& x, int n,
                                           int warp, int lane) {
  using T = Tile<Block>;
  float pairs[4][4];  // [level]: of 2^level groups, waiting for their neighbours
#pragma unroll
  for (int two = 0; two < kSteps; two += 2) {
    uint32_t w[4];
    ptx::ldmatrix_x4(w, &shared.w[0][8 * n + lane % 8][32 * two + lane / 8 * 16]);
#pragma unroll
    for (int a = two; a < two + 2; ++a) {
      int dot[4] = {};
      ptx::mma_int8(dot, x.codes[a], {w[a % 2 * 2], w[a % 2 * 2 + 1]});
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = 8 * n + lane % 4 * 2 + i % 2, r = lane / 4 + i / 2 * 8;
        const float d = shared.x_scale[warp][r][a];
        float product = block_product(shared.factor[column][a], d, dot[i]);
        if constexpr (T::kMinima)
          product = __fmaf_rn(-__fmul_rn(shared.minimum[column][a], d), shared.x_sum[warp][r][a], product);
        int level = 0;
#pragma unroll
        for (; a >> level & 1; ++level) product = __fadd_rn(pairs[level][i], product);
        pairs[level][i] = product;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) sum[i] = __fadd_rn(sum[i], pairs[3][i]);
}

// Spans s, s + 4, .. at a time, s = 0, 2, 1, 3: so two numbers are kept of an element of y, and none changes places.
template <class Block, class Products>
__global__ void QENG_BOUNDS(kThreads, 2, 1) block_tiles_kernel(Products products) {
  using T = Tile<Block>;
  const RowProducts& p = products_of(products);
  auto& shared = *reinterpret_cast<T*>(shared_memory());
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const int64_t first_j = int64_t{blockIdx.x} * kTileW;
  const int first_row = first_row_of(shared, products, first_j);
  if (first_row < 0) return;
  const int count = static_cast<int>(p.k / Block::kElements), spans = static_cast<int>((p.k + kSpan - 1) / kSpan);
  if (thread < kTileW) {
    int64_t j = first_j + thread;
    const RowWeight& weight = tile_weight(shared, products, j);
    shared.rows[thread] = j < weight.n ? static_cast<const Block*>(weight.w) + j * int64_t{count} : nullptr;
  }
  // Of few rows each strip of 16 has several warps, which share the columns.
  const int left = rows_end(shared, products) - first_row;
  const int share = left <= kTileX / 4 ? 4 : left <= kTileX / 2 ? 2 : 1;
  const unsigned mine = (share == 4 ? 1u : share == 2 ? 5u : 15u) << warp % share;  // columns, by eights
  const int strip = first_row + warp / share * 16, row = strip + lane / 4;
  const auto after = [&](int span) {  // spans where there is none
    int next = span + kSpanSums;
    for (int pass = span % kSpanSums; next >= spans && pass != 3;) next = pass = pass == 0 ? 2 : pass == 2 ? 1 : 3;
    return next < spans ? next : spans;
  };
  __syncthreads();
  copy_blocks(shared, 0, count);
  int span = 0;
#pragma unroll 1
  for (int pass = 0; pass < kSpanSums; ++pass) {
    float sum[kColumns][4] = {};
#pragma unroll 1
    for (; span < spans && span % kSpanSums == (pass == 1 ? 2 : pass == 2 ? 1 : pass);) {
      RowsOfX<Block> x;
      const int groups = static_cast<int>(min(p.k - int64_t{span} * kSpan, int64_t{kSpan})) / 32;
      x.load(p, strip, rows_end(shared, products), span, groups);
      uint32_t low_sums[2], high_sums[2], minima[4];
      if constexpr (T::kMinima && T::kWhole)
        load_sums<Block>(low_sums, high_sums, p, row, rows_end(shared, products), span, lane % 4);
      ptx::cp_async_wait<0>();
      __syncthreads();  // the blocks are there, and nobody needs the codes before them
      x.share(shared);
      cut_blocks(shared, span * T::kBlocks, min(count - span * T::kBlocks, T::kBlocks));
      __syncthreads();
      span = after(span);
      if (span < spans) copy_blocks(shared, span * T::kBlocks, count);
      if (strip >= rows_end(shared, products)) continue;
      if constexpr (T::kMinima && T::kWhole) ptx::ldmatrix_x4(minima, shared.group_minimum[lane]);
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        if (!(mine >> n & 1)) continue;
        if constexpr (T::kWhole)
          add_whole(sum[n], shared, x, low_sums, high_sums, minima[n], n, lane);
        else
          add_groups(sum[n], shared, x, n, warp, lane);
      }
    }
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& kept = shared.kept[pass / 2][4 * n + i][thread];
        kept = pass % 2 ? __fadd_rn(kept, sum[n][i]) : sum[n][i];
      }
  }
#pragma unroll
  for (int n = 0; n < kColumns; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = row + i / 2 * 8;
      int64_t j = first_j + 8 * n + lane % 4 * 2 + i % 2;
      const RowWeight& weight = tile_weight(shared, products, j);
      if (mine >> n & 1 && r < rows_end(shared, products) && j < weight.n)
        finish_row(p, weight, r, j, __fadd_rn(shared.kept[0][4 * n + i][thread], shared.kept[1][4 * n + i][thread]));
    }
}

template <class Products>
void queue(const Products& products, DType dtype, dim3 grid, CudaContext& context) {
  blocks::with_block(dtype, [&](auto tag) {
    using Block = decltype(tag);
    QENG_LAUNCH(context, (block_tiles_kernel<Block, Products>), grid, dim3(kThreads), sizeof(Tile<Block>), products);
  });
}

}  // namespace

void block_tiles(const char* name, const RowProducts& p, DType dtype, CudaContext& context) {
  int64_t n = 0;
  for (int i = 0; i < p.count; ++i) n += p.weight[i].n;
  const int64_t across = ceil_div(n, kTileW), down = ceil_div(p.rows, kTileX);
  if (across > INT32_MAX || down > 65535)
    fail("unsupported", name, ": ", p.rows, " rows by ", n, "; cuda takes at most ", 65535 * kTileX, " rows");
  queue(p, dtype, dim3(static_cast<unsigned>(across), static_cast<unsigned>(down)), context);
}
void block_tiles(const char* name, const GroupedProducts& g, DType dtype, CudaContext& context) {
  const auto across = static_cast<unsigned>(ceil_div(g.p.weight[0].n, kTileW));
  queue(g, dtype, dim3(across, expert_slots<kTileX>(name, g.experts)), context);
}

}  // namespace qeng
