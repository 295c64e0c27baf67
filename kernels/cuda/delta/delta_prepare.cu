// What the kernels of the gated delta rule need of each chunk and no state changes: norms, sums of g, and the matrices P
// and T (delta.h). A block takes a chunk and a key head, and the value heads that read it one after another. Half of its
// warps have T, which comes of K K^T, the others P, of Q K^T.
#include <algorithm>

#include "kernels/cuda/delta/delta.h"

namespace qeng {
namespace {

constexpr int kRows = kChunk / 16;  // warps of a role, each with 16 rows of the chunk
constexpr int kRoleThreads = kRows * kWarp, kThreads = 2 * kRoleThreads;
constexpr int kStagedDim = 128;  // most dims of rows that come by way of shared memory
constexpr int kPitch = 16 + 8;   // floats of a row of a diagonal block: pairs of four rows lie in different banks

// What lies in shared memory. rows: k and q where they are staged, and in their place, once they are multiplied, A, T and
// A's diagonal blocks in f32.
template <int kParts>
struct Chunk {
  using Tile = Triangle<kParts, kChunk, true>;
  static constexpr int kSolving = 2 * 2 * Tile::kElements + 4 * kChunk * kPitch;
  static constexpr int kRowsBytes = std::max(kSolving, 2 * 2 * kChunk * (kStagedDim + kRowGap));
  static constexpr size_t kBytes = kRowsBytes + 2 * Tile::kElements + sizeof(float) * 4 * kChunk;
  char* rows = shared_memory();
  Tile a{reinterpret_cast<bf16*>(rows)}, t{a.data + Tile::kElements};
  float* diagonal = reinterpret_cast<float*>(t.data + Tile::kElements);  // [kChunk, kPitch]
  Tile p{reinterpret_cast<bf16*>(rows + kRowsBytes)};
  float* sums = reinterpret_cast<float*>(p.data + Tile::kElements);
  float *beta = sums + kChunk, *inverse_q = beta + kChunk, *inverse_k = inverse_q + kChunk;
};

// 1 / sqrt(|x|^2 + eps) of a row, by a warp.
template <class Rows>
__device__ float inverse_norm(const Rows& x, int row, int n, float eps) {
  float squares = 0;
  for (int i = static_cast<int>(threadIdx.x) % kWarp; i < n; i += kWarp) {
    const float each = x.value(row, i);
    squares = fmaf(each, each, squares);
  }
  return 1.0f / sqrtf(warp_sum(squares) + eps);
}

// The same of a staged row, by a thread, whose neighbours' rows lie in other banks.
__device__ inline float inverse_norm(const bf16* row, float eps) {
  float squares[4] = {};
#pragma unroll 4
  for (int i = 0; i < kStagedDim; i += 8) {
    const uint4 eight = *reinterpret_cast<const uint4*>(row + i);
    const uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float low = float_of(pairs[e] << 16), high = float_of(pairs[e] & 0xffff0000u);
      squares[e] = fmaf(high, high, fmaf(low, low, squares[e]));
    }
  }
  return 1.0f / sqrtf(squares[0] + squares[1] + (squares[2] + squares[3]) + eps);
}

// Of a lane's two rows, 2 lane and 2 lane + 1.
struct Gates {
  float g[2], beta[2];
};

// Rows' products with the chunk's keys, up to the diagonal's block of 16.
struct Overlaps {
  Sums16 sums[kRows] = {};
  template <class Rows>
  __device__ void add(const Rows& rows, const Rows& keys, int row, int dim) {
    for (int d = 0; d < dim; d += 16) {
      const auto left = rows.left(row, d);
#pragma unroll
      for (int n = 0; n < kRows; ++n)
        if (16 * n <= row) multiply(sums[n], left, keys.right(16 * n, d));
    }
  }
};

// T's diagonal block, (1 - A)^-1, by columns, one a lane.
template <int kParts>
__device__ inline void invert(const Chunk<kParts>& chunk, int row) {
  const int column = static_cast<int>(threadIdx.x) % kWarp;
  if (column >= 16) return;
  const float* a = chunk.diagonal + row * kPitch;
  float x[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    x[i] = i == column ? 1.0f : 0.0f;
#pragma unroll
    for (int j = 0; j < i; ++j) x[i] = fmaf(a[i * kPitch + j], x[j], x[i]);
    chunk.t.put(row / 16, i, row + column, x[i]);
  }
}

// T's blocks under the diagonal's in a column of blocks, by a warp that no other waits for. As T_ij = T_ii (sum over k of
// A_ik T_kj), T_ij^T is (sum of T_kj^T A_ik^T) T_ii^T, whose operands lie in shared memory or are sums.
template <int kParts>
__device__ inline void solve_column(const Chunk<kParts>& chunk, int column) {
  const int g = static_cast<int>(threadIdx.x) % kWarp / 4, t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll 1
  for (int i = column + 16; i < kChunk; i += 16) {
    Sums16 sums[kParts] = {}, solved[kParts] = {}, before;
#pragma unroll 1
    for (int k = column; k < i; k += 16) multiply(sums, chunk.t.left_down(k, column), chunk.a.right(i, k));
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) before[n][e] = total(sums, n, e);
    multiply(solved, left_of<kParts>(before), chunk.t.right(i, i));
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        chunk.t.put(i / 16, 8 * n + 2 * t + e % 2, column + g + e / 2 * 8, total(solved, n, e));
    __syncwarp();
  }
}

template <int kParts, class T, bool kStaged>
__global__ void __launch_bounds__(kThreads, 2) delta_prepare(const Delta<T> op, const DeltaPrepared out) {
  const int64_t slot = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y), key_head = op.first_head + head;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp % kRows,
            row = warp * 16;
  const bool is_q = thread >= kRoleThreads;
  const DeltaChunk rows = chunk_at(op, slot);
  if (rows.rows == 0) return;
  const Chunk<kParts> chunk;
  RowsOf<T, kStaged> q, k;
  if constexpr (kStaged) {
    k = {reinterpret_cast<bf16*>(chunk.rows), kChunk, kStagedDim}, q = {k.end(), kChunk, kStagedDim};
    fetch_rows<kThreads, kChunk, kStagedDim>(thread, k, op.k(rows.row, key_head), op.columns, op.dim, rows.rows);
    fetch_rows<kThreads, kChunk, kStagedDim>(thread, q, op.q(rows.row, key_head), op.columns, op.dim, rows.rows);
    ptx::cp_async_commit();
  } else {
    k = {op.k(rows.row, key_head), op.columns, rows.rows}, q = {op.q(rows.row, key_head), op.columns, rows.rows};
  }
  const auto gates_of = [&](int value) {
    Gates gates{};
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int64_t at = (rows.row + 2 * lane + e) * op.value_heads + key_head * op.group + value;
      if (2 * lane + e < rows.rows) gates.g[e] = op.g[at], gates.beta[e] = op.beta[at];
    }
    return gates;
  };
  Gates gates = gates_of(0);  // of the value head that comes next
  ptx::cp_async_wait<0>();
  __syncthreads();
  auto own = k;  // of the role
  if (is_q) own.data = q.data;
  float *inverse = is_q ? chunk.inverse_q : chunk.inverse_k,
        *inverse_out = (is_q ? out.inverse_q : out.inverse_k) + (slot * op.heads + head) * kChunk;
  const float scale = is_q ? op.scale : 1.0f;
  if constexpr (kStaged) {
    const int i = thread % kRoleThreads;
    if (i < kChunk) inverse[i] = inverse_out[i] = i < rows.rows ? inverse_norm(own.at(0, i, 0), op.eps) * scale : 0.0f;
  } else {
    for (int i = warp; i < kChunk; i += kRows) {
      const float norm = i < rows.rows ? inverse_norm(own, i, op.dim, op.eps) * scale : 0.0f;  // the same in all lanes
      if (lane == 0) inverse[i] = inverse_out[i] = norm;
    }
  }
  Overlaps overlaps;
  overlaps.add(own, k, row, op.dim);
  for (int value = 0; value < op.group; ++value) {
    const int64_t at = slot * op.launched_value_heads() + head * op.group + value;
    // Sums of g: a lane adds its two rows to those of the lanes before.
    float sum = gates.g[0] + gates.g[1];
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const float before = __shfl_up_sync(kAllLanes, sum, static_cast<unsigned>(distance));
      if (lane >= distance) sum += before;
    }
    const float before = __shfl_up_sync(kAllLanes, sum, 1), last = __shfl_sync(kAllLanes, sum, kWarp - 1);
    if (thread < kWarp) {
      const float first = lane > 0 ? before + gates.g[0] : gates.g[0];
      *reinterpret_cast<float2*>(chunk.sums + 2 * lane) = make_float2(first, sum);
      *reinterpret_cast<float2*>(chunk.beta + 2 * lane) = make_float2(gates.beta[0], gates.beta[1]);
    }
    if (value + 1 < op.group) gates = gates_of(value + 1);
    __syncthreads();                      // and k and q are multiplied, or what was solved before is written
    const int place = ptx::opaque(lane);  // else addresses are kept in registers from head to head
    const auto weigh = [&](auto of_q) {   // A's or P's rows
      constexpr bool kOfQ = decltype(of_q)::value;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int in_band = place / 4 + 8 * half, i = row + in_band;
        const float of_row = kOfQ ? chunk.inverse_q[i] : -chunk.beta[i] * chunk.inverse_k[i], sum_i = chunk.sums[i];
#pragma unroll
        for (int n = 0; n < kRows; ++n) {
          if (n > warp) continue;
#pragma unroll
          for (int tile = 0; tile < 2; ++tile) {
            const int j = 16 * n + 8 * tile + place % 4 * 2;
            const float2 sums = *reinterpret_cast<const float2*>(chunk.sums + j),
                         norms = *reinterpret_cast<const float2*>(chunk.inverse_k + j);
            const float* overlap = overlaps.sums[n][tile] + 2 * half;
            const auto factor = [&](int column, float sum_j, float norm) {
              return column < i + kOfQ ? of_row * norm * decay_of(sum_i - sum_j) : 0.0f;
            };
            const float low = factor(j, sums.x, norms.x) * overlap[0],
                        high = factor(j + 1, sums.y, norms.y) * overlap[1];
            if (kOfQ)
              chunk.p.put(warp, in_band, j, low, high);
            else if (n < warp)
              chunk.a.put(warp, in_band, j, low, high);
            else
              *reinterpret_cast<float2*>(chunk.diagonal + i * kPitch + j - row) = make_float2(low, high);
          }
        }
      }
    };
    constexpr int kElements = ChunkTriangle<kParts>::kElements;
    const int role_thread = thread % kRoleThreads;
    if (is_q) {
      weigh(std::true_type());
    } else {
      weigh(std::false_type());
      __syncwarp();
      invert(chunk, row);
    }
    __syncthreads();
    if (is_q) {
      if (role_thread < kChunk) {
        const float own_sum = chunk.sums[role_thread], beta = chunk.beta[role_thread], decay = expf(own_sum);
        float* vectors = out.vectors + at * kPreparedVectors * kChunk + role_thread;
        vectors[kSums * kChunk] = own_sum;
        vectors[kBeta * kChunk] = beta;
        vectors[kReading * kChunk] = -beta * decay * chunk.inverse_k[role_thread];
        vectors[kWriting * kChunk] = expf(last - own_sum) * chunk.inverse_k[role_thread];
        vectors[kAsking * kChunk] = decay * chunk.inverse_q[role_thread];
      }
      keep_run<kRoleThreads, kElements>(role_thread, out.p + at * kElements, chunk.p.data);
    } else {
      solve_column(chunk, row);
    }
    __syncthreads();
    keep_run<kThreads, kElements>(thread, out.t + at * kElements, chunk.t.data);
  }
}

template <class T>
__global__ void clear_rows(const int32_t* cu, int documents, int64_t rows, int64_t columns, T* out, Fault* fault) {
  if (blockIdx.x == 0)
    for (int i = static_cast<int>(threadIdx.x); i <= documents; i += static_cast<int>(blockDim.x)) {
      const int value = cu[i], before = i > 0 ? cu[i - 1] : 0;
      if (value < before || value > rows || (i == 0 && value != 0)) report(fault, FaultKind::bounds, i, value, rows);
    }
  const int64_t end = cu[documents] < 0 ? 0 : cu[documents];
  for (int64_t i = end * columns + int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < rows * columns;
       i += int64_t{gridDim.x} * blockDim.x)
    put(out + i, 0.0f);
}

}  // namespace

template <int kParts, class T>
DeltaPrepared allocate_prepared(const Delta<T>& op, int64_t slots, CudaContext& context) {
  const int64_t heads = slots * op.heads, value_heads = heads * op.group;
  const int64_t matrix = ChunkTriangle<kParts>::kElements;
  float* vectors = context.scratch.take<float>((2 * heads + kPreparedVectors * value_heads) * kChunk);
  bf16* matrices = context.scratch.take<bf16>(2 * value_heads * matrix);
  return {vectors, vectors + heads * kChunk, vectors + 2 * heads * kChunk, matrices, matrices + value_heads * matrix};
}
template DeltaPrepared allocate_prepared<3>(const Delta<float>&, int64_t, CudaContext&);
template DeltaPrepared allocate_prepared<2>(const Delta<bf16>&, int64_t, CudaContext&);

template <int kParts, class T>
void prepare_delta(const Delta<T>& op, const DeltaPrepared& out, CudaContext& context) {
  const dim3 grid(static_cast<unsigned>(slots_of(op)), static_cast<unsigned>(op.heads));
  if constexpr (std::is_same_v<T, bf16>)
    if (op.dim <= kStagedDim && aligned(op.x, 16))
      return QENG_LAUNCH(context, (delta_prepare<kParts, T, true>), grid, dim3(kThreads), Chunk<kParts>::kBytes, op,
                         out);
  QENG_LAUNCH(context, (delta_prepare<kParts, T, false>), grid, dim3(kThreads), Chunk<kParts>::kBytes, op, out);
}
template void prepare_delta<3>(const Delta<float>&, const DeltaPrepared&, CudaContext&);
template void prepare_delta<2>(const Delta<bf16>&, const DeltaPrepared&, CudaContext&);

template <class T>
void clear_past(const View& cu, const View& out, CudaContext& context) {
  constexpr int64_t kBlocks = 256;  // rows past the last document are few, and most often none
  const int64_t blocks = std::min(kBlocks, ceil_div(out.elements(), 256));
  QENG_LAUNCH(context, clear_rows<T>, dim3(static_cast<unsigned>(blocks)), dim3(256), 0, cu.as<int32_t>(),
              static_cast<int>(cu.elements() - 1), out.rows(), out.columns(), out.as<T>(), context.fault);
}
template void clear_past<float>(const View&, const View&, CudaContext&);
template void clear_past<bf16>(const View&, const View&, CudaContext&);

}  // namespace qeng
