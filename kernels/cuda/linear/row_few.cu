// RowLinear, and GroupedMatmul apart, by f16 weights and few rows of x, which is a matter of memory: of a tile of y
// each warp takes every fourth stage of 64 k, from a ring of its own that no other warp waits for. After four stages
// their sums meet in shared memory and are added in the order of k, which gives the bits of row_mma.cu.
#include "kernels/cuda/attention/attention_mma.h"
#include "kernels/cuda/linear/row_halves.h"

namespace qeng {

namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp;
constexpr int kWeights = 32, kHigh = kWeights / 16, kAcross = kFewRows / 8;  // products of a warp: kHigh by kAcross
constexpr int kStages = 4;  // of a warp's ring: 48 KB of a block are on their way, where an H200 wants 36 a microsecond
using Weights = SharedTile<kTensorDepth, kWeights>;
constexpr int kRing = kStages * Weights::kBytes, kPart = kWeights * kFewRows * 4, kPitch = sum_pitch(kWeights);
constexpr int kPartsAt = kWarps * kRing;
constexpr size_t kShared = kPartsAt + 2 * kWarps * kPart;  // the parts of a round, and of the one before
static_assert(kFewRows * kPitch * 4 <= kPartsAt && kShared <= 99 * 1024, "the least of the GPUs that have mma");

// What a lane copies of stages of a weight: 16 bytes of every fourth row. Of rows that there are none it copies the
// last, whose sums nobody wants.
struct Copies {
  const f16* from;
  int64_t below;  // of the next of the lane's rows
  int chunk, row, left;

  __device__ Copies(const RowTile& tile, int64_t k)
      : below(4 * k), chunk(static_cast<int>(threadIdx.x) % 8), row(static_cast<int>(threadIdx.x) % kWarp / 8) {
    const int64_t rows = tile.weight.n - tile.first_j;
    const int first = row < rows ? row : static_cast<int>(rows) - 1;
    left = static_cast<int>(rows < kWeights ? rows : kWeights) - first;
    from = static_cast<const f16*>(tile.weight.w) + (tile.first_j + first) * k + chunk * 8;
  }
  // Columns k .. k + 64, of which `columns` are there.
  __device__ void start(char* tile, int64_t k, int64_t columns) const {
    const bool real = chunk * 8 < columns;
    const f16* const here = real ? from + k : from;
#pragma unroll
    for (int r = 0; r < kWeights; r += 4)
      ptx::cp_async_16(tile + Weights::offset(row + r, chunk), r < left ? here + r / 4 * below : here, real ? 16 : 0);
  }
};

template <class X, class Products>
__global__ void __launch_bounds__(kThreads, 2)
    row_few_kernel(const __grid_constant__ Products products, int64_t across) {
  if (!ptx::from_sm80()) return;
  ptx::begin_ahead();
  const RowProducts& p = products_of(products);
  if (blockIdx.x == 0) check_rows(products);
  const RowTile tile = RowTiles<kWeights, kFewRows>::tile(products, across, blockIdx.x);
  if (tile.rows == 0) return;
  if (tile.unclaimed) return clear_tile<kWeights, kThreads>(p, tile, static_cast<int>(threadIdx.x));
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int g = lane / 4, t = lane % 4;
  char *const shared = shared_memory(), *const ring = shared + warp * kRing;
  float4* const parts = reinterpret_cast<float4*>(shared + kPartsAt);

  const Copies copies(tile, p.k);
  const auto fetch = [&](int64_t k, int stage) {
    if (k < p.k) copies.start(ring + stage * Weights::kBytes, k, p.k - k);
    ptx::cp_async_commit();
  };
  const X* rows[kAcross];  // the lane's of x: 8 e + g, or the last
#pragma unroll
  for (int e = 0; e < kAcross; ++e) {
    const int row = 8 * e + g < tile.rows ? 8 * e + g : tile.rows - 1;
    rows[e] = static_cast<const X*>(p.x) + (tile.first_row + row) * p.k + 2 * t;
  }
  Pack<X, 2> ahead[kAcross][kTensorDepth / 16][2];  // of x, for the next stage
  const auto load_rows = [&](int d, int64_t k) {
    const int columns = k < p.k ? static_cast<int>(p.k - k < kTensorDepth ? p.k - k : kTensorDepth) : 0;
#pragma unroll
    for (int e = 0; e < kAcross; ++e)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        ahead[e][d][half] = 16 * d + 8 * half < columns ? load<2>(rows[e] + k + 16 * d + 8 * half) : Pack<X, 2>{};
  };

  constexpr int64_t kRound = kWarps * kTensorDepth;
  int64_t k = warp * kTensorDepth;
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) fetch(k + stage * kRound, stage);
#pragma unroll
  for (int d = 0; d < kTensorDepth / 16; ++d) load_rows(d, k);
  const int lane_w = lane_offset<Weights>();
  float sums[4] = {};  // of 16 rows of the weight and 8 of x: fragment `warp` of the tile's
  int stage = 0, turn = 0;
  static_assert(kHigh * kAcross == kWarps);
  for (int64_t round = 0; round < p.k; round += kRound, k += kRound, turn ^= 1) {
    ptx::cp_async_wait<kStages - 2>();
    __syncwarp();  // this stage is there, and no lane needs the one before
    fetch(k + (kStages - 1) * kRound, stage == 0 ? kStages - 1 : stage - 1);
    const char* w = ring + stage * Weights::kBytes;
    stage = stage + 1 == kStages ? 0 : stage + 1;
    float part[kHigh][kAcross][4] = {};
    if (k < p.k) {
#pragma unroll
      for (int d = 0; d < kTensorDepth / 16; ++d) {
        float left[kHigh][2][4];
        Right<X> right[kAcross];
#pragma unroll
        for (int i = 0; i < kHigh; ++i) load_halves(left[i], w + Weights::moved(lane_w, 16 * i, 2 * d));
#pragma unroll
        for (int e = 0; e < kAcross; ++e) right[e].take(0, ahead[e][d][0]), right[e].take(1, ahead[e][d][1]);
        load_rows(d, k + kRound);
#pragma unroll
        for (int e = 0; e < kAcross; ++e) add_halves(left, right[e], [&](int i) -> float(&)[4] { return part[i][e]; });
      }
    }
    float4* const of_round = parts + turn * kWarps * (kPart / 16);
#pragma unroll
    for (int i = 0; i < kHigh; ++i)
#pragma unroll
      for (int e = 0; e < kAcross; ++e)
        of_round[(warp * kWarps + i * kAcross + e) * kWarp + lane] =
            make_float4(part[i][e][0], part[i][e][1], part[i][e][2], part[i][e][3]);
    __syncthreads();
#pragma unroll
    for (int of = 0; of < kWarps; ++of) {
      const float4 each = of_round[(of * kWarps + warp) * kWarp + lane];
      sums[0] = __fadd_rn(sums[0], each.x), sums[1] = __fadd_rn(sums[1], each.y);
      sums[2] = __fadd_rn(sums[2], each.z), sums[3] = __fadd_rn(sums[3], each.w);
    }
  }
  ptx::cp_async_wait<0>();
  __syncthreads();  // the rings have been read by all, and nothing arrives any more
  float* const to = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    to[(warp % kAcross * 8 + 2 * t + i % 2) * kPitch + warp / kAcross * 16 + g + i / 2 * 8] = sums[i];
  __syncthreads();
  write_sums<kWeights, kThreads>(p, tile, to, kPitch, 0, kFewRows, tile.first_j, static_cast<int>(threadIdx.x));
}

template <class Products>
void queue(const char* name, const Products& products, CudaContext& context) {
  using Tiles = RowTiles<kWeights, kFewRows>;
  const dim3 grid(static_cast<unsigned>(Tiles::count(name, products)));
  const auto launch_for = [&](auto* x) {
    QENG_LAUNCH_AHEAD(context, (row_few_kernel<std::remove_pointer_t<decltype(x)>, Products>), grid, dim3(kThreads),
                      kShared, products, Tiles::across(products));
  };
  if (products_of(products).x_f32)
    launch_for(static_cast<float*>(nullptr));
  else
    launch_for(static_cast<bf16*>(nullptr));
}

}  // namespace

void row_few(const char* name, const RowProducts& p, CudaContext& context) { queue(name, p, context); }
void row_few(const char* name, const GroupedProducts& g, CudaContext& context) { queue(name, g, context); }

}  // namespace qeng
