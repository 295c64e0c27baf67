// The matrix product that always works: any size, stride, alignment and transposition, sums in f32 in order of k.
// cuBLASLt is many times faster in bf16; this is for what it refuses (odd alignments), and for the emulator.
#include "kernels/cuda/linear/gemm.h"

namespace qeng {

namespace {

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

// Where thread t puts and finds its u-th element of a tile [kTile, kDepth], so that a warp reads along the steps of 1.
struct Place {
  int row, depth;
  __device__ Place(const Side& side, int u) {
    const int t = static_cast<int>(threadIdx.x) + u * kThreads;
    row = side.k_step == 1 ? t / kDepth : t % kTile;
    depth = side.k_step == 1 ? t % kDepth : t / kTile;
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

__device__ void keep(const Side& side, const float (&values)[kLoads], float* tile) {
  for (int u = 0; u < kLoads; ++u) {
    const Place place(side, u);
    tile[place.depth * kRow + place.row] = values[u];
  }
}

struct Result {
  void* c;
  const void* bias;  // or null
  bool bias_f32, acc;
  float alpha;
  int64_t ldc;
};

// c[row, column .. column + count) from the sums over k.
template <class Out>
__device__ void write(const Result& result, int64_t row, int64_t column, int count, const float (&sum)[kSide]) {
  Out* c = static_cast<Out*>(result.c) + row * result.ldc + column;
  for (int j = 0; j < kSide; ++j) {
    if (j < count) {
      float value = result.alpha * sum[j];
      if (result.bias) value += read_float(result.bias, result.bias_f32, column + j);
      if (result.acc) value += to_f32(c[j]);
      put(c + j, value);
    }
  }
}

// The block's tile of c, by number blockIdx.x.
template <class In, class Out>
__device__ void make_tile(const Side& a, const Side& b, int64_t k, const Result& result) {
  float *tile_a = reinterpret_cast<float*>(shared_memory()), *tile_b = tile_a + kDepth * kRow;
  const int64_t tiles_n = (b.rows + kTile - 1) / kTile;
  const int64_t first_m = int64_t{blockIdx.x} / tiles_n * kTile, first_n = int64_t{blockIdx.x} % tiles_n * kTile;
  const int i0 = static_cast<int>(threadIdx.x) / (kTile / kSide) * kSide,
            j0 = static_cast<int>(threadIdx.x) % (kTile / kSide) * kSide;

  float sum[kSide][kSide] = {};
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
      for (int s = 0; s < kSide; ++s) x[s] = tile_a[d * kRow + i0 + s], y[s] = tile_b[d * kRow + j0 + s];
      for (int i = 0; i < kSide; ++i)
        for (int j = 0; j < kSide; ++j) sum[i][j] += x[i] * y[j];
    }
    __syncthreads();
  }

  const int columns = static_cast<int>(b.rows - first_n - j0 < kSide ? b.rows - first_n - j0 : kSide);
#pragma unroll
  for (int i = 0; i < kSide; ++i) {
    const int64_t row = first_m + i0 + i;
    if (row < a.rows) write<Out>(result, row, first_n + j0, columns, sum[i]);
  }
}

template <class In, class Out>
__global__ void __launch_bounds__(kThreads) simt(Side a, Side b, int64_t k, Result result) {
  make_tile<In, Out>(a, b, k, result);
}

template <class In>
__global__ void __launch_bounds__(kThreads)
    simt_batched(Side a, Side b, int64_t k, Result result, const __grid_constant__ GemmBatch batch) {
  const int64_t i = int64_t{blockIdx.z} * gridDim.y + blockIdx.y;
  if (i >= batch.count) return;
  const GemmBatch::Dimension at = batch.place(i);
  a.data = static_cast<const In*>(a.data) + at.a, b.data = static_cast<const In*>(b.data) + at.b;
  result.c = static_cast<In*>(result.c) + at.c;
  make_tile<In, In>(a, b, k, result);
}

}  // namespace

void gemm_simt(const CudaGemm& gemm, CudaContext& context, const GemmBatch* batch) {
  const Side a{gemm.a, gemm.m, gemm.trans_a ? 1 : gemm.lda, gemm.trans_a ? gemm.lda : 1};
  const Side b{gemm.b, gemm.n, gemm.trans_b ? gemm.ldb : 1, gemm.trans_b ? 1 : gemm.ldb};
  const Result result{gemm.c, gemm.bias, gemm.bias_type == DType::f32, gemm.acc, gemm.alpha, gemm.ldc};
  const int64_t tiles = ceil_div(gemm.m, kTile) * ceil_div(gemm.n, kTile);
  if (tiles > INT32_MAX) fail("unsupported", "matmul: ", gemm_text(gemm), ": more tiles than one launch takes");
  for_gemm_types(gemm, [&](auto* in, auto* out) {
    if (batch) {
      const int64_t y = std::min<int64_t>(batch->count, 32768), z = ceil_div(batch->count, y);
      const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(y), static_cast<unsigned>(z));
      QENG_LAUNCH(context, simt_batched<std::remove_pointer_t<decltype(in)>>, grid, dim3(kThreads), kShared, a, b,
                  gemm.k, result, *batch);
      return;
    }
    QENG_LAUNCH(context, (simt<std::remove_pointer_t<decltype(in)>, std::remove_pointer_t<decltype(out)>>),
                dim3(static_cast<unsigned>(tiles)), dim3(kThreads), kShared, a, b, gemm.k, result);
  });
}

}  // namespace qeng
