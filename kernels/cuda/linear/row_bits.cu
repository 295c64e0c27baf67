// RowLinear by one_bit weights, for up to kBatchRows rows of x: a bit matrix by the bit planes of x.
//
// A product of tensor cores counts, for 16 rows of the weight and 256 elements, the bits that are set in both; its eight
// columns are the planes of one row of x, whose codes have eight bits. So the weight goes as it lies in memory from there
// into the product, and with bits b of w = 2 b - 1 and planes X_p of codes q
//   sum_k w q = 2 sum_p 2^p sum_k b X_p - sum_k q     (2^7 counts negative)
// The four warps of a block have the same 16 rows and every fourth span; spans are added in the order of row_linear.h.
#include "kernels/cuda/linear/row_end.h"
#include "kernels/cuda/ptx/ptx_int8.h"

namespace qeng {

namespace {

constexpr int kTileRows = 16, kSpanWords = kSpan / 32, kThreads = kSpanSums * kWarp;
constexpr int kAhead = 4;  // spans whose weights are on their way: 2 KB of a warp

// kRows: 1 or kBatchRows. kPairs: words of a row lie at multiples of 8 bytes, two by two.
template <int kRows, bool kPairs>
__global__ void __launch_bounds__(kThreads)
    bit_rows(const __grid_constant__ RowProducts p, const __grid_constant__ RowEnd end) {
  ptx::begin_ahead();
  int64_t j = blockIdx.x;
  int which = 0;
  for (; which + 1 < p.count; ++which) {
    const int64_t tiles = (p.weight[which].n + kTileRows - 1) / kTileRows;
    if (j < tiles) break;
    j -= tiles;
  }
  const RowWeight& weight = p.weight[which];
  j *= kTileRows;
  const int64_t first = int64_t{blockIdx.y} * kRows;
  const int rows = kRows == 1 ? 1 : static_cast<int>(p.rows - first < kRows ? p.rows - first : kRows);
  const int words = static_cast<int>(p.k / 32), whole = words / kSpanWords;
  const int spans = (words + kSpanWords - 1) / kSpanWords;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int g = lane / 4, t = lane % 4;
  // Of the lane in the warp's first span.
  const auto row_of = [&](int64_t row) {
    return static_cast<const uint32_t*>(weight.w) + (row < weight.n ? row : weight.n - 1) * words + warp * kSpanWords +
           2 * t;
  };
  const uint32_t *upper = row_of(j + g), *lower = row_of(j + g + 8);
  const uint32_t* planes =
      reinterpret_cast<const uint32_t*>(p.planes) + ((first * spans + warp) * kPlanes + g) * kSpanWords + 2 * t;
  const int* totals = p.totals + first * spans + warp;
  const float* scales = p.scales + first * (p.k / kScaleStep) + warp * kSpanWords;

  float sum[kRows] = {};  // of row g, or of row g + 8 where t is odd
  const auto two_words = [&](const uint32_t* from) {
    return kPairs ? *reinterpret_cast<const uint2*>(from) : make_uint2(from[0], from[1]);
  };
  // Span `s` after the first of those that the pointers are at.
  const auto add = [&](int s, uint2 of_upper, uint2 of_lower) {
    const uint32_t a[4] = {of_upper.x, of_lower.x, of_upper.y, of_lower.y};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows) break;
      const uint2 two = *reinterpret_cast<const uint2*>(planes + (r * spans + s) * kPlanes * kSpanWords);
      const uint32_t b[2] = {two.x, two.y};
      int counts[4] = {};
      ptx::mma_bits(counts, a, b);
      // Planes 2 t and 2 t + 1, of which 7 has a sign.
      const int sign = t == 3 ? -2 : 2;
      const int up = (counts[0] + sign * counts[1]) << (2 * t), low = (counts[2] + sign * counts[3]) << (2 * t);
      int dot = (t % 2 ? low : up) + __shfl_xor_sync(kAllLanes, t % 2 ? up : low, 1);
      dot += __shfl_xor_sync(kAllLanes, dot, 2);
      dot = 2 * dot - totals[r * spans + s];
      sum[r] = __fadd_rn(sum[r], block_product(1.0f, scales[r * words + s * kSpanWords], dot));
    }
  };
  const auto advance = [&](int by) {
    upper += by * kSpanWords, lower += by * kSpanWords, planes += by * kPlanes * kSpanWords, totals += by;
    scales += by * kSpanWords;
  };
  int span = warp;
  for (; span + (kAhead - 1) * kSpanSums < whole; span += kAhead * kSpanSums) {
    uint2 w[kAhead][2];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      w[u][0] = two_words(upper + u * kSpanSums * kSpanWords);
      w[u][1] = two_words(lower + u * kSpanSums * kSpanWords);
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) add(u * kSpanSums, w[u][0], w[u][1]);
    advance(kAhead * kSpanSums);
  }
  for (; span < spans; span += kSpanSums) {  // of the last, words may be missing
    const int left = words - span * kSpanWords - 2 * t;
    const auto some = [&](const uint32_t* from) { return make_uint2(left > 0 ? from[0] : 0, left > 1 ? from[1] : 0); };
    add(0, some(upper), some(lower));
    advance(kSpanSums);
  }
  auto* sums = reinterpret_cast<float*>(shared_memory());  // [kSpanSums, kRows, kTileRows]
#pragma unroll
  for (int r = 0; r < kRows; ++r)
    if (t < 2) sums[(warp * kRows + r) * kTileRows + g + 8 * t] = sum[r];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < rows * kTileRows; i += kThreads) {
    const int r = i / kTileRows, row = i % kTileRows;
    if (j + row >= weight.n) continue;
    const auto of = [&](int which_sum) { return sums[(which_sum * kRows + r) * kTileRows + row]; };
    finish_row(p, weight, first + r, j + row, __fadd_rn(__fadd_rn(of(0), of(2)), __fadd_rn(of(1), of(3))));
  }
  if (end.kind != EndKind::none)
    end_rows<kThreads>(end, weight.number, j, kTileRows, reinterpret_cast<char*>(sums + kSpanSums * kRows * kTileRows));
}

template <int kRows>
void queue(const RowProducts& p, const RowEnd& end, CudaContext& context) {
  int64_t tiles = 0;
  bool pairs = p.k % 64 == 0;
  for (int i = 0; i < p.count; ++i) {
    tiles += ceil_div(p.weight[i].n, kTileRows);
    pairs = pairs && aligned(p.weight[i].w, 8);
  }
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(ceil_div(p.rows, kRows)));
  launch(Launch::ahead, context, "bit_rows", pairs ? bit_rows<kRows, true> : bit_rows<kRows, false>, grid,
         dim3(kThreads), kSpanSums * kRows * kTileRows * sizeof(float) + kEndBytes, p, end);
}

}  // namespace

void bit_products(const RowProducts& p, const RowEnd& end, CudaContext& context) {
  if (p.rows == 1)
    queue<1>(p, end, context);
  else
    queue<kBatchRows>(p, end, context);
}

}  // namespace qeng
