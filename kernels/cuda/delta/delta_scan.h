// What the two passes over a document have in common, the forward one (gated_delta.cu) and the backward one
// (delta_scan_grad.cu): a block has a document, a value head and 16 columns, and its warps share the dims of the state
// and the rows of a chunk.
#pragma once
#include "kernels/cuda/delta/delta.h"

namespace qeng {

constexpr int kScanColumns = 16, kScanThreads = 128;
constexpr int kScanWarps = kScanThreads / kWarp;
static_assert(kScanWarps * 16 == kChunk);  // a warp has 16 rows of a chunk

// What passes leave in memory for the gradient, as parts, of each slot and value head and of each 16 columns:
//   states, dstates: [parts, 16, dim], S^T as the chunk began, and the gradient of S^T that it leaves
//   deltas, ddeltas: [parts, 16, kChunk], D^T, and the gradient of beta R, R being what D comes from
struct DeltaStates {
  bf16 *states = nullptr, *deltas = nullptr, *dstates = nullptr, *ddeltas = nullptr;
};

// Fills o, or `kept` where that is not null.
template <class T>
void scan_delta(const Delta<T>& op, const DeltaPrepared& prepared, const DeltaStates* kept, T* o, CudaContext& context);
// The paged form (paged_delta.cu).
template <class T>
void run_paged_delta(const GatedDelta& op, const Delta<T>& delta, CudaContext& context);

// A block's place.
struct ScanBlock {
  int lane, warp, document, column, head, value_head, key_head;
  template <class T>
  __device__ explicit ScanBlock(const Delta<T>& op)
      : lane(static_cast<int>(threadIdx.x) % kWarp),
        warp(static_cast<int>(threadIdx.x) / kWarp),
        document(static_cast<int>(blockIdx.y)),
        column(static_cast<int>(blockIdx.x) % (op.wide / kScanColumns) * kScanColumns),
        head(static_cast<int>(blockIdx.x) / (op.wide / kScanColumns)),
        value_head(op.first_value_head() + head),
        key_head(value_head / op.group) {}
};
template <class T>
dim3 scan_grid(const Delta<T>& op) {
  return dim3(static_cast<unsigned>(op.heads * op.group * (op.wide / kScanColumns)),
              static_cast<unsigned>(op.documents));
}

// Calls f(n, i, row, column) for each sum c[n][i] that the thread holds: the product's rows are columns of the state.
template <class F>
__device__ inline void each_sum(F f) {
  const int g = static_cast<int>(threadIdx.x) % kWarp / 4, t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) f(n, i, g + i / 2 * 8, 8 * n + 2 * t + i % 2);
}

// The warp's share of S^T, or of its gradient: 16 dims of each 64.
template <int kPairs>
struct State {
  Sums16 sums[kPairs] = {};
  __device__ void scale(float factor) {
#pragma unroll
    for (int p = 0; p < kPairs; ++p) each_sum([&](int n, int i, int, int) { sums[p][n][i] *= factor; });
  }
  // Adds left times 16 rows of right.
  template <int kA, class Right>
  __device__ void add(const Parts<kA>& left, const Right& right, int row, int dim, int warp) {
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      const int d = (p * kScanWarps + warp) * 16;
      if (d < dim) multiply(sums[p], left, right.right_down(row, d));
    }
  }
  template <class Tile>
  __device__ void put(const Tile& tile, int dim, int warp) const {
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      const int d = (p * kScanWarps + warp) * 16;
      if (d < dim) tile.put(0, d, sums[p]);
    }
  }
};
template <class T, class F>
void with_pairs(const Delta<T>& op, F f) {
  if (op.dim <= 128)
    f(std::integral_constant<int, 2>());
  else
    f(std::integral_constant<int, 4>());
}

// A block's shared memory.
template <int kParts>
struct ScanShared {
  PartsTile<kParts> state;                        // [16, dim]
  PartsTile<kParts> right_side, delta, weighed;   // [16, kChunk]
  PartsTile<kParts> t, p;                         // [kChunk, kChunk]
  float *sums, *beta, *inverse_q, *inverse_k;     // [kChunk]
  __device__ explicit ScanShared(int dim)
      : state{reinterpret_cast<bf16*>(shared_memory()), kScanColumns, dim},
        right_side{state.end(), kScanColumns, kChunk},
        delta{right_side.end(), kScanColumns, kChunk},
        weighed{delta.end(), kScanColumns, kChunk},
        t{weighed.end(), kChunk, kChunk},
        p{t.end(), kChunk, kChunk},
        sums(reinterpret_cast<float*>(p.end())),
        beta(sums + kChunk),
        inverse_q(beta + kChunk),
        inverse_k(inverse_q + kChunk) {}
  static size_t bytes(int dim) {
    using Tile = PartsTile<kParts>;
    return Tile::bytes(kScanColumns, dim) + 3 * Tile::bytes(kScanColumns, kChunk) + 2 * Tile::bytes(kChunk, kChunk) +
           4 * kChunk * sizeof(float);
  }

  // What was prepared of a slot. The matrices are not waited for.
  template <class T>
  __device__ void fetch(const DeltaPrepared& prepared, const Delta<T>& op, const ScanBlock& block, int64_t slot,
                        int64_t row, int rows) const {
    const int64_t of_key = slot * op.heads + block.head / op.group,
                  of_value = slot * op.launched_value_heads() + block.head;
    t.fetch(prepared.t + of_value * kParts * kChunk * kChunk, kChunk, kChunk, kScanThreads);
    p.fetch(prepared.p + of_value * kParts * kChunk * kChunk, kChunk, kChunk, kScanThreads);
    ptx::cp_async_commit();
    if (const int i = static_cast<int>(threadIdx.x); i < kChunk) {
      sums[i] = prepared.sums[of_value * kChunk + i];
      beta[i] = i < rows ? op.beta[(row + i) * op.value_heads + block.value_head] : 0.0f;
      inverse_q[i] = prepared.inverse_q[of_key * kChunk + i];
      inverse_k[i] = prepared.inverse_k[of_key * kChunk + i];
    }
  }
};

}  // namespace qeng
