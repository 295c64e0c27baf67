// GatedDeltaGrad. When both passes have left a chunk's states and rows in memory, the gradients of its q, k, g and beta
// are apart from the other chunks'. In the words of delta.h, dR being the gradient of beta R:
//   dQ = e^{sum} dO S^T + (dO D^T c) K
//   dK = beta Z + e^{last - sum} D dS^T + (dO D^T c)^T Q - (beta dR D^T c)^T K,  Z = -(e^{sum} dR S^T + (dR D^T c) K)
//   dbeta_i = <dR_i, v_i> + <k_i, Z_i>
// k is there for what a row reads (beta Z) and for what it writes (the others). A row's sum of g multiplies what it
// reads and divides what it writes, so that its gradient is <q, dq> + <k, beta z> - <k, the others>; the last row's has
// also what the state that the chunk leaves owes to it.
#include "kernels/cuda/delta/delta_grad.h"

namespace qeng {
namespace {

constexpr int kRoles = 3, kRoleWarps = kChunk / 16;
constexpr int kThreads = kRoles * kRoleWarps * kWarp;
template <class T>
constexpr int kDims = std::is_same_v<T, float> ? 64 : 128;  // of a block: parts of f32 take more registers

// By slot and value head, for each tile of kDims: the gradients of the sums of g and of beta; and of all dims those
// of the normalised q and k.
struct DeltaGradients {
  float *dsums, *dbeta;  // [tiles, slots, value heads, kChunk]
  float *dq, *dk;        // [slots, value heads, kChunk, dim]
  int64_t slots;
};

template <class T>
struct Shared {
  static constexpr int kParts = kDerived<T>, kDoutParts = kDirect<T>, kColumns = kDims<T>;
  static constexpr int kRowPitch = kColumns + 4;  // floats
  static constexpr int kPairs = kParts * kChunk * (kChunk + kRowGap);  // elements of a matrix of pairs of rows
  PartsTile<kParts> state, dstate;   // [16, dims]
  PartsTile<kParts> delta, ddelta;   // [16, kChunk]
  PartsTile<kDoutParts> dout;        // [16, kChunk]
  float* rows;                       // in the tiles' place: [kChunk, kRowPitch]
  float *sums, *beta, *inverse_q, *inverse_k, *of_q, *of_read, *of_state, *of_write, *of_v, *products;
  __device__ Shared()
      : state{reinterpret_cast<bf16*>(shared_memory()), kScanColumns, kColumns},
        dstate{state.end(), kScanColumns, kColumns},
        delta{dstate.end(), kScanColumns, kChunk},
        ddelta{delta.end(), kScanColumns, kChunk},
        dout{ddelta.end(), kScanColumns, kChunk},
        rows(reinterpret_cast<float*>(shared_memory())) {
    sums = reinterpret_cast<float*>(shared_memory() + kTiles), beta = sums + kChunk;
    inverse_q = beta + kChunk, inverse_k = inverse_q + kChunk;
    of_q = inverse_k + kChunk, of_read = of_q + kChunk, of_state = of_read + kChunk, of_write = of_state + kChunk;
    of_v = of_write + kChunk, products = of_v + 2 * kChunk;
  }
  // The tiles, or what then lies in their place.
  static constexpr int kBytes =
      2 * kScanColumns * (2 * kParts * (kColumns + kRowGap) + (2 * kParts + kDoutParts) * (kChunk + kRowGap));
  static constexpr int kTiles = std::max({kBytes, 4 * kChunk * kRowPitch, 4 * kPairs});
  static constexpr size_t bytes() { return kTiles + sizeof(float) * (10 * kChunk + kRoleWarps * kWarp); }
};

// A warp's 16 rows of a matrix [kChunk, dims].
template <int kColumns>
struct RowSums {
  Sums16 sums[kColumns / 16] = {};
  template <int kParts, class Right>
  __device__ void add(const Parts<kParts>& left, const Right& right, int row, int first, int dims) {
#pragma unroll
    for (int n = 0; n < kColumns / 16; ++n)
      if (16 * n < dims) multiply(sums[n], left, right.right_down(row, first + 16 * n));
  }
  // Calls f(sum, row, dim) for each.
  template <class F>
  __device__ void each(int dims, F f) {
#pragma unroll
    for (int n = 0; n < kColumns / 16; ++n)
      if (16 * n < dims) each_sum([&](int tile, int i, int row, int column) { f(sums[n][tile][i], row, 16 * n + column); });
  }
  // The rows' products with rows of x from `row` on, times the rows' factors.
  template <class T>
  __device__ void dots(const MemoryRows<T>& x, int row, int first, int dims, const float* factors, float* to) {
    float total[2] = {};
#pragma unroll
    for (int n = 0; n < kColumns / 16; ++n)
      if (16 * n < dims)
        each_sum([&](int tile, int e, int i, int d) {
          total[e / 2] = fmaf(sums[n][tile][e], x.value(row + i, first + 16 * n + d), total[e / 2]);
        });
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      total[half] += __shfl_xor_sync(kAllLanes, total[half], 1);
      total[half] += __shfl_xor_sync(kAllLanes, total[half], 2);
      const int i = row + lane / 4 + 8 * half;
      if (lane % 4 == 0) to[i] = factors[i] * total[half];
    }
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    delta_rows_grad(const Delta<T> op, const DeltaPrepared prepared, const DeltaStates kept, const T* dout,
                    const DeltaGradients out) {
  constexpr int kParts = kDerived<T>;
  const int64_t slot = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y), value_head = op.first_value_head() + head;
  const int key_head = value_head / op.group, first = static_cast<int>(blockIdx.z) * kDims<T>;
  const int dims = min(kDims<T>, op.dim - first);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp % kRoleWarps, role = thread / kWarp / kRoleWarps;
  const DeltaChunk chunk = chunk_at(op, slot);
  if (chunk.rows == 0) return;
  const int64_t at = slot * op.launched_value_heads() + head, of_key = slot * op.heads + head / op.group;
  const Shared<T> shared;
  if (thread < kChunk) {
    const float* vectors = prepared.vectors + at * kPreparedVectors * kChunk;
    shared.sums[thread] = vectors[kSums * kChunk + thread];
    shared.beta[thread] = vectors[kBeta * kChunk + thread];
    shared.inverse_q[thread] = prepared.inverse_q[of_key * kChunk + thread];
    shared.inverse_k[thread] = prepared.inverse_k[of_key * kChunk + thread];
  }
  const MemoryRows<T> q{op.q(chunk.row, key_head), op.columns, chunk.rows},
      k{op.k(chunk.row, key_head), op.columns, chunk.rows};
  const int64_t stride = int64_t{op.value_heads} * op.wide;

  // Sums over columns: of dO, dR or D as the role's rows, with S, S or dS, and of the first two with D.
  RowSums<kDims<T>> sums;
  Sums16 with_rows[kChunk / 16] = {};
  float of_v = 0, product = 0;
  const int row = warp * 16;
  for (int column = 0; column < op.wide; column += kScanColumns) {
    const int64_t place = (at * op.wide + column) * kParts;
    __syncthreads();
    shared.state.fetch(kept.states + place * op.dim + first, op.dim, dims, kThreads);
    shared.dstate.fetch(kept.dstates + place * op.dim + first, op.dim, dims, kThreads);
    shared.delta.fetch(kept.deltas + place * kChunk, kChunk, kChunk, kThreads);
    shared.ddelta.fetch(kept.ddeltas + place * kChunk, kChunk, kChunk, kThreads);
    ptx::cp_async_commit();
    put_columns<kThreads>(shared.dout, dout + chunk.row * stride + value_head * op.wide + column, stride, chunk.rows);
    ptx::cp_async_wait<0>();
    __syncthreads();
    if (role == 0) {
      const auto left = shared.dout.left_down(0, row);
      sums.add(left, shared.state, 0, 0, dims);
#pragma unroll
      for (int n = 0; n < kChunk / 16; ++n)
        if (n <= warp) multiply(with_rows[n], left, shared.delta.right_down(0, 16 * n));
      for (int i = thread; i < kScanColumns * dims; i += kRoleWarps * kWarp)
        product = fmaf(shared.state.value(i / dims, i % dims), shared.dstate.value(i / dims, i % dims), product);
    } else if (role == 1) {
      const auto left = shared.ddelta.left_down(0, row);
      sums.add(left, shared.state, 0, 0, dims);
#pragma unroll
      for (int n = 0; n < kChunk / 16; ++n)
        if (n <= warp) multiply(with_rows[n], left, shared.delta.right_down(0, 16 * n));
      const int i = thread % kChunk, half = thread / kChunk % 2 * (kScanColumns / 2);
      if (first == 0 && i < chunk.rows)
        for (int c = half; c < half + kScanColumns / 2; ++c)
          of_v = fmaf(shared.ddelta.value(c, i), to_f32(op.v(chunk.row + i, value_head)[column + c]), of_v);
    } else {
      sums.add(shared.delta.left_down(0, row), shared.dstate, 0, 0, dims);
    }
  }
  __syncthreads();

  // And those over the chunk's rows. The first roles leave the last one its left operands in the tiles' place.
  const float last = shared.sums[kChunk - 1], sign = role == 0 ? 1.0f : -1.0f;
  const auto pairs = [&](int r) { return PartsTile<kParts>{shared.state.data + r * shared.kPairs, kChunk, kChunk}; };
  if (role < 2) {
#pragma unroll
    for (int n = 0; n < kChunk / 16; ++n) {
      if (n > warp) continue;
      Sums16 for_last;
      each_sum([&](int tile, int e, int down, int column) {
        const int i = row + down, j = 16 * n + column;
        float& x = with_rows[n][tile][e];
        x = j < i + (role == 0) ? sign * expf(shared.sums[i] - shared.sums[j]) * x : 0.0f;
        for_last[tile][e] = x * (role == 0 ? shared.inverse_q[i] : shared.beta[i] * shared.inverse_k[i]);
        x *= shared.inverse_k[j];
      });
      pairs(role).put(row, 16 * n, for_last);
    }
    sums.each(dims, [&](float& sum, int i, int) { sum *= sign * expf(shared.sums[row + i]); });
  } else {
    sums.each(dims, [&](float& sum, int j, int) { sum *= expf(last - shared.sums[row + j]); });
    sums.dots(k, row, first, dims, shared.inverse_k, shared.of_state);
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < kChunk / 16; ++n) {
    if (role < 2 && n <= warp) sums.add(left_of<kParts>(with_rows[n]), k, 16 * n, first, dims);
    if (role == 2 && n >= warp) {
      sums.add(pairs(0).left_down(16 * n, row), q, 16 * n, first, dims);
      sums.add(pairs(1).left_down(16 * n, row), k, 16 * n, first, dims);
    }
  }
  const MemoryRows<T> own{role == 0 ? q.data : k.data, op.columns, chunk.rows};
  sums.dots(own, row, first, dims, role == 0 ? shared.inverse_q : shared.inverse_k,
            role == 0 ? shared.of_q : role == 1 ? shared.of_read : shared.of_write);
  if (role == 0) shared.products[thread] = product;
  if (role == 1) shared.of_v[thread % (2 * kChunk)] = of_v;
  __syncthreads();

  // k's two halves meet in the tiles' place.
  if (role == 0)
    sums.each(dims, [&](float& sum, int i, int d) { out.dq[(at * kChunk + row + i) * op.dim + first + d] = sum; });
  if (role == 1)
    sums.each(dims, [&](float& sum, int i, int d) { shared.rows[(row + i) * shared.kRowPitch + d] = shared.beta[row + i] * sum; });
  __syncthreads();
  if (role == 2)
    sums.each(dims, [&](float& sum, int i, int d) {
      out.dk[(at * kChunk + row + i) * op.dim + first + d] = sum + shared.rows[(row + i) * shared.kRowPitch + d];
    });
  if (thread < kChunk) {
    const int64_t to = (blockIdx.z * out.slots * op.launched_value_heads() + at) * kChunk + thread;
    float dsum = shared.of_q[thread] + shared.beta[thread] * shared.of_read[thread] - shared.of_write[thread];
    if (thread == chunk.rows - 1) {
      float leaving = 0, of_states = 0;
      for (int i = 0; i < kRoleWarps * kWarp; ++i) of_states += shared.products[i];
      for (int j = 0; j < kChunk; ++j) leaving += shared.of_state[j];
      dsum += leaving + expf(last) * of_states;
    }
    out.dsums[to] = dsum;
    out.dbeta[to] = shared.of_v[thread] + shared.of_v[kChunk + thread] + shared.of_read[thread];
  }
}

// The gradients of x from those of normalised rows, over the value heads that read them, and of g and beta.
constexpr int kFinishThreads = 256;
template <class T>
__global__ void __launch_bounds__(kFinishThreads)
    delta_finish_grad(const Delta<T> op, const DeltaPrepared prepared, const DeltaGradients from, T* dx, float* dg,
                      float* dbeta) {
  const int64_t slot = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y), key_head = op.first_head + head;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const DeltaChunk chunk = chunk_at(op, slot);
  const int64_t first = slot * op.launched_value_heads() + head * op.group, of_key = (slot * op.heads + head) * kChunk;
  for (int i = warp; i < 2 * chunk.rows; i += kFinishThreads / kWarp) {
    const bool is_q = i < chunk.rows;
    const int row = is_q ? i : i - chunk.rows;
    const T* x = is_q ? op.q(chunk.row + row, key_head) : op.k(chunk.row + row, key_head);
    const float inverse = (is_q ? prepared.inverse_q : prepared.inverse_k)[of_key + row];
    constexpr int kOwn = 256 / kWarp;  // dims of a lane
    float dy[kOwn], along = 0;
#pragma unroll
    for (int u = 0; u < kOwn; ++u) {
      const int d = lane + u * kWarp;
      dy[u] = 0;
      if (d >= op.dim) continue;
#pragma unroll 1
      for (int value = 0; value < op.group; ++value)
        dy[u] += (is_q ? from.dq : from.dk)[((first + value) * kChunk + row) * op.dim + d];
      along = fmaf(inverse * to_f32(x[d]), dy[u], along);
    }
    along = warp_sum(along) * (is_q ? static_cast<float>(op.dim) : 1.0f);  // over the factor of y, squared
#pragma unroll
    for (int u = 0; u < kOwn; ++u) {
      const int d = lane + u * kWarp;
      if (d < op.dim) put(dx + (x - op.x) + d, inverse * (dy[u] - inverse * to_f32(x[d]) * along));
    }
  }
  const int64_t tile = from.slots * op.launched_value_heads() * kChunk;
  for (int value = warp; value < op.group && chunk.rows > 0; value += kFinishThreads / kWarp) {
    const int64_t at = (first + value) * kChunk;
    const auto of_row = [&](const float* x, int i) {
      if (i >= chunk.rows) return 0.0f;
      float sum = 0;
#pragma unroll 1
      for (int d = 0; d < op.dim; d += kDims<T>) sum += x[at + i + d / kDims<T> * tile];
      return sum;
    };
    // g of a row is in the sums from that row on: a lane adds its two rows to those of the lanes after.
    const float second = of_row(from.dsums, 2 * lane + 1), both = of_row(from.dsums, 2 * lane) + second;
    float sum = both;
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const float after = __shfl_down_sync(kAllLanes, sum, static_cast<unsigned>(distance));
      if (lane + distance < kWarp) sum += after;
    }
    const float after = __shfl_down_sync(kAllLanes, sum, 1);
    for (int i = 2 * lane; i < 2 * lane + 2 && i < chunk.rows; ++i) {
      const int64_t to = (chunk.row + i) * op.value_heads + key_head * op.group + value;
      dg[to] = i % 2 == 0 ? sum : second + (lane + 1 < kWarp ? after : 0.0f);
      dbeta[to] = of_row(from.dbeta, i);
    }
  }
}

// Scratch memory for as many heads as fit in it, at least one: 230 KB for a chunk of a value head of 128 by 128.
constexpr int64_t kMostScratch = int64_t{1} << 30;

template <class T>
void run_grad(const GatedDeltaGrad& op, CudaContext& context) {
  Delta<T> delta = delta_operands<T>(op, context);
  constexpr int64_t kParts = kDerived<T>;
  const int64_t slots = slots_of(delta), tiles = ceil_div(delta.dim, kDims<T>), dim = delta.dim, wide = delta.wide;
  const int64_t part_elements = 2 * wide * (dim + kChunk), floats = 2 * kChunk * (dim + tiles);
  const int64_t of_head =
      slots * delta.group * (kParts * part_elements * int64_t{sizeof(bf16)} + floats * int64_t{sizeof(float)});
  const int64_t heads = std::clamp<int64_t>(kMostScratch / std::max<int64_t>(of_head, 1), 1, delta.key_heads);
  const int64_t units = slots * heads * delta.group;
  bf16* parts = context.scratch.take<bf16>(std::max<int64_t>(units, 1) * kParts * part_elements);
  float* rows = context.scratch.take<float>(std::max<int64_t>(units, 1) * floats);
  DeltaStates kept;
  kept.states = parts, kept.dstates = kept.states + units * kParts * wide * dim;
  kept.deltas = kept.dstates + units * kParts * wide * dim, kept.ddeltas = kept.deltas + units * kParts * wide * kChunk;
  DeltaGradients gradients;
  gradients.dq = rows, gradients.dk = rows + units * kChunk * dim, gradients.dsums = gradients.dk + units * kChunk * dim;
  gradients.dbeta = gradients.dsums + units * kChunk * tiles, gradients.slots = slots;
  delta.heads = static_cast<int>(heads);
  const DeltaPrepared prepared = allocate_prepared(delta, context);
  for (int first = 0; first < delta.key_heads; first += static_cast<int>(heads)) {
    delta.first_head = first, delta.heads = std::min(static_cast<int>(heads), delta.key_heads - first);
    prepare_delta(delta, prepared, context);
    scan_delta<T>(delta, prepared, &kept, nullptr, context);
    scan_delta_grad(delta, prepared, kept, op.dout.as<T>(), op.dx.as<T>(), context);
    QENG_LAUNCH(context, delta_rows_grad<T>,
                dim3(static_cast<unsigned>(slots), static_cast<unsigned>(delta.heads * delta.group),
                     static_cast<unsigned>(tiles)),
                dim3(kThreads), Shared<T>::bytes(), delta, prepared,
                kept, op.dout.as<T>(), gradients);
    QENG_LAUNCH(context, delta_finish_grad<T>,
                dim3(static_cast<unsigned>(slots), static_cast<unsigned>(delta.heads)), dim3(kFinishThreads), 0, delta,
                prepared, gradients, op.dx.as<T>(), op.dg.as<float>(), op.dbeta.as<float>());
  }
  clear_past<T>(op.cu, op.dx, context);
  clear_past<float>(op.cu, op.dg, context);
  clear_past<float>(op.cu, op.dbeta, context);
}

}  // namespace

void run(const GatedDeltaGrad& op, CudaContext& context) {
  for_float(op.x, [&](auto* type) { run_grad<std::remove_pointer_t<decltype(type)>>(op, context); });
}

}  // namespace qeng
