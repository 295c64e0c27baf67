// AttentionGrad: delta, and by tensor cores two passes that each sum in registers and need no order between blocks. The
// pass over queries gives dq, the pass over keys dk and dv; both compute the scores again. They are one kernel: a warp
// owns 16 rows of one side and walks over the rows of the other, which lie in shared memory:
//
//             own     other       scores             sums
//   queries   q, do   k, v        S, dP              dq += dS k
//   keys      k, v    q, do       S^T, dP^T          dk += dS^T q,  dv += P^T do
//
// P and dS leave one product just as the next one takes its left operand, so they never leave the registers.
#include "kernels/cuda/attention/attention_mma.h"
#include "kernels/cuda/vector.h"

namespace qeng {
namespace {

struct Arguments {
  const bf16 *q, *k, *v, *dout;
  const float *lse, *delta;
  bf16 *dq, *dk, *dv;
  float *dk_parts, *dv_parts;  // [parts, tk, kv_heads, dim], or null where a group's query heads are not divided
  int tq, tk, heads, group, kv_heads, window, part_heads;  // part_heads: query heads that a block sums dk and dv over
  int q_stride, kv_stride;                                 // elements of a token's rows: heads * dim, kv_heads * dim
  float scale, scale_log2;                                 // and times log2(e); with softcap: log2(e)
  float softcap, cap_scale;                                // cap_scale: scale / softcap
  AttentionPlan* plan;
};

// What a block works on, in shared memory, so that a thread keeps in registers only what it needs all the time.
struct Item {
  AttentionTile tile;
  int kv_head, part, head, past_head;  // query heads, one after the other
  Span span;                           // rows of the other side
};

// kSplit: warps that own the same rows, each with its share of head_dim; they add up their shares of the scores through
// shared memory. kOther: rows of the other side that lie in shared memory at a time; 16 of them are worked on at once.
// kSoftcap: whether scores are capped.
template <TileSide kOwnSide, int kDimension, int kWarpCount, int kSplits, int kOtherRows, bool kSoftcap>
struct GradTiles {
  static constexpr bool kCapped = kSoftcap;
  static constexpr TileSide kSide = kOwnSide;
  static constexpr int kDim = kDimension, kWarps = kWarpCount, kSplit = kSplits, kOther = kOtherRows;
  static constexpr int kThreads = kWarps * kWarp, kRows = kWarps / kSplit * 16, kShare = kDim / kSplit;
  using Own = SharedTile<kDim, kRows>;  // read once into registers, through the memory of the others
  using Other = SharedTile<kDim, kOther>;
  static constexpr int kStage = 2 * Other::kBytes, kExchange = kSplit > 1 ? kThreads * 16 * 4 : 0;
  static constexpr int kStatistics = 2 * kOther * 4;
  static constexpr int kShared = 2 * (kStage + kExchange + kStatistics) + static_cast<int>(sizeof(Item));
  static_assert(Own::kBytes <= kStage && (kSplit == 1 || kSplit == 2));
};

// Fills `item`; false when there is none left. Barriers as next_item's.
template <class T>
__device__ inline bool take(const Arguments& a, Item* item) {
  __syncthreads();
  if (threadIdx.x == 0) {
    const int number = atomicAdd(&a.plan->taken, 1), heads = ptx::opaque(T::kSide == TileSide::keys ? a.part_heads : 1);
    const int columns = a.heads / heads, column = number % columns;
    item->head = -1;
    if (number < a.plan->tiles * columns) {
      const AttentionTile tile = a.plan->list()[number / columns];
      const int last = tile.first + T::kRows, head = column * heads;
      item->tile = tile;
      item->kv_head = head / a.group;
      item->part = head % a.group / heads;
      item->head = head;
      item->past_head = head + heads;
      item->span = T::kSide == TileSide::keys
                       ? queries_seeing(tile, tile.first, min(last, tile.k_end), a.window, T::kOther)
                       : keys_seen(tile, tile.first, min(last, tile.q_end), a.window, T::kOther);
    }
  }
  __syncthreads();
  return item->head >= 0;
}

// ptx::opaque where a value used once an item would otherwise be computed before all items and take a register, or be
// spilled, all along: of the 255, sums and own operands take 192.
template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kThreads == 128 ? 2 : 1) attention_grad_kernel(Arguments a) {
  if (!ptx::from_sm80()) return;
  constexpr bool kKeys = T::kSide == TileSide::keys;
  constexpr int kDim = T::kDim, kOther = T::kOther, kShare = T::kShare, kChunk = 16;
  using Own = typename T::Own;
  using Other = typename T::Other;
  char* stages = shared_memory();
  char* exchange = stages + 2 * T::kStage;
  float* statistics = reinterpret_cast<float*>(exchange + 2 * T::kExchange);  // [2][lse, delta][kOther]
  Item* item = reinterpret_cast<Item*>(statistics + 4 * kOther);

  while (take<T>(a, item)) {
    const auto load_other = [&](int stage, int head, int first, int thread) {
      const int column = (kKeys ? head : item->kv_head) * kDim, stride = kKeys ? a.q_stride : a.kv_stride;
      const int end = kKeys ? item->tile.q_end : item->tile.k_end;
      char* to = stages + stage * T::kStage;
      Other::template load<T::kThreads>(to, kKeys ? a.q : a.k, column, stride, first, end, thread);
      Other::template load<T::kThreads>(to + Other::kBytes, kKeys ? a.dout : a.v, column, stride, first, end, thread);
      ptx::cp_async_commit();
    };
    // lse or delta; past the document's end every operand is 0, and so is what comes of it.
    const auto statistic = [&](const float* of, int head, int t) {
      return t < item->tile.q_end ? of[int64_t{head} * a.tq + t] : 0.0f;
    };

    float sum1[kShare / 8][4] = {};              // dq, or dk
    float sum2[kKeys ? kShare / 8 : 1][4] = {};  // dv
    uint32_t own1[kShare / 16][4], own2[kShare / 16][4];
    float own_lse[2] = {}, own_delta[2] = {};
    int head = item->head;
    if (!item->span.empty()) {
      const int thread = ptx::opaque(static_cast<int>(threadIdx.x)), lane = thread % kWarp, warp = thread / kWarp;
      const int row0 = warp / T::kSplit * 16, share = T::kSplit > 1 ? warp % T::kSplit * kShare : 0;
      const int end = kKeys ? item->tile.k_end : item->tile.q_end, first = item->tile.first;
      const int stride = ptx::opaque(kKeys ? a.kv_stride : a.q_stride), column = (kKeys ? item->kv_head : head) * kDim;
      char* second = stages + Own::kBytes;
      Own::template load<T::kThreads>(stages, kKeys ? a.k : a.q, column, stride, first, end, thread);
      Own::template load<T::kThreads>(second, kKeys ? a.v : a.dout, column, stride, first, end, thread);
      ptx::cp_async_commit();
      if constexpr (!kKeys) {
        const int t = first + row0 + lane / 4;
        own_lse[0] = statistic(a.lse, head, t) * kLog2e, own_lse[1] = statistic(a.lse, head, t + 8) * kLog2e;
        own_delta[0] = statistic(a.delta, head, t), own_delta[1] = statistic(a.delta, head, t + 8);
      }
      ptx::cp_async_wait<0>();
      __syncthreads();
      const int own_lane = lane_offset<Own>(lane) + Own::offset(0, share / 8);
#pragma unroll
      for (int d = 0; d < kShare / 16; ++d) {
        ptx::ldmatrix_x4(own1[d], stages + Own::moved(own_lane, row0, 2 * d));
        ptx::ldmatrix_x4(own2[d], second + Own::moved(own_lane, row0, 2 * d));
      }
      __syncthreads();
      load_other(0, head, item->span.begin, thread);
      if (kKeys && thread < kOther) {
        statistics[thread] = statistic(a.lse, head, item->span.begin + thread) * kLog2e;
        statistics[kOther + thread] = statistic(a.delta, head, item->span.begin + thread);
      }
    }

    int stage = 0;
    const bool empty = item->span.empty();
    for (int s0 = item->span.begin; !empty && head < item->past_head; stage ^= 1) {
      const int thread = ptx::opaque(static_cast<int>(threadIdx.x));
      ptx::cp_async_wait<0>();
      __syncthreads();  // this stage is there, and nobody needs the other
      int next = s0 + kOther, next_head = head;
      if (next >= item->span.end) next = item->span.begin, ++next_head;
      float next_lse = 0, next_delta = 0;
      if (next_head < item->past_head) {
        load_other(stage ^ 1, next_head, next, thread);
        if (kKeys && thread < kOther) {
          next_lse = statistic(a.lse, next_head, next + thread);
          next_delta = statistic(a.delta, next_head, next + thread);
        }
      }
      const char* other1 = stages + stage * T::kStage;
      const char* other2 = other1 + Other::kBytes;
      const float* other_lse = statistics + 2 * kOther * stage;
#pragma unroll 1
      for (int c = 0; c < kOther; c += kChunk) {
        const int self = ptx::opaque(static_cast<int>(threadIdx.x)), lane = self % kWarp, warp = self / kWarp;
        const AttentionTile tile = item->tile;
        const int own_end = kKeys ? tile.k_end : tile.q_end, other_end = kKeys ? tile.q_end : tile.k_end;
        const int w0 = tile.first + warp / T::kSplit * 16, w1 = min(w0 + 16, own_end);  // the warp's rows
        const int share = T::kSplit > 1 ? warp % T::kSplit * kShare : 0;                // and its columns
        const int other_lane = lane_offset<Other>(lane) + Other::offset(0, share / 8);
        const int c0 = s0 + c, c1 = min(c0 + kChunk, other_end);
        if (w0 >= w1 || c0 >= c1) continue;
        if (!(kKeys ? any_seen(tile, c0, c1, w0, w1, a.window) : any_seen(tile, w0, w1, c0, c1, a.window))) continue;
        float s[2][4] = {}, dp[2][4] = {};
#pragma unroll
        for (int d = 0; d < kShare / 16; ++d) {
          const int at = Other::moved(other_lane, c, 2 * d);
          uint32_t b[4];
          ptx::ldmatrix_x4(b, other1 + at);
          ptx::mma_bf16(s[0], own1[d], b[0], b[2]);
          ptx::mma_bf16(s[1], own1[d], b[1], b[3]);
          ptx::ldmatrix_x4(b, other2 + at);
          ptx::mma_bf16(dp[0], own2[d], b[0], b[2]);
          ptx::mma_bf16(dp[1], own2[d], b[1], b[3]);
        }
        if constexpr (T::kSplit > 1) {
          // Two buffers: who writes one again has passed a barrier, this one or the stage's, after the partner read it.
          float4* mine = reinterpret_cast<float4*>(exchange + c / kChunk % 2 * T::kExchange) + warp * 4 * kWarp + lane;
          const float4* partner = mine + (warp % 2 ? -4 : 4) * kWarp;
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            mine[n * kWarp] = make_float4(s[n][0], s[n][1], s[n][2], s[n][3]);
            mine[(2 + n) * kWarp] = make_float4(dp[n][0], dp[n][1], dp[n][2], dp[n][3]);
          }
          ptx::barrier_sync(1 + warp / 2, 2 * kWarp);
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            const float4 x = partner[n * kWarp], y = partner[(2 + n) * kWarp];
            s[n][0] += x.x, s[n][1] += x.y, s[n][2] += x.z, s[n][3] += x.w;
            dp[n][0] += y.x, dp[n][1] += y.y, dp[n][2] += y.z, dp[n][3] += y.w;
          }
        }
        const bool whole = c0 + kChunk <= other_end && (kKeys ? all_seen(tile, c0, c1, w0, w1, a.window)
                                                              : all_seen(tile, w0, w1, c0, c1, a.window));
        const int after = kKeys ? tile.keys_after(c0 + lane % 4 * 2, w0 + lane / 4)
                                : tile.keys_after(w0 + lane / 4, c0 + lane % 4 * 2);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          float2 lse2{}, delta2{};
          if constexpr (kKeys) {
            lse2 = *reinterpret_cast<const float2*>(other_lse + c + 8 * n + lane % 4 * 2);
            delta2 = *reinterpret_cast<const float2*>(other_lse + kOther + c + 8 * n + lane % 4 * 2);
          }
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const float lse = kKeys ? (e % 2 ? lse2.y : lse2.x) : own_lse[e / 2];
            const float delta = kKeys ? (e % 2 ? delta2.y : delta2.x) : own_delta[e / 2];
            const int own = e / 2 * 8, other = 8 * n + e % 2;
            const bool seen = whole || AttentionTile::sees(after + (kKeys ? other - own : own - other), a.window);
            float slope = 1;
            if constexpr (T::kCapped) {
              const float t = tanhf(s[n][e] * a.cap_scale);
              s[n][e] = a.softcap * t, slope = 1 - t * t;
            }
            const float p = seen ? SoftmaxRow::probability(s[n][e], a.scale_log2, lse) : 0.0f;
            s[n][e] = p, dp[n][e] = p * (dp[n][e] - delta);
            if constexpr (T::kCapped) dp[n][e] *= slope;
          }
        }
        uint32_t p[4], ds[4];
        pack_a(p, s[0], s[1]);
        pack_a(ds, dp[0], dp[1]);
#pragma unroll
        for (int d = 0; d < kShare / 16; ++d) {
          const int at = Other::moved(other_lane, c, 2 * d);
          uint32_t b[4];
          if constexpr (kKeys) {
            ptx::ldmatrix_x4_trans(b, other2 + at);
            ptx::mma_bf16(sum2[2 * d], p, b[0], b[1]);
            ptx::mma_bf16(sum2[2 * d + 1], p, b[2], b[3]);
          }
          ptx::ldmatrix_x4_trans(b, other1 + at);
          ptx::mma_bf16(sum1[2 * d], ds, b[0], b[1]);
          ptx::mma_bf16(sum1[2 * d + 1], ds, b[2], b[3]);
        }
      }
      if (kKeys && thread < kOther && next_head < item->past_head) {
        float* to = statistics + 2 * kOther * (stage ^ 1) + thread;
        to[0] = next_lse * kLog2e, to[kOther] = next_delta;
      }
      s0 = next, head = next_head;
    }

    const int thread = ptx::opaque(static_cast<int>(threadIdx.x)), lane = thread % kWarp, warp = thread / kWarp;
    const int share = T::kSplit > 1 ? warp % T::kSplit * kShare : 0,
              row = item->tile.first + warp / T::kSplit * 16 + lane / 4;
    const int rows_left = (kKeys ? item->tile.k_end : item->tile.q_end) - row;
    const int stride = ptx::opaque(kKeys ? a.kv_stride : a.q_stride);
    const int64_t to = int64_t{row} * stride + (kKeys ? item->kv_head : item->head) * kDim + share;
    if (kKeys && a.dk_parts) {
      const int64_t part = int64_t{item->part} * a.tk * stride + to + lane % 4 * 2;
#pragma unroll
      for (int d = 0; d < kShare / 8; ++d)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (8 * half >= rows_left) continue;
          const float *dk = sum1[d] + 2 * half, *dv = sum2[kKeys ? d : 0] + 2 * half;
          const int64_t place = part + half * 8 * stride + 8 * d;
          *reinterpret_cast<float2*>(a.dk_parts + place) = make_float2(dk[0] * a.scale, dk[1] * a.scale);
          *reinterpret_cast<float2*>(a.dv_parts + place) = make_float2(dv[0], dv[1]);
        }
    } else {
      store_rows(sum1, a.scale, a.scale, (kKeys ? a.dk : a.dq) + to, stride, rows_left > 0, rows_left > 8);
      if constexpr (kKeys) store_rows(sum2, 1, 1, a.dv + to, stride, rows_left > 0, rows_left > 8);
    }
  }
}

// dk or dv (y) = the sum of the parts, in order     parts: [count, n]
__global__ void __launch_bounds__(256)
    sum_parts_kernel(const float* dk_parts, const float* dv_parts, bf16* dk, bf16* dv, int64_t n, int count) {
  const int64_t i = (int64_t{blockIdx.x} * 256 + threadIdx.x) * 8;
  if (i >= n) return;
  const float* parts = (blockIdx.y ? dv_parts : dk_parts) + i;
  float sum[8] = {};
  for (int p = 0; p < count; ++p) {
    float x[8];
    unpack(load_once<8>(parts + p * n), x);
    for (int j = 0; j < 8; ++j) sum[j] += x[j];
  }
  store((blockIdx.y ? dv : dk) + i, pack<bf16>(sum));
}

// A query head's rows of one key tile depend on nobody's, so where a group's heads in sequence would leave too few
// items they are divided into parts, which a second kernel adds up. With the longest first, two rounds of the 264
// blocks that 132 multiprocessors hold even out. The number of parts depends on shapes alone, so the result does.
constexpr int64_t kEnoughItems = 512;
int parts_of_group(const AttentionShape& shape, int rows) {
  int parts = 1;
  while (parts < shape.group &&
         (shape.group % parts || ceil_div(shape.tk, rows) * shape.kv_heads * parts < kEnoughItems))
    ++parts;
  return parts;
}

template <class T>
void launch_pass(const AttentionGrad& op, const AttentionShape& shape, CudaContext& context) {
  const PlanWish wish{T::kSide, T::kRows, T::kOther};
  const int parts = T::kSide == TileSide::keys ? parts_of_group(shape, T::kRows) : 1;
  const int64_t n = op.k.elements();
  AttentionPlan* plan = plan_attention(shape, op.cu_q, op.cu_k, wish, context);
  Arguments a{op.q.as<bf16>(),
              op.k.as<bf16>(),
              op.v.as<bf16>(),
              op.dout.as<bf16>(),
              op.lse.as<float>(),
              op.delta.as<float>(),
              op.dq.as<bf16>(),
              op.dk.as<bf16>(),
              op.dv.as<bf16>(),
              nullptr,
              nullptr,
              shape.tq,
              shape.tk,
              shape.heads,
              shape.group,
              shape.kv_heads,
              shape.window,
              shape.group / parts,
              shape.heads * shape.dim,
              shape.kv_heads * shape.dim,
              op.scale,
              T::kCapped ? kLog2e : op.scale * kLog2e,
              op.softcap,
              T::kCapped ? op.scale / op.softcap : 0,
              plan};
  if (parts > 1) a.dk_parts = context.scratch.take<float>(2 * parts * n), a.dv_parts = a.dk_parts + parts * n;
  const int64_t items = most_tiles(shape, wish) * (T::kSide == TileSide::keys ? shape.kv_heads * parts : shape.heads);
  QENG_LAUNCH(context, attention_grad_kernel<T>, plan_blocks(items, context), dim3(T::kThreads), T::kShared, a);
  if (parts > 1)
    QENG_LAUNCH(context, sum_parts_kernel, dim3(static_cast<unsigned>(ceil_div(n, 2048)), 2), dim3(256), 0, a.dk_parts,
                a.dv_parts, a.dk, a.dv, n, parts);
}

template <int kDim, int kWarps, int kSplit, int kOther, bool kSoftcap = false>
void launch_passes(const AttentionGrad& op, const AttentionShape& shape, CudaContext& context) {
  attention_delta(op, shape, context);
  launch_pass<GradTiles<TileSide::keys, kDim, kWarps, kSplit, kOther, kSoftcap>>(op, shape, context);
  launch_pass<GradTiles<TileSide::queries, kDim, kWarps, kSplit, kOther, kSoftcap>>(op, shape, context);
}

}  // namespace

void run(const AttentionGrad& op, CudaContext& context) {
  const AttentionShape shape = attention_shape(op);
  if (context.capability == 90 && attention_grad_sm90(op, shape, context)) return;

  // All fit 99 KB of shared memory, so that one table serves sm_80 and later.
  const bool tensor_cores = context.tensor_bf16() && shape.value_dim == shape.dim && op.q.dtype == DType::bf16 &&
                            op.scale > 0 && aligned_for(8, op.q, op.k, op.v, op.dout, op.dq, op.dk, op.dv);
  if (op.softcap > 0) {  // heads of the models that have it, divided for tanh to find registers
    if (tensor_cores && shape.dim == 128) return launch_passes<128, 8, 2, 32, true>(op, shape, context);
    if (tensor_cores && shape.dim == 256) return launch_passes<256, 8, 2, 32, true>(op, shape, context);
    return attention_grad_general(op, shape, context);
  }
  if (tensor_cores && shape.dim == 64) return launch_passes<64, 4, 1, 64>(op, shape, context);
  if (tensor_cores && shape.dim == 96) return launch_passes<96, 4, 1, 32>(op, shape, context);
  if (tensor_cores && shape.dim == 128) return launch_passes<128, 4, 1, 32>(op, shape, context);
  if (tensor_cores && shape.dim == 256) return launch_passes<256, 8, 2, 32>(op, shape, context);
  attention_grad_general(op, shape, context);
}

}  // namespace qeng
