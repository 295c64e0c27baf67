// What the operations after a RowLinear do with its results, done by that thread block which made the last of them: so a
// step of decoding is a few kernels a layer, and not one for each operation (recorded.cu finds what goes together).
//
// Columns of y that are to be read together are a group. A block says how many it has made of one; when all are there,
// the block that sees it does the rest, with the bits that the operations on their own give. Where there are many rows,
// which one block would be long at work with, a kernel of its own does all of it (row_end.cu).
#pragma once
#include "kernels/cuda/gate.h"
#include "kernels/cuda/linear/row_round.h"
#include "kernels/cuda/norm_row.h"
#include "kernels/cuda/pool_slot.h"
#include "kernels/cuda/turn.h"

namespace qeng {

enum class EndKind : uint8_t {
  none,
  norm,   // AddRmsNorm: all columns are a group
  gate,   // SwiGlu of two weights' results: kWarpRun columns of each
  heads,  // RmsNorm of q and of k, or not, Rope and KvStore: a head is a group
};

// Of q, k and v, bf16 each; what is null is not done.
struct HeadEnd {
  int count;  // of heads
  const bf16* w;
  bf16 *normed, *turned;
  float* rstd;
  void* pool;
};

struct RowEnd {
  EndKind kind = EndKind::none;
  int64_t rows = 0;
  const bf16* made[3] = {};  // y of each weight
  int64_t columns[3] = {};   // and its columns
  int group = 0;             // columns
  int* arrived = nullptr;    // [groups], columns that are there: 0 before and after
  bf16* y = nullptr;         // of a norm or a gate
  RoundedRows rounded{};     // of y, for the product after it; or none
  NormRow<bf16> norm{};      // of the first row
  bool gelu = false;
  HeadEnd head[3] = {};
  const int32_t *positions = nullptr, *slots = nullptr;
  const float* inv_freq = nullptr;
  int half = 0;  // pairs that are turned
  float turn_scale = 1, eps = 0, shift = 0;
  DType pool_dtype = DType::f32;
  int64_t pool_slots = 0;
  Fault* fault = nullptr;
};
constexpr int kEndColumns = 64;  // that each weight has a multiple of, so that no block makes columns of two groups
constexpr int kEndBytes = 16 * sizeof(float);  // of shared memory: what a sum over the block's warps takes, and a flag

namespace row_end {

constexpr int kBarrier = 1;  // of row_wgmma.cu too, for the same threads

template <int kThreads>
__device__ inline void meet() {
  ptx::barrier_sync(kBarrier, kThreads);
}

// By a team of kLanes threads, of which each of the block's stands for several, with the bits of rmsnorm.cu. Loops are no
// longer than the row: what a kernel ends with shall not cost it registers.
template <int kThreads, int kLanes>
__device__ inline void norm_by(const NormRow<bf16>& row, float* exchange) {
  constexpr int kPlays = kLanes > kThreads ? kLanes / kThreads : 1, kStep = kLanes * kRun;
  const int first = static_cast<int>(threadIdx.x) * kRun;
  float squares[kPlays] = {};
#pragma unroll
  for (int play = 0; play < kPlays; ++play)
#pragma unroll 2
    for (int column = first + play * kThreads * kRun; column < row.dim; column += kStep) {
      const Pack<bf16, kRun> sum = added(load<kRun>(row.x + column), load<kRun>(row.addend + column));
      store(row.sum + column, sum);
      squares[play] = add_squares(sum, squares[play]);
    }
  const float factor = row.factor(row_team::team_sum<kLanes>(squares, exchange, [] { meet<kThreads>(); }));
  if (threadIdx.x == 0) *row.rstd = factor;
#pragma unroll 1
  for (int play = 0; play < kPlays; ++play)
#pragma unroll 2
    for (int column = first + play * kThreads * kRun; column < row.dim; column += kStep)
      store(row.y + column, row.scaled(load<kRun>(static_cast<const bf16*>(row.sum) + column), factor, column));
}
template <int kThreads>
__device__ inline void norm(const RowEnd& e, int64_t r, float* exchange) {
  const int dim = e.norm.dim;
  NormRow<bf16> row = e.norm;
  row.x += r * dim, row.addend += r * dim, row.sum += r * dim, row.y += r * dim, row.rstd += r;
  if (dim / kRun > 256)  // as with_team has it
    norm_by<kThreads, row_team::kThreads>(row, exchange);
  else if (threadIdx.x < kWarp)
    norm_by<kThreads, kWarp>(row, exchange);
  if (!e.rounded) return;
  meet<kThreads>();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll 1
  for (int base = static_cast<int>(threadIdx.x) / kWarp * kWarpRun; base < dim; base += kThreads / kWarp * kWarpRun) {
    const int column = base + lane * kRun;
    float values[kRun] = {};
    if (column < dim) unpack(load<kRun>(static_cast<const bf16*>(row.y) + column), values);
    round_run(values, column < dim, r, column, dim, e.rounded);
  }
}

// Columns of kWarpRun from `first` on, of rows begin .. end.
template <int kThreads>
__device__ inline void gate(const RowEnd& e, int64_t first, int64_t begin, int64_t end) {
  const int64_t n = e.columns[0], column = first + static_cast<int>(threadIdx.x) % kWarp * kRun;
  for (int64_t r = begin + threadIdx.x / kWarp; r < end; r += kThreads / kWarp) {
    float values[kRun] = {};
    if (column < n) {
      float up[kRun];
      unpack(load<kRun>(e.made[0] + r * n + column), values);
      unpack(load<kRun>(e.made[1] + r * n + column), up);
      for (int i = 0; i < kRun; ++i) up[i] *= values[i] * (e.gelu ? Gelu::at(values[i]) : Silu::at(values[i]));
      const Pack<bf16, kRun> packed = pack<bf16>(up);
      store(e.y + r * n + column, packed);
      unpack(packed, values);
    }
    if (e.rounded) round_run(values, column < n, r, column, n, e.rounded);
  }
}

// Elements of a head, eight to each of the first lanes, to a pool's slot.
__device__ inline void store_head(const RowEnd& e, void* pool, int64_t at, const float (&values)[kRun]) {
  const auto put_in = [&](auto* type) {
    using To = std::remove_pointer_t<decltype(type)>;
    store(static_cast<To*>(pool) + at, pack<To>(values));
  };
  switch (e.pool_dtype) {
    case DType::f32: return put_in(static_cast<float*>(nullptr));
    case DType::f16: return put_in(static_cast<f16*>(nullptr));
    default: return put_in(static_cast<bf16*>(nullptr));
  }
}

// Head h of the queries (which: 0), keys or values, of rows begin .. last.
template <int kThreads>
__device__ inline void head(const RowEnd& e, int which, int h, int64_t begin, int64_t last) {
  const HeadEnd& end = e.head[which];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, dim = e.group, lanes = dim / kRun, column = lane * kRun;
  for (int64_t r = begin + threadIdx.x / kWarp; r < last; r += kThreads / kWarp) {
    const int64_t number = r * end.count + h, place = number * dim + column;
    const bool real = lane < lanes;
    Pack<bf16, kRun> packed{};
    if (real) packed = load<kRun>(e.made[which] + place);
    float values[kRun];
    if (end.w) {
      float squares = add_squares(packed, 0.0f);
      for (int offset = lanes / 2; offset > 0; offset /= 2) squares += __shfl_xor_sync(kAllLanes, squares, offset);
      const NormRow<bf16> norm{nullptr, nullptr, end.w, nullptr, nullptr, nullptr, dim, e.eps, e.shift};
      const float factor = norm.factor(squares);
      if (lane == 0) end.rstd[number] = factor;
      if (real) {
        packed = norm.scaled(packed, factor, column);
        store(end.normed + place, packed);
      }
    }
    unpack(packed, values);
    if (end.turned) {
      const int pairs = e.half / kRun;  // of a lane and another
      const bool low = lane < pairs, turns = lane < 2 * pairs;
      const int first = low ? column : column - e.half;  // of the frequencies
      float turned[kRun];
      for (int i = 0; i < kRun; ++i) {
        const float other = __shfl_sync(kAllLanes, values[i], !turns ? lane : low ? lane + pairs : lane - pairs);
        turned[i] = values[i];
        if (!turns) continue;
        float s, c;
        sin_cos(static_cast<float>(e.positions[r]) * e.inv_freq[first + i], &s, &c);
        c = e.turn_scale * c, s = e.turn_scale * s;
        turned[i] = low ? turned_low(values[i], other, c, s) : turned_high(other, values[i], c, s);
      }
      packed = pack<bf16>(turned);
      if (real) store(end.turned + place, packed);
      unpack(packed, values);
    }
    if (end.pool) {
      const int64_t slot = pool_slot(e.slots, r, e.pool_slots, which == 1 && h == 0 && lane == 0, e.fault);
      if (slot >= 0 && real) store_head(e, end.pool, (slot * end.count + h) * dim + column, values);
    }
  }
}

}  // namespace row_end

// Whether the block that makes the last of a group does it: of few rows.
inline bool ends_inside(const RowEnd& e) { return e.rows <= (e.kind == EndKind::norm ? 1 : kBatchRows); }
// Queues a kernel that does all of it (row_end.cu).
void queue_end(const RowEnd& e, CudaContext& context);

// To be called where kThreads threads, those of the block's first warps, have written columns j .. j + count of what
// weight `which` of the operation gives, in all rows. shared: kEndBytes.
template <int kThreads>
__device__ inline void end_rows(const RowEnd& e, int which, int64_t j, int count, char* shared) {
  auto* exchange = reinterpret_cast<float*>(shared);
  auto* done = reinterpret_cast<int*>(exchange + row_team::kWarps);
  int group = static_cast<int>(j / e.group), columns = e.group;
  if (e.kind == EndKind::heads)
    for (int i = 0; i < which; ++i) group += e.head[i].count;
  if (e.kind == EndKind::gate) {
    const int64_t left = e.columns[which] - static_cast<int64_t>(group) * e.group;
    columns = 2 * (left < e.group ? static_cast<int>(left) : e.group);
  }
  __threadfence();
  row_end::meet<kThreads>();
  if (threadIdx.x == 0) {
    const int before = atomicAdd(e.arrived + group, count);
    *done = before + count == columns;
    if (*done) atomicExch(e.arrived + group, 0);
  }
  row_end::meet<kThreads>();
  if (!*done) return;
  __threadfence();
  switch (e.kind) {
    case EndKind::norm: return row_end::norm<kThreads>(e, 0, exchange);
    case EndKind::gate: return row_end::gate<kThreads>(e, static_cast<int64_t>(group) * e.group, 0, e.rows);
    case EndKind::heads: return row_end::head<kThreads>(e, which, static_cast<int>(j / e.group), 0, e.rows);
    default: return;
  }
}

}  // namespace qeng
