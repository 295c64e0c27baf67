// Decoding: sequences that have one row more, but for a chunk's first, which goes to paged_delta.cu. A block has a
// value head and reads its state once. A warp multiplies 32 columns of a matrix in memory with the row's key and query:
// of the state, of the keys before it in the chunk, and of the rows of D.
#include "kernels/cuda/delta/delta_pages.h"

namespace qeng {
namespace {

constexpr int kWide = 32;                  // columns of a warp
constexpr int kKeyWarps = kChunk / kWide;  // that have the chunk's keys
constexpr int kMostWarps = 256 / kWide + kKeyWarps;
constexpr int kBatch = 4;  // times 16 rows of a matrix that a warp has under way
constexpr int kFours = 4;  // columns of a thread

// Columns of a thread, from 4 (lane / 4) on, of its four of each 16 rows: 2 t, 2 t + 1, 2 t + 8 and 2 t + 9.
using Batch = float[kBatch][4][kFours];

// Reads the thread's columns of `rows` rows, a multiple of 16, which are `stride` floats apart; zeros where it has none.
template <bool kVectors>
__device__ inline void load(Batch& x, const float* from, int stride, int rows, bool has) {
  from += static_cast<int>(threadIdx.x) % 4 * 2 * stride;
#pragma unroll
  for (int step = 0; step < kBatch; ++step)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float(&to)[kFours] = x[step][i];
      const float* row = from + (16 * step + i / 2 * 8 + i % 2) * stride;
      if (!has || 16 * step >= rows) {
        to[0] = to[1] = to[2] = to[3] = 0;
      } else if constexpr (kVectors) {
        const float4 four = *reinterpret_cast<const float4*>(row);
        to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
      } else {
        for (int c = 0; c < kFours; ++c) to[c] = row[c];
      }
    }
}

// Adds the products of 16 rows with two vectors of parts, [parts, 2, pitch] from the rows' place on. The sums of column
// 4 (lane / 4) + c are sums[.][c / 2][c % 2 * 2] and the next, in the lanes whose t is 0.
template <int kA, int kB, int kRanks>
__device__ inline void multiply_columns(Sums16 (&sums)[kRanks], const float (&x)[4][kFours], const bf16* vectors,
                                        int pitch) {
  const int g = static_cast<int>(threadIdx.x) % kWarp / 4, t = static_cast<int>(threadIdx.x) % 4;
  uint32_t right[kB][2];
#pragma unroll
  for (int part = 0; part < kB; ++part)
#pragma unroll
    for (int i = 0; i < 2; ++i)
      right[part][i] =
          g < 2 ? *reinterpret_cast<const uint32_t*>(vectors + (part * 2 + g) * pitch + 2 * t + 8 * i) : 0u;
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    Parts<kA> left;
#pragma unroll
    for (int i = 0; i < 4; ++i) set(left, i, x[i / 2 * 2][2 * tile + i % 2], x[i / 2 * 2 + 1][2 * tile + i % 2]);
    if (!ptx::multiplies_bf16()) {
      float down[8], across[4];
      numbers_of(left.r, down), numbers_of(right, across);
      multiply_numbers(reinterpret_cast<float(&)[1][4]>(sums[0][tile]), down, across);
      continue;
    }
#pragma unroll
    for (int i = 0; i < kA; ++i)
#pragma unroll
      for (int j = 0; j < kB; ++j)
        if (i + j < kRanks) ptx::mma_bf16(sums[i + j][tile], left.r[i], right[j][0], right[j][1]);
  }
}

// The sum of the thread's own column, lane, with a vector.
template <int kRanks>
__device__ inline float own_sum(const Sums16 (&sums)[kRanks], int vector) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float own = 0;
#pragma unroll
  for (int c = 0; c < kFours; ++c) {
    const float each = __shfl_sync(kAllLanes, total(sums, c / 2, c % 2 * 2 + vector), lane / 4 * 4);
    if (lane % 4 == c) own = each;
  }
  return own;
}

template <class T>
struct Shared {
  static constexpr int kFactors = kChunk + kRowGap;
  int pitch;
  bf16 *raw, *factors;           // [parts, 2, pitch]: k' and q'; [parts, 2, kFactors]: A and P
  float *key, *dots, *inverses;  // [dim], normalised; [2, kChunk]; of k and of q
  __device__ explicit Shared(int dim) : pitch(dim + kRowGap) {
    raw = reinterpret_cast<bf16*>(shared_memory()), factors = raw + kDirect<T> * 2 * pitch;
    key = reinterpret_cast<float*>(factors + kDerived<T> * 2 * kFactors), dots = key + dim,
    inverses = dots + 2 * kChunk;
  }
  static size_t bytes(int dim) {
    return 2 * static_cast<size_t>(kDirect<T> * 2 * (dim + kRowGap) + kDerived<T> * 2 * kFactors) +
           sizeof(float) * static_cast<size_t>(dim + 2 * kChunk + 2);
  }
  __device__ float factor(int which, int j) const { return PartsTile<kDerived<T>>{factors, 2, kChunk}.value(which, j); }
};

// kVectors: rows in pages are whole 16-byte vectors.
template <class T, bool kVectors>
__global__ void __launch_bounds__(kMostWarps* kWarp, 1)
    paged_delta_row(const Delta<T> op, const DeltaPages pages, int32_t* chunks, T* o) {
  constexpr int kParts = kDerived<T>;
  const DeltaSequence sequence(op, pages, static_cast<int>(blockIdx.y));
  if (blockIdx.x == 0 && threadIdx.x == 0) chunks[blockIdx.y] = sequence.chunks();
  if (!sequence.lone()) return;
  const int64_t page = sequence.page(op, pages, sequence.begun), row = sequence.row;
  if (page < 0) return;
  const int value_head = static_cast<int>(blockIdx.x), key_head = value_head / op.group;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const int i = static_cast<int>(sequence.begun % kChunk), warps = static_cast<int>(blockDim.x) / kWarp;
  const DeltaPage kept(op, pages, page, value_head);
  const Shared<T> shared(op.dim);
  const T *k = op.k(row, key_head), *q = op.q(row, key_head);

  // The last warps have the keys, as columns; the others the state.
  const bool has_keys = warp >= warps - kKeyWarps;
  const int first = (has_keys ? warp - (warps - kKeyWarps) : warp) * kWide, four = first + lane / 4 * kFours;
  const float* matrix = (has_keys ? kept.keys : kept.state) + four;
  const int stride = has_keys ? kChunk : op.wide;
  const bool has = has_keys ? four + kFours <= i : four < op.wide;
  Batch x;
  const auto add_own_key = [&](int d) {  // which is not in memory; with those before it of the thread's columns
    if (!has_keys || i < four || i >= four + kFours) return;
#pragma unroll
    for (int step = 0; step < kBatch; ++step)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = d + 16 * step + e / 2 * 8 + lane % 4 * 2 + e % 2;
#pragma unroll
        for (int c = 0; c < kFours; ++c)
          if (r < op.dim && four + c <= i) x[step][e][c] = four + c == i ? shared.key[r] : matrix[r * stride + c];
      }
  };
  load<kVectors>(x, matrix, stride, op.dim, has);  // on its way while norms are computed
  const float beta = op.beta[row * op.value_heads + value_head];
  const float sum = __fadd_rn(kept.sums[i - 1], op.g[row * op.value_heads + value_head]);

  if (warp < 2) {
    const float inverse = inverse_norm(warp == 0 ? k : q, op.dim, op.eps);
    if (lane == 0) shared.inverses[warp] = warp == 0 ? inverse : __fmul_rn(inverse, op.scale);
    if (warp == 0)
      for (int d = lane; d < op.dim; d += kWarp) shared.key[d] = normalised(k[d], inverse);
  }
  for (int pair = thread; pair < op.dim; pair += static_cast<int>(blockDim.x)) {
    const int vector = pair / (op.dim / 2), d = pair % (op.dim / 2) * 2;
    const T* from = vector == 0 ? k : q;
    uint32_t packed[kDirect<T>];
    split(to_f32(from[d]), to_f32(from[d + 1]), packed);
#pragma unroll
    for (int part = 0; part < kDirect<T>; ++part)
      *reinterpret_cast<uint32_t*>(shared.raw + (part * 2 + vector) * shared.pitch + d) = packed[part];
  }
  __syncthreads();
  const float inverse_k = shared.inverses[0], inverse_q = shared.inverses[1];
  Sums16 sums[kParts] = {};
  for (int d = 0; d < op.dim; d += 16 * kBatch) {
    if (d > 0) load<kVectors>(x, matrix + d * stride, stride, op.dim - d, has);
    add_own_key(d);
#pragma unroll
    for (int step = 0; step < kBatch; ++step)
      if (d + 16 * step < op.dim)
        multiply_columns<kParts, kDirect<T>>(sums, x[step], shared.raw + d + 16 * step, shared.pitch);
  }
  const int column = first + lane, own_rows = i / 16 * 16;
  const float with_k = own_sum(sums, 0), with_q = own_sum(sums, 1);
  if (has_keys) {
    shared.dots[column] = with_k, shared.dots[kChunk + column] = with_q;
  } else {
    load<kVectors>(x, kept.deltas + four, op.wide, own_rows, has);
  }
  __syncthreads();
  for (int j = thread; j < kChunk / 2; j += static_cast<int>(blockDim.x)) {
    float a[2] = {}, p[2] = {};
    for (int e = 0; e < 2; ++e) {
      const int other = 2 * j + e;
      if (other > i) continue;
      const float of_other = other < i ? kept.sums[other] : sum;
      p[e] = factor_of(1, sum, of_other, inverse_q, shared.dots[kChunk + other]);
      if (other < i) a[e] = factor_of(-beta, sum, of_other, inverse_k, shared.dots[other]);
    }
    const PartsTile<kParts> factors{shared.factors, 2, kChunk};
    uint32_t of_a[kParts], of_p[kParts];
    split(a[0], a[1], of_a), split(p[0], p[1], of_p);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      *reinterpret_cast<uint32_t*>(factors.at(part, 0, 2 * j)) = of_a[part];
      *reinterpret_cast<uint32_t*>(factors.at(part, 1, 2 * j)) = of_p[part];
    }
  }
  __syncthreads();
  if (thread == 0) kept.sums[i] = sum;
  if (value_head % op.group == 0)
    for (int d = thread; d < op.dim; d += static_cast<int>(blockDim.x)) kept.keys[d * kChunk + i] = shared.key[d];
  if (has_keys) return;

  Sums16 before[kParts] = {};
#pragma unroll
  for (int step = 0; step < kBatch; ++step)
    if (16 * step < own_rows)
      multiply_columns<kParts, kParts>(before, x[step], shared.factors + 16 * step, Shared<T>::kFactors);
  const float of_d = own_sum(before, 0), of_o = own_sum(before, 1);
  if (column >= op.wide) return;
  float delta =
      begin_delta(reading_of(beta, sum, inverse_k), with_k, beta, to_f32(op.v(row, value_head)[column]), of_d);
  float out = begin_out(asking_of(sum, inverse_q), with_q, of_o);
  for (int j = own_rows; j < i; ++j) {
    const float other = kept.deltas[j * op.wide + column];
    delta = fmaf(shared.factor(0, j), other, delta);
    out = fmaf(shared.factor(1, j), other, out);
  }
  out = fmaf(shared.factor(1, i), delta, out);
  kept.deltas[i * op.wide + column] = delta;
  put(o + (row * op.value_heads + value_head) * op.wide + column, out);
}

}  // namespace

template <class T>
void run_paged_row(const Delta<T>& op, const DeltaPages& pages, int32_t* chunks, T* o, CudaContext& context) {
  const int warps = static_cast<int>(ceil_div(op.wide, kWide)) + kKeyWarps;
  const dim3 grid(static_cast<unsigned>(op.value_heads), static_cast<unsigned>(op.documents));
  const dim3 block(static_cast<unsigned>(warps * kWarp));
  if (pages.vectors)
    QENG_LAUNCH(context, (paged_delta_row<T, true>), grid, block, Shared<T>::bytes(op.dim), op, pages, chunks, o);
  else
    QENG_LAUNCH(context, (paged_delta_row<T, false>), grid, block, Shared<T>::bytes(op.dim), op, pages, chunks, o);
}
template void run_paged_row(const Delta<float>&, const DeltaPages&, int32_t*, float*, CudaContext&);
template void run_paged_row(const Delta<bf16>&, const DeltaPages&, int32_t*, bf16*, CudaContext&);

}  // namespace qeng
