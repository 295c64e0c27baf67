// The matrix product that always works. cuBLASLt is many times faster in bf16; this is for what it refuses (odd
// alignments), and for the emulator.
#include <algorithm>

#include "kernels/cuda/linear/cublaslt.h"
#include "kernels/cuda/linear/simt_tile.h"
#include "kernels/error.h"

namespace qeng {

namespace {

using namespace simt_tile;

// The block's tile of c, by number blockIdx.x.
template <class In, class Out>
__device__ void make_tile(const Side& a, const Side& b, int64_t k, const GemmResult& result) {
  const int64_t tiles_n = (b.rows + kTile - 1) / kTile;
  const int64_t first_m = int64_t{blockIdx.x} / tiles_n * kTile, first_n = int64_t{blockIdx.x} % tiles_n * kTile;
  float sum[kSide][kSide] = {};
  multiply<In>(a, b, first_m, first_n, k, sum);
  write_part<Out>(result, a.rows, b.rows, first_m, first_n, sum);
}

template <class In, class Out>
__global__ void __launch_bounds__(kThreads) simt(Side a, Side b, int64_t k, GemmResult result) {
  make_tile<In, Out>(a, b, k, result);
}

template <class In>
__global__ void __launch_bounds__(kThreads)
    simt_batched(Side a, Side b, int64_t k, GemmResult result, const __grid_constant__ GemmBatch batch) {
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
  const GemmResult result = result_of(gemm);
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
