// What the kernels of the gated delta rule need of each chunk and no state changes: norms, sums of g, and the matrices P
// and T (delta.h). A block takes a chunk and a key head, and the value heads that read it one after another.
#include "kernels/cuda/delta/delta.h"

namespace qeng {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kPitch = kChunk + 4;  // floats of a row in shared memory
constexpr int kSolved = 16;         // rows of the triangular system that a thread holds in registers

constexpr int kStagedDim = 128;  // most dims of rows that come by way of shared memory

// What lies in shared memory.
struct Chunk {
  float *overlaps, *scores;  // K K^T and Q K^T: [row, column]
  float *a, *t;              // a: [column, row]   t: [row, column]. Before them the staged rows of k and q lie there.
  float *inverse_q, *inverse_k, *sums, *beta;
};
static_assert(2 * (kStagedDim + kRowGap) <= 4 * kPitch);
constexpr size_t kShared = sizeof(float) * (4 * kChunk * kPitch + 4 * kChunk);
__device__ Chunk shared_chunk() {
  float* memory = reinterpret_cast<float*>(shared_memory());
  constexpr int kMatrix = kChunk * kPitch;
  float* vectors = memory + 4 * kMatrix;
  return {memory,  memory + kMatrix, memory + 2 * kMatrix, memory + 3 * kMatrix,
          vectors, vectors + kChunk, vectors + 2 * kChunk, vectors + 3 * kChunk};
}

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
#pragma unroll
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

// overlaps and scores up to the diagonal's blocks of 16; a warp has 16 rows.
template <class Rows>
__device__ void multiply_rows(const Rows& q, const Rows& k, int dim, const Chunk& chunk) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, row = static_cast<int>(threadIdx.x) / kWarp * 16;
  Sums16 of_k[kChunk / 16] = {}, of_q[kChunk / 16] = {};
  for (int d = 0; d < dim; d += 16) {
    const auto left_k = k.left(row, d), left_q = q.left(row, d);
#pragma unroll
    for (int n = 0; n < kChunk / 16; ++n) {
      if (16 * n > row) continue;
      const auto right = k.right(16 * n, d);
      multiply(of_k[n], left_k, right);
      multiply(of_q[n], left_q, right);
    }
  }
#pragma unroll
  for (int n = 0; n < kChunk / 16; ++n)
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int i = row + lane / 4 + e / 2 % 2 * 8, j = 16 * n + e / 4 * 8 + lane % 4 * 2 + e % 2;
      if (16 * n > row) continue;
      chunk.overlaps[i * kPitch + j] = of_k[n][e / 4][e % 4] * chunk.inverse_k[i] * chunk.inverse_k[j];
      chunk.scores[i * kPitch + j] = of_q[n][e / 4][e % 4] * chunk.inverse_q[i] * chunk.inverse_k[j];
    }
}

// Adds a's rows first .. first + kSolved - 1 of a column, times `before`, to x from its element `from` on.
__device__ inline void add_column(const float* a, int column, int first, int from, float before, float (&x)[kSolved]) {
#pragma unroll
  for (int i = 0; i < kSolved; i += 4) {
    if (i + 3 < from) continue;
    const float4 four = *reinterpret_cast<const float4*>(a + column * kPitch + first + i);
    if (i >= from) x[i] = fmaf(four.x, before, x[i]);
    if (i + 1 >= from) x[i + 1] = fmaf(four.y, before, x[i + 1]);
    if (i + 2 >= from) x[i + 2] = fmaf(four.z, before, x[i + 2]);
    if (i + 3 >= from) x[i + 3] = fmaf(four.w, before, x[i + 3]);
  }
}

// t = (1 - a)^-1 by columns, one a thread: row i of t is that of 1 plus the rows before it times a's row i.
__device__ void invert(const float* a, float* t) {
  const int column = static_cast<int>(threadIdx.x);
  if (column >= kChunk) return;
  for (int first = 0; first < kChunk; first += kSolved) {
    float x[kSolved];
#pragma unroll
    for (int i = 0; i < kSolved; ++i) x[i] = first + i == column ? 1.0f : 0.0f;
    for (int j = column / kSolved * kSolved; j < first; ++j)  // t is 0 above
      add_column(a, j, first, 0, t[j * kPitch + column], x);
#pragma unroll
    for (int j = 0; j < kSolved; ++j) {
      t[(first + j) * kPitch + column] = x[j];
      add_column(a, first + j, first, j + 1, x[j], x);
    }
  }
}

template <class T, bool kStaged>
__global__ void __launch_bounds__(kThreads, 3) delta_prepare(const Delta<T> op, const DeltaPrepared out) {
  const int64_t slot = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y), key_head = op.first_head + head;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  const DeltaChunk rows = chunk_at(op, slot);
  if (rows.rows == 0) return;
  const Chunk chunk = shared_chunk();
  RowsOf<T, kStaged> q, k;
  if constexpr (kStaged) {
    k = {reinterpret_cast<bf16*>(chunk.a), kChunk, kStagedDim}, q = {k.end(), kChunk, kStagedDim};
    fetch_rows<kThreads, kChunk, kStagedDim>(thread, k, op.k(rows.row, key_head), op.columns, op.dim, rows.rows);
    fetch_rows<kThreads, kChunk, kStagedDim>(thread, q, op.q(rows.row, key_head), op.columns, op.dim, rows.rows);
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    __syncthreads();
  } else {
    k = {op.k(rows.row, key_head), op.columns, rows.rows}, q = {op.q(rows.row, key_head), op.columns, rows.rows};
  }
  const auto keep = [&](int i, float of_q, float of_k) {
    const int64_t at = (slot * op.heads + head) * kChunk + i;
    chunk.inverse_q[i] = out.inverse_q[at] = of_q;
    chunk.inverse_k[i] = out.inverse_k[at] = of_k;
  };
  if constexpr (kStaged) {
    static_assert(kThreads >= kChunk);
    if (thread < kChunk) {
      const bool real = thread < rows.rows;
      keep(thread, real ? inverse_norm(q.at(0, thread, 0), op.eps) * op.scale : 0.0f,
           real ? inverse_norm(k.at(0, thread, 0), op.eps) : 0.0f);
    }
  } else {
    for (int i = thread / kWarp; i < kChunk; i += kWarps) {
      const bool real = i < rows.rows;  // the same in all lanes
      const float of_q = real ? inverse_norm(q, i, op.dim, op.eps) * op.scale : 0.0f;
      const float of_k = real ? inverse_norm(k, i, op.dim, op.eps) : 0.0f;
      if (lane == 0) keep(i, of_q, of_k);
    }
  }
  __syncthreads();
  multiply_rows(q, k, op.dim, chunk);
  for (int value = 0; value < op.group; ++value) {
    const int64_t at = slot * op.launched_value_heads() + head * op.group + value;
    const int value_head = key_head * op.group + value;
    __syncthreads();
    if (thread < kWarp) {  // sums of g: a lane adds its two rows to those of the lanes before
      const auto of_row = [&](const float* x, int i) {
        return i < rows.rows ? x[(rows.row + i) * op.value_heads + value_head] : 0.0f;
      };
      const float first = of_row(op.g, 2 * lane), second = first + of_row(op.g, 2 * lane + 1);
      float sum = second;
      for (int distance = 1; distance < kWarp; distance *= 2) {
        const float before = __shfl_up_sync(kAllLanes, sum, static_cast<unsigned>(distance));
        if (lane >= distance) sum += before;
      }
      const float before = __shfl_up_sync(kAllLanes, sum, 1);
      chunk.sums[2 * lane] = lane > 0 ? before + first : first;
      chunk.sums[2 * lane + 1] = sum;
      const float last = __shfl_sync(kAllLanes, sum, kWarp - 1);
      float* vectors = out.vectors + at * kPreparedVectors * kChunk;
      for (int i = 2 * lane; i < 2 * lane + 2; ++i) {
        const float own = chunk.sums[i], beta = chunk.beta[i] = of_row(op.beta, i), decay = expf(own);
        vectors[kSums * kChunk + i] = own;
        vectors[kBeta * kChunk + i] = beta;
        vectors[kReading * kChunk + i] = -beta * decay * chunk.inverse_k[i];
        vectors[kWriting * kChunk + i] = expf(last - own) * chunk.inverse_k[i];
        vectors[kAsking * kChunk + i] = decay * chunk.inverse_q[i];
      }
    }
    __syncthreads();
    bf16* p = out.p + at * kDerived<T> * kChunk * kChunk;
    for (int pair = thread; pair < kChunk * kChunk / 2; pair += kThreads) {
      const int i = pair / (kChunk / 2), j = pair % (kChunk / 2) * 2;
      if (j / kSolved > i / kSolved) continue;
      float of_p[2] = {};
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int place = i * kPitch + j + e;
        const float decay = j + e <= i ? expf(chunk.sums[i] - chunk.sums[j + e]) : 0.0f;
        if (j + e <= i) of_p[e] = decay * chunk.scores[place];
        chunk.a[(j + e) * kPitch + i] = j + e < i ? -chunk.beta[i] * decay * chunk.overlaps[place] : 0.0f;
      }
      put_pair<kDerived<T>>(p, i, j, of_p[0], of_p[1]);
    }
    __syncthreads();
    invert(chunk.a, chunk.t);
    __syncthreads();
    bf16* t = out.t + at * kDerived<T> * kChunk * kChunk;
    for (int pair = thread; pair < kChunk * kChunk / 2; pair += kThreads) {
      const int i = pair / (kChunk / 2), j = pair % (kChunk / 2) * 2;
      if (j / kSolved > i / kSolved) continue;  // nobody reads these, nor p's
      put_pair<kDerived<T>>(t, i, j, chunk.t[i * kPitch + j], chunk.t[i * kPitch + j + 1]);
    }
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

template <class T>
DeltaPrepared allocate_prepared(const Delta<T>& op, int64_t slots, CudaContext& context) {
  const int64_t heads = slots * op.heads, value_heads = heads * op.group;
  const int64_t matrix = kDerived<T> * kChunk * kChunk;
  float* vectors = context.scratch.take<float>((2 * heads + kPreparedVectors * value_heads) * kChunk);
  bf16* matrices = context.scratch.take<bf16>(2 * value_heads * matrix);
  return {vectors, vectors + heads * kChunk, vectors + 2 * heads * kChunk, matrices, matrices + value_heads * matrix};
}
template DeltaPrepared allocate_prepared(const Delta<float>&, int64_t, CudaContext&);
template DeltaPrepared allocate_prepared(const Delta<bf16>&, int64_t, CudaContext&);

template <class T>
void prepare_delta(const Delta<T>& op, const DeltaPrepared& out, CudaContext& context) {
  const dim3 grid(static_cast<unsigned>(slots_of(op)), static_cast<unsigned>(op.heads));
  if constexpr (std::is_same_v<T, bf16>)
    if (op.dim <= kStagedDim && aligned(op.x, 16))
      return QENG_LAUNCH(context, (delta_prepare<T, true>), grid, dim3(kThreads), kShared, op, out);
  QENG_LAUNCH(context, (delta_prepare<T, false>), grid, dim3(kThreads), kShared, op, out);
}
template void prepare_delta(const Delta<float>&, const DeltaPrepared&, CudaContext&);
template void prepare_delta(const Delta<bf16>&, const DeltaPrepared&, CudaContext&);

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
