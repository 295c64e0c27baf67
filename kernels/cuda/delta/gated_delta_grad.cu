// GatedDeltaGrad. When both passes have left a chunk's states and rows in memory, the gradients of its q, k, g and beta
// are apart from the other chunks'. In the words of delta.h, dR being the gradient of beta R:
//   dQ = e^{sum} dO S^T + (dO D^T c) K
//   dK = beta Z + e^{last - sum} D dS^T + (dO D^T c)^T Q - (beta dR D^T c)^T K,  Z = -(e^{sum} dR S^T + (dR D^T c) K)
//   dbeta_i = <dR_i, v_i> + <k_i, Z_i>
// k is there for what a row reads (beta Z) and for what it writes (the others). A row's sum of g multiplies what it
// reads and divides what it writes, so that its gradient is <q, dq> + <k, beta z> - <k, the others>; the last row's has
// also what the state that the chunk leaves owes to it.
#include <algorithm>

#include "kernels/cuda/delta/delta_grad.h"
#include "kernels/cuda/delta/delta_wgmma.h"

namespace qeng {
namespace {

constexpr int kRoles = 3, kRoleWarps = kChunk / 16, kRoleThreads = kRoleWarps * kWarp;
constexpr int kThreads = kRoles * kRoleThreads;

constexpr int kStagedDims = 128, kDirectDims = 64;  // of a block

// How the kernel of rows is compiled. kStaged: dO, v, q and k come by way of shared memory, of which GPUs before sm_80
// have too little; else they are read where they lie, which takes registers. kWgmma: products by Hopper's own
// instructions, for which right operands lie in panels.
template <class Type, bool kStages, bool kHopper>
struct RowsForm {
  using T = Type;
  static constexpr bool kStaged = kStages, kWgmma = kHopper;
  static constexpr int kParts = kDerived<T>, kDims = kStaged ? kStagedDims : kDirectDims;
  static constexpr int kTiles = kWgmma ? 2 : 1, kStageColumns = kTiles * kScanColumns;  // that come together
  template <int kNumberParts>
  using Tile = std::conditional_t<kWgmma, PanelTile<kNumberParts>, PartsTile<kNumberParts>>;
};

// 16 columns of what the passes left, and of dO and v.
template <class Form>
struct ColumnTiles {
  using T = typename Form::T;
  using Tile = typename Form::template Tile<Form::kParts>;
  using Rows = RowsOf<T, Form::kStaged>;
  static constexpr int kState = Tile::elements(kScanColumns, Form::kDims), kRows = Tile::elements(kScanColumns, kChunk);
  static constexpr int kValues = Form::kStaged ? kChunk * (kScanColumns + kRowGap) : 0;
  static constexpr int kBytes = 2 * (2 * kState + 2 * kRows + 2 * kValues);
  Tile state, dstate;  // [16, dims]
  Tile delta, ddelta;  // [16, kChunk]
  Rows dout, v;        // [kChunk, 16]

  // From the addresses of dO and v on, whose rows are so far apart.
  __device__ ColumnTiles(char* memory, const T* of_dout, int64_t dout_stride, const T* of_v, int64_t v_stride,
                         int rows) {
    bf16* next = reinterpret_cast<bf16*>(memory);
    state = {next, kScanColumns, Form::kDims}, dstate = {next + kState, kScanColumns, Form::kDims}, next += 2 * kState;
    delta = {next, kScanColumns, kChunk}, ddelta = {next + kRows, kScanColumns, kChunk}, next += 2 * kRows;
    if constexpr (Form::kStaged)
      dout = {next, kChunk, kScanColumns}, v = {next + kValues, kChunk, kScanColumns};
    else
      dout = {of_dout, dout_stride, rows}, v = {of_v, v_stride, rows};
  }
};

// What a block has in shared memory besides one or two stages of them.
template <class Form>
struct Shared {
  using Tiles = ColumnTiles<Form>;
  using Pairs = PartsTile<Form::kParts>;             // a matrix of pairs of rows
  static constexpr int kRowPitch = Form::kDims + 8;  // floats: pairs of four rows lie in different banks
  static constexpr int kPairs = Pairs::elements(kChunk, kChunk);
  static constexpr int kOperand = Form::kStaged ? Form::template Tile<1>::elements(kChunk, Form::kDims) : 0;
  // Stages, or what then lies in their place.
  static constexpr int kLater = std::max(4 * kChunk * kRowPitch, 4 * kPairs);
  static constexpr int kStage = Form::kTiles * Tiles::kBytes;
  static constexpr int kOneStage = std::max(kStage, kLater), kTwoStages = std::max(2 * kStage, kLater);
  static_assert(!Form::kWgmma || (Tiles::kBytes % 1024 == 0 && kLater % 1024 == 0));
  static constexpr size_t bytes(int stages) {
    return (stages == 2 ? kTwoStages : kOneStage) + 4 * kOperand + sizeof(float) * (10 * kChunk + kRoleWarps);
  }
  bf16* operands;  // k and q: [kChunk, dims]
  float *sums, *beta, *inverse_q, *inverse_k, *of_q, *of_read, *of_state, *of_write, *of_v, *products;
  __device__ explicit Shared(int stages)
      : operands(reinterpret_cast<bf16*>(shared_memory() + (stages == 2 ? kTwoStages : kOneStage))) {
    sums = reinterpret_cast<float*>(operands + 2 * kOperand), beta = sums + kChunk;
    inverse_q = beta + kChunk, inverse_k = inverse_q + kChunk;
    of_q = inverse_k + kChunk, of_read = of_q + kChunk, of_state = of_read + kChunk, of_write = of_state + kChunk;
    of_v = of_write + kChunk, products = of_v + 2 * kChunk;
  }
  __device__ Pairs pairs(int role) const {
    return {reinterpret_cast<bf16*>(shared_memory()) + role * kPairs, kChunk, kChunk};
  }
  __device__ float* row(int i) const { return reinterpret_cast<float*>(shared_memory()) + i * kRowPitch; }
};

// A warp's 16 rows of a matrix [kChunk, kColumns].
template <int kColumns>
struct RowSums {
  Sums16 sums[kColumns / 16] = {};
  // Adds left times 16 rows of right, up to so many columns; by wgmma all of them, by and by.
  template <int kA, class Right>
  __device__ void add(const Parts<kA>& left, const Right& right, int row, int columns) {
#pragma unroll
    for (int n = 0; n < kColumns / 16; ++n)
      if (16 * n < columns) multiply(sums[n], left, right.right_down(row, 16 * n));
  }
  template <int kA, int kB>
  __device__ void add(const Parts<kA>& left, const PanelTile<kB>& right, int row, int) {
    multiply_panels(reinterpret_cast<float(&)[kColumns / 2]>(sums), left, right, row);
  }
  // Calls f(two neighbouring sums, which 8 of the rows they are of, row, the first's column).
  template <class F>
  __device__ void each(int columns, F f) {
#pragma unroll
    for (int n = 0; n < kColumns / 16; ++n)
      if (16 * n < columns)
#pragma unroll
        for (int tile = 0; tile < 2; ++tile)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int lane = ptx::thread_anew() % kWarp;
            f(sums[n][tile] + 2 * half, half, lane / 4 + 8 * half, 16 * n + 8 * tile + lane % 4 * 2);
          }
  }
  // The rows' products with rows of x from `row` on, times the rows' factors.
  template <class Rows>
  __device__ void dots(const Rows& x, int row, int columns, const float* factors, float* to) {
    float total[2] = {};
    each(columns, [&](const float* sum, int half, int i, int d) {
      const float2 pair = x.pair(row + 8 * half, i - 8 * half, d);
      total[half] = fmaf(sum[1], pair.y, fmaf(sum[0], pair.x, total[half]));
    });
    const int lane = ptx::thread_anew() % kWarp;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      total[half] += __shfl_xor_sync(kAllLanes, total[half], 1);
      total[half] += __shfl_xor_sync(kAllLanes, total[half], 2);
      const int i = row + lane / 4 + 8 * half;
      if (lane % 4 == 0) to[i] = factors[i] * total[half];
    }
  }
};

// A value head's, added to those of its key head's others before it. q and k may still be on their way to shared memory,
// which is left to all threads.
template <class Form, class T>
__device__ inline void add_value_head(const Delta<T>& op, const DeltaPrepared& prepared, const DeltaStates& kept,
                                      const T* dout, const DeltaGradients& out, int stages, const DeltaChunk& chunk,
                                      int value) {
  using Tiles = ColumnTiles<Form>;
  using Wgmma = Products<Form::kWgmma>;
  constexpr int kParts = Form::kParts, kDims = Form::kDims;
  constexpr bool kStaged = Form::kStaged;
  const int64_t slot = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y) * op.group + value, value_head = op.first_value_head() + head;
  const int first = static_cast<int>(blockIdx.z) * kDims, dims = min(kDims, op.dim - first);
  // In a form that shows the compiler that a warp agrees on the role.
  const int thread = ptx::thread_anew(), warp = thread / kWarp % kRoleWarps,
            role = __shfl_sync(kAllLanes, thread / kRoleThreads, 0);
  const int64_t at = slot * op.launched_value_heads() + head, of_key = slot * op.heads + blockIdx.y;
  const int64_t stride = int64_t{op.value_heads} * op.wide;
  const T *of_dout = dout + chunk.row * stride + value_head * op.wide, *of_v = op.v(chunk.row, value_head);
  const Shared<Form> shared(stages);
  std::conditional_t<kStaged, typename Form::template Tile<1>, MemoryRows<T>> q, k;
  if constexpr (kStaged) {
    k = {shared.operands, kChunk, kDims}, q = {shared.operands + Shared<Form>::kOperand, kChunk, kDims};
  } else {
    const int key_head = value_head / op.group;
    k = {op.k(chunk.row, key_head) + first, op.columns, chunk.rows},
    q = {op.q(chunk.row, key_head) + first, op.columns, chunk.rows};
  }
  if (thread < kChunk) {
    const float* vectors = prepared.vectors + at * kPreparedVectors * kChunk;
    shared.sums[thread] = vectors[kSums * kChunk + thread];
    shared.beta[thread] = vectors[kBeta * kChunk + thread];
    shared.inverse_q[thread] = prepared.inverse_q[of_key * kChunk + thread];
    shared.inverse_k[thread] = prepared.inverse_k[of_key * kChunk + thread];
  }
  const auto tiles_of = [&](int column) {
    return Tiles(shared_memory() + (column / kScanColumns & (Form::kTiles * stages - 1)) * Tiles::kBytes,
                 of_dout + column, stride, of_v + column, op.columns, chunk.rows);
  };
  const auto fetch = [&](int stage) {
    for (int column = stage * Form::kStageColumns; column < min((stage + 1) * Form::kStageColumns, op.wide);
         column += kScanColumns) {
      const int64_t place = (at * op.wide + column) * kParts;
      const Tiles tiles = tiles_of(column);
      const int own = ptx::opaque(thread);
      tiles.state.template fetch<kThreads, kScanColumns, kDims>(own, kept.states + place * op.dim + first, op.dim,
                                                                dims);
      tiles.dstate.template fetch<kThreads, kScanColumns, kDims>(own, kept.dstates + place * op.dim + first, op.dim,
                                                                 dims);
      tiles.delta.template fetch<kThreads, kScanColumns, kChunk>(own, kept.deltas + place * kChunk, kChunk, kChunk);
      tiles.ddelta.template fetch<kThreads, kScanColumns, kChunk>(own, kept.ddeltas + place * kChunk, kChunk, kChunk);
      if constexpr (kStaged) {
        fetch_rows<kThreads, kChunk, kScanColumns>(own, tiles.dout, of_dout + column, stride, kScanColumns, chunk.rows);
        fetch_rows<kThreads, kChunk, kScanColumns>(own, tiles.v, of_v + column, op.columns, kScanColumns, chunk.rows);
      }
    }
    ptx::cp_async_commit();
  };

  // Sums over columns: of dO, dR or D as the role's rows, with S, S or dS, and of the first two with D.
  RowSums<kDims> sums;
  RowSums<kChunk> with_rows;
  float with_v = 0, product = 0;
  const int row = warp * 16, role_thread = thread % kRoleThreads;
  const auto with_deltas = [&](auto& left, const Tiles& tiles) {
    Wgmma::start(sums.sums, with_rows.sums, left.r);
    sums.add(left, tiles.state, 0, dims);
    with_rows.add(left, tiles.delta, 0, row + 16);
    Wgmma::commit();
  };
  const auto add_tiles = [&](const Tiles& tiles) {
    if (role == 0) {
      auto left = tiles.dout.left(row, 0);
      with_deltas(left, tiles);
#pragma unroll
      for (int i = 0; i < kScanColumns * kDims / 8; i += kRoleThreads) {
        const int c = (i + role_thread) / (kDims / 8), d = (i + role_thread) % (kDims / 8) * 8;
        if (d >= dims) continue;
        float state[8], dstate[8];
        tiles.state.eight(c, d, state), tiles.dstate.eight(c, d, dstate);
#pragma unroll
        for (int e = 0; e < 8; ++e) product = fmaf(state[e], dstate[e], product);
      }
      Wgmma::wait(sums.sums, with_rows.sums);
    } else if (role == 1) {
      auto left = tiles.ddelta.left_down(0, row);
      with_deltas(left, tiles);
      Wgmma::wait(sums.sums, with_rows.sums);
    } else {
      auto left = tiles.delta.left_down(0, row);
      Wgmma::start(sums.sums, left.r);
      sums.add(left, tiles.dstate, 0, dims);
      Wgmma::commit();
      const int i = role_thread % kChunk, half = role_thread / kChunk * (kScanColumns / 2);
      if (first == 0 && i < chunk.rows) {
        float v[kScanColumns / 2];
        tiles.v.eight(i, half, v);
#pragma unroll
        for (int c = 0; c < kScanColumns / 2; ++c) with_v = fmaf(tiles.ddelta.value(half + c, i), v[c], with_v);
      }
      Wgmma::wait(sums.sums);
    }
  };
  for (int stage = 0; stage < stages; ++stage) fetch(stage);
  for (int stage = 0; stage * Form::kStageColumns < op.wide; ++stage) {
    wait_stage(stages);
    Wgmma::show_stores();
    __syncthreads();
    for (int i = 0; i < Form::kTiles; ++i)
      if (const int column = stage * Form::kStageColumns + i * kScanColumns; column < op.wide)
        add_tiles(tiles_of(column));
    __syncthreads();
    fetch(stage + stages);
  }
  ptx::cp_async_wait<0>();

  // And those over the chunk's rows. The first roles leave the last one its left operands in the tiles' place.
  const float last = shared.sums[kChunk - 1], sign = role == 0 ? 1.0f : -1.0f;
  const int lane = thread % kWarp;
  const float own_sums[2] = {shared.sums[row + lane / 4], shared.sums[row + lane / 4 + 8]};  // of the thread's rows
  if (role < 2) {
#pragma unroll
    for (int n = 0; n < kChunk / 16; ++n) {
      if (n > warp) continue;
      Sums16 for_last;
      each_sum([&](int tile, int e, int down, int column) {
        const int i = row + down, j = 16 * n + column;
        float& x = with_rows.sums[n][tile][e];
        x = j < i + (role == 0) ? sign * decay_of(own_sums[e / 2] - shared.sums[j]) * x : 0.0f;
        for_last[tile][e] = x * (role == 0 ? shared.inverse_q[i] : shared.beta[i] * shared.inverse_k[i]);
        x *= shared.inverse_k[j];
      });
      shared.pairs(role).put(row, 16 * n, for_last);
    }
  }
  const float factors[2] = {role < 2 ? sign * decay_of(own_sums[0]) : decay_of(last - own_sums[0]),
                            role < 2 ? sign * decay_of(own_sums[1]) : decay_of(last - own_sums[1])};
  sums.each(dims, [&](float* sum, int half, int, int) { sum[0] *= factors[half], sum[1] *= factors[half]; });
  if (role == 2) sums.dots(k, row, dims, shared.inverse_k, shared.of_state);
  __syncthreads();
  const auto add_rows = [&](auto left, const auto& right, int n) {
    Wgmma::start(sums.sums, left.r);
    sums.add(left, right, 16 * n, dims);
    Wgmma::commit();
    Wgmma::wait(sums.sums);
  };
#pragma unroll
  for (int n = 0; n < kChunk / 16; ++n) {
    const bool real = role == 2 ? n >= warp : n <= warp;  // else products are 0, which wgmma adds
    if (!Form::kWgmma && !real) continue;
    if (role < 2) {
      add_rows(real ? left_of<kParts>(with_rows.sums[n]) : Parts<kParts>{}, k, n);
    } else {
      add_rows(real ? shared.pairs(0).left_down(16 * n, row) : Parts<kParts>{}, q, n);
      add_rows(real ? shared.pairs(1).left_down(16 * n, row) : Parts<kParts>{}, k, n);
    }
  }
  auto own = k;
  if (role == 0) own.data = q.data;
  sums.dots(own, row, dims, role == 0 ? shared.inverse_q : shared.inverse_k,
            role == 0   ? shared.of_q
            : role == 1 ? shared.of_read
                        : shared.of_write);
  product = warp_sum(product);
  if (role == 0 && thread % kWarp == 0) shared.products[warp] = product;
  if (role == 2) shared.of_v[role_thread] = with_v;
  __syncthreads();

  // k's two halves meet in the tiles' place.
  const auto keep = [](float* to, float low, float high) { *reinterpret_cast<float2*>(to) = make_float2(low, high); };
  const auto add = [&](float* to, int i, int d, float low, float high) {
    to += (of_key * kChunk + row + i) * op.dim + first + d;
    if (value > 0) {
      const float2 before = *reinterpret_cast<const float2*>(to);
      low += before.x, high += before.y;
    }
    keep(to, low, high);
  };
  if (role == 0) sums.each(dims, [&](const float* sum, int, int i, int d) { add(out.dq, i, d, sum[0], sum[1]); });
  if (role == 1)
    sums.each(dims, [&](const float* sum, int, int i, int d) {
      keep(shared.row(row + i) + d, shared.beta[row + i] * sum[0], shared.beta[row + i] * sum[1]);
    });
  __syncthreads();
  if (role == 2)
    sums.each(dims, [&](const float* sum, int, int i, int d) {
      const float2 read = *reinterpret_cast<const float2*>(shared.row(row + i) + d);
      add(out.dk, i, d, sum[0] + read.x, sum[1] + read.y);
    });
  if (thread >= kChunk) return;
  const float leaving = warp_sum(shared.of_state[thread % kWarp] + shared.of_state[thread % kWarp + kWarp]);
  float dsum = shared.of_q[thread] + shared.beta[thread] * shared.of_read[thread] - shared.of_write[thread];
  if (thread == chunk.rows - 1) {
    float of_states = 0;
    for (int i = 0; i < kRoleWarps; ++i) of_states += shared.products[i];
    dsum += leaving + expf(last) * of_states;
  }
  const int64_t to = (blockIdx.z * out.slots * op.launched_value_heads() + at) * kChunk + thread;
  out.dsums[to] = dsum;
  out.dbeta[to] = shared.of_v[thread] + shared.of_v[kChunk + thread] + shared.of_read[thread];
}

// All value heads of a key head, or one of each, where operands are read as they lie: in a loop their addresses would be
// kept from head to head, and spilled.
template <class Form, class T>
__global__ void __launch_bounds__(kThreads, 1)
    delta_rows_grad(const Delta<T> op, const DeltaPrepared prepared, const DeltaStates kept, const T* dout,
                    const DeltaGradients out, int stages, int value) {
  if (Form::kStaged && !ptx::from_sm80()) return;
  const DeltaChunk chunk = chunk_at(op, blockIdx.x);
  if (chunk.rows == 0) return;
  if constexpr (Form::kStaged) {
    constexpr int kDims = Form::kDims;
    const int key_head = op.first_head + static_cast<int>(blockIdx.y), first = static_cast<int>(blockIdx.z) * kDims;
    const int dims = min(kDims, op.dim - first), thread = static_cast<int>(threadIdx.x);
    typename Form::template Tile<1> k{Shared<Form>(stages).operands, kChunk, kDims}, q = k;
    q.data += Shared<Form>::kOperand;
    fetch_rows<kThreads, kChunk, kDims>(thread, k, op.k(chunk.row, key_head) + first, op.columns, dims, chunk.rows);
    fetch_rows<kThreads, kChunk, kDims>(thread, q, op.q(chunk.row, key_head) + first, op.columns, dims, chunk.rows);
#pragma unroll 1
    for (value = 0; value < op.group; ++value) {
      if (value > 0) __syncthreads();
      add_value_head<Form>(op, prepared, kept, dout, out, stages, chunk, value);
    }
  } else {
    add_value_head<Form>(op, prepared, kept, dout, out, stages, chunk, value);
  }
}

// Scratch memory for as many heads as fit in it, at least one: 230 KB for a chunk of a value head of 128 by 128. A gigabyte,
// or more of a device that has much: heads one after another leave multiprocessors idle.
int64_t most_scratch(const CudaContext& context) {
  return std::max(int64_t{1} << 30, static_cast<int64_t>(context.memory / 32));
}

template <class T>
void run_grad(const GatedDeltaGrad& op, CudaContext& context) {
  Delta<T> delta = delta_operands<T>(op, context);
  constexpr int64_t kParts = kDerived<T>;
  const bool staged =
      std::is_same_v<T, bf16> && context.tensor_bf16() && aligned(op.x.data, 16) && aligned(op.dout.data, 16);
  const int64_t slots = slots_of(delta), tiles = ceil_div(delta.dim, staged ? kStagedDims : kDirectDims),
                dim = delta.dim, wide = delta.wide;
  const int64_t part_elements = 2 * wide * (dim + kChunk), of_rows = 2 * kChunk * dim, of_sums = 2 * kChunk * tiles;
  const int64_t of_head =
      slots * (delta.group * (kParts * part_elements * int64_t{sizeof(bf16)} + of_sums * int64_t{sizeof(float)}) +
               of_rows * int64_t{sizeof(float)});
  const int64_t most = std::clamp<int64_t>(most_scratch(context) / std::max<int64_t>(of_head, 1), 1, delta.key_heads);
  const int64_t heads = ceil_div(delta.key_heads, ceil_div(delta.key_heads, most));  // about as many each time
  const int64_t keys = slots * heads, units = keys * delta.group;
  bf16* parts = context.scratch.take<bf16>(std::max<int64_t>(units, 1) * kParts * part_elements);
  float* floats = context.scratch.take<float>(std::max<int64_t>(keys * of_rows + units * of_sums, 1));
  DeltaStates kept;
  kept.states = parts, kept.dstates = kept.states + units * kParts * wide * dim;
  kept.deltas = kept.dstates + units * kParts * wide * dim, kept.ddeltas = kept.deltas + units * kParts * wide * kChunk;
  DeltaGradients gradients;
  gradients.dq = floats, gradients.dk = floats + keys * of_rows / 2, gradients.dsums = floats + keys * of_rows;
  gradients.dbeta = gradients.dsums + units * of_sums / 2, gradients.slots = slots;
  gradients.tiles = static_cast<int>(tiles);
  delta.heads = static_cast<int>(heads);
  const DeltaPrepared prepared = allocate_prepared<kDerived<T>>(delta, slots_of(delta), context);
  for (int first = 0; first < delta.key_heads; first += static_cast<int>(heads)) {
    delta.first_head = first, delta.heads = std::min(static_cast<int>(heads), delta.key_heads - first);
    prepare_delta<kDerived<T>>(delta, prepared, context);
    keep_delta_states(delta, prepared, kept, context);
    scan_delta_grad(delta, prepared, kept, op.dout.as<T>(), op.dx.as<T>(), context);
    const dim3 grid(static_cast<unsigned>(slots), static_cast<unsigned>(delta.heads), static_cast<unsigned>(tiles));
    const auto launch_rows = [&](auto form) {
      using Form = decltype(form);
      const int stages = Shared<Form>::bytes(2) <= context.shared_limit ? 2 : 1;
      for (int value = 0; value < (Form::kStaged ? 1 : delta.group); ++value)
        QENG_LAUNCH(context, (delta_rows_grad<Form, T>), grid, dim3(kThreads), Shared<Form>::bytes(stages), delta,
                    prepared, kept, op.dout.as<T>(), gradients, stages, value);
    };
    if constexpr (std::is_same_v<T, bf16>) {
      if (staged && kHopperCompiled && context.capability == 90)
        launch_rows(RowsForm<T, true, true>());
      else if (staged)
        launch_rows(RowsForm<T, true, false>());
    }
    if (!staged) launch_rows(RowsForm<T, false, false>());
    finish_delta_grad(op, delta, prepared, gradients, context);
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
