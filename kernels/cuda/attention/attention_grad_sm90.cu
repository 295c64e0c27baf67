// AttentionGrad on Hopper: two passes, so that no sum is shared between blocks and results do not depend on their
// order. After FlashAttention-3 (Shah et al. 2024, arXiv 2407.08608), without its atomic sums of dq.
//
// The key pass keeps keys and values in shared memory and walks over the queries that see them. It multiplies to
// S^T = K Q^T and dP^T = V dO^T, so that P^T and dS^T come out as the fragments that dv += P^T dO and dk += dS^T Q
// want. The query pass (attention_grad_queries_sm90.cu) adds dq += dS K: from the dS that the key pass left in memory
// where they are few enough, in launches over some heads at a time; else it keeps queries and dO, walks over the keys
// they see, and makes dS anew. README.md counts both.
#include <algorithm>

#include "kernels/cuda/attention/attention_grad_sm90.h"

namespace qeng {
namespace {

using namespace sm90;

constexpr int kStepQueries = 64;  // of a step: more would not leave room for dk and dv in registers at head_dim 128

// Up to head_dim 128 each consumer group has 64 keys of its own. Beyond, dk and dv of 64 keys fill two groups: both
// make the probabilities of the same keys, and each adds up half of the columns.
template <int dim>
struct KeyLayout {
  static constexpr bool kSplit = dim > 128;
  static constexpr int kRows = kSplit ? 64 : 128, kColumns = kSplit ? dim / 2 : dim;
  static constexpr int kStages = kSplit ? 2 : 3;  // as many as 227 KB hold
  static constexpr int kOwn = tile_bytes(dim, kRows), kTile = tile_bytes(dim, kStepQueries);
  static constexpr int kK = 0, kV = kK + kOwn, kQ = kV + kOwn, kDout = kQ + kStages * kTile;
  static constexpr int kLse = kDout + kStages * kTile, kDelta = kLse + kStages * kStepQueries * 4;
  static constexpr int kItem = kDelta + kStages * kStepQueries * 4;
  static constexpr int kBarriers = kItem + kItems * static_cast<int>(sizeof(Item));
  enum {
    item_full,
    item_empty = item_full + kItems,
    own_full = item_empty + kItems,
    own_empty,
    full,
    empty = full + kStages,
    barriers = empty + kStages
  };
  static constexpr size_t kBytes = kBarriers + 8 * barriers;
};

// An item's head, from a.first on, counts kv_heads * shares: which kv head, and which share of its query heads.
template <int dim>
__device__ inline Span queries_of(const AttentionTile& tile, const GradArguments& a) {
  return queries_seeing(tile, tile.first, min(tile.first + KeyLayout<dim>::kRows, tile.k_end), a.window, kStepQueries);
}

// By the first warp.
template <int dim>
__device__ __forceinline__ void produce_queries(const TensorMap& q_map, const TensorMap& k_map, const TensorMap& v_map,
                                                const TensorMap& dout_map, const GradArguments& a) {
  using L = KeyLayout<dim>;
  char* const shared = shared_memory();
  uint64_t* const barrier = barriers_of<L>();
  const int lane = static_cast<int>(threadIdx.x);
  Ring<kItems> items;
  Ring<1> own;
  Ring<L::kStages> ring;
  for (;;) {
    const Item item = hand_out<L>(a.plan, a.count, items);
    if (item.head < 0) return;
    const AttentionTile& tile = item.tile;
    const Span span = queries_of<dim>(tile, a);
    if (span.empty()) continue;
    const int number = a.first + item.head, heads = a.group / a.shares, first_head = number * heads;
    const int kv_head = number / a.shares;
    if (lane == 0) {
      ptx::mbarrier_wait(barrier + L::own_empty, own.parity ^ 1);
      ptx::mbarrier_arrive_expect(barrier + L::own_full, 2 * L::kOwn);
      fetch_tile<dim, L::kRows>(shared + L::kK, &k_map, kv_head, tile.first, barrier + L::own_full);
      fetch_tile<dim, L::kRows>(shared + L::kV, &v_map, kv_head, tile.first, barrier + L::own_full);
    }
    own.next();
    for (int head = first_head; head < first_head + heads; ++head)
      for (int first = span.begin; first < span.end; first += kStepQueries) {
        float lse[2], delta[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          lse[i] = base2_lse(a.lse + int64_t{head} * a.tq, first + lane + i * kWarp, tile.q_end);
          delta[i] = delta_of(a.delta + int64_t{head} * a.tq, first + lane + i * kWarp, tile.q_end);
        }
        ptx::mbarrier_wait(barrier + L::empty + ring.stage, ring.parity ^ 1);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int place = ring.stage * kStepQueries + lane + i * kWarp;
          reinterpret_cast<float*>(shared + L::kLse)[place] = lse[i];
          reinterpret_cast<float*>(shared + L::kDelta)[place] = delta[i];
        }
        __syncwarp();
        if (lane == 0) {
          uint64_t* const full = barrier + L::full + ring.stage;
          ptx::mbarrier_arrive_expect(full, 2 * L::kTile);
          fetch_tile<dim, kStepQueries>(shared + L::kQ + ring.stage * L::kTile, &q_map, head, first, full);
          fetch_tile<dim, kStepQueries>(shared + L::kDout + ring.stage * L::kTile, &dout_map, head, first, full);
        }
        ring.next();
      }
  }
}

// Row r of the group's 64 to row first + r of [tk, kv_heads, dim] in f32.
template <int columns>
__device__ __forceinline__ void store_part(const float (&x)[columns / 2], float* first, int64_t row_stride,
                                           const bool (&wanted)[2], int dim) {
#pragma unroll
  for (int i = 0; i < columns / 2; i += 2) {
    const int r = i / 2 % 2, column = i / 4 * 8 + fragment_column();
    if (wanted[r] && column < dim)
      *reinterpret_cast<float2*>(first + r * 8 * row_stride + column) = make_float2(x[i], x[i + 1]);
  }
}

template <int dim>
__device__ __forceinline__ void consume_queries(const GradArguments& a) {
  using L = KeyLayout<dim>;
  char* const shared = shared_memory();
  uint64_t* const barrier = barriers_of<L>();
  const int group = warpgroup() - 1, rows = L::kSplit ? 0 : group * 64;  // the group's first key of the tile
  const int first_column = L::kSplit ? group * L::kColumns : 0;
  const int column_bytes = first_column / kPanelColumns * panel_bytes(kStepQueries);
  const char *const k = shared + L::kK + rows * kPanelColumns * 2, *const v = shared + L::kV + rows * kPanelColumns * 2;
  Ring<kItems> items;
  Ring<1> own;
  Ring<L::kStages> ring;
  for (;;) {
    const Item& item = *receive<L>(items);  // stays in shared memory: registers are short
    if (item.head < 0) return;
    const AttentionTile& tile = item.tile;
    const Span span = queries_of<dim>(tile, a);
    const int first_seeing = tile.first + rows - (tile.k_end - tile.q_end);  // query that sees the group's first key
    float dk[L::kColumns / 2] = {}, dv[L::kColumns / 2] = {};
    if (!span.empty()) {
      ptx::mbarrier_wait(barrier + L::own_full, own.parity);
      if (may_keep(dim) && a.kept.words && tile.first + L::kRows > tile.k_end) {  // or kept dS were 0 times anything
        clear_rows<dim, L::kRows, kGradGroups>(shared + L::kV, tile.k_end - tile.first);
        end_clearing<kGradGroups>();
      }
      for (int head = 0; head < a.group / a.shares; ++head)
        for (int first = span.begin; first < span.end; first += kStepQueries) {
          char* const q = shared + L::kQ + ring.stage * L::kTile;
          char* const dout = shared + L::kDout + ring.stage * L::kTile;
          ptx::mbarrier_wait(barrier + L::full + ring.stage, ring.parity);
          if (first + kStepQueries > tile.q_end) {
            clear_rows<dim, kStepQueries, kGradGroups>(q, tile.q_end - first);
            clear_rows<dim, kStepQueries, kGradGroups>(dout, tile.q_end - first);
            end_clearing<kGradGroups>();
          }
          float p[kStepQueries / 2] = {}, ds[kStepQueries / 2] = {};  // transposed: rows are keys
          uint32_t p_fragments[kStepQueries / 16][4], ds_fragments[kStepQueries / 16][4];
          ptx::wgmma_start(p, ds);
          multiply<dim, L::kRows, kStepQueries>(p, k, q);
          ptx::wgmma_commit();
          multiply<dim, L::kRows, kStepQueries>(ds, v, dout);
          ptx::wgmma_commit();
          ptx::wgmma_wait<1>(p);
          // Each key on is first seen by the next query, and last by that which comes window - 1 after it.
          if (first < first_seeing + 63 || first + kStepQueries > first_seeing + a.window) {
            const int row = first_seeing - first + fragment_row() - fragment_column();
#pragma unroll
            for (int i = 0; i < kStepQueries / 2; ++i) {
              const int behind = i / 4 * 8 + i % 2 - i / 2 % 2 * 8 - row;
              if (behind < 0 || behind >= a.window) p[i] = kMasked;
            }
          }
          const float* const lse = reinterpret_cast<const float*>(shared + L::kLse) + ring.stage * kStepQueries;
          const float* const delta = reinterpret_cast<const float*>(shared + L::kDelta) + ring.stage * kStepQueries;
#pragma unroll
          for (int i = 0; i < kStepQueries / 8; ++i) {
            const float2 row = *reinterpret_cast<const float2*>(lse + 8 * i + fragment_column());
            p[4 * i] = SoftmaxRow::probability(p[4 * i], a.c, row.x);
            p[4 * i + 1] = SoftmaxRow::probability(p[4 * i + 1], a.c, row.y);
            p[4 * i + 2] = SoftmaxRow::probability(p[4 * i + 2], a.c, row.x);
            p[4 * i + 3] = SoftmaxRow::probability(p[4 * i + 3], a.c, row.y);
          }
          pack<kStepQueries>(p_fragments, p);
          ptx::wgmma_start(dv, p_fragments);
          multiply_add<L::kColumns, kStepQueries>(dv, p_fragments, dout + column_bytes);
          ptx::wgmma_commit();
          ptx::wgmma_wait<1>(ds);
#pragma unroll
          for (int i = 0; i < kStepQueries / 8; ++i) {
            const float2 row = *reinterpret_cast<const float2*>(delta + 8 * i + fragment_column());
            ds[4 * i] = p[4 * i] * (ds[4 * i] - row.x);
            ds[4 * i + 1] = p[4 * i + 1] * (ds[4 * i + 1] - row.y);
            ds[4 * i + 2] = p[4 * i + 2] * (ds[4 * i + 2] - row.x);
            ds[4 * i + 3] = p[4 * i + 3] * (ds[4 * i + 3] - row.y);
          }
          pack<kStepQueries>(ds_fragments, ds);
          ptx::wgmma_start(dk, ds_fragments);
          multiply_add<L::kColumns, kStepQueries>(dk, ds_fragments, q + column_bytes);
          ptx::wgmma_commit();
          if constexpr (may_keep(dim))
            if (a.kept.words)
              a.kept.store(a.kept.square(tile, item.head * (a.group / a.shares) + head, first, tile.first),
                           group * 2 + (first - tile.q_begin) / kStepQueries % 2, ds_fragments);
          ptx::wgmma_wait<0>(dv, dk);
          release(barrier + L::empty + ring.stage);
          ring.next();
        }
      release(barrier + L::own_empty);
      own.next();
    }
    const int key = tile.first + rows + fragment_row();
    const int number = a.first + item.head, kv_head = number / a.shares, share = number % a.shares;
    const bool wanted[2] = {key < tile.k_end, key + 8 < tile.k_end};
    const int64_t stride = int64_t{a.kv_heads} * a.dim, place = key * stride + kv_head * a.dim + first_column;
    if (a.parts) {
      float* const part = a.parts + int64_t{2} * share * a.tk * stride + place;
      store_part<L::kColumns>(dk, part, stride, wanted, a.dim - first_column);
      store_part<L::kColumns>(dv, part + a.tk * stride, stride, wanted, a.dim - first_column);
    } else {
      const float scale[2] = {a.scale, a.scale}, one[2] = {1, 1};
      store_rows<L::kColumns>(dk, scale, a.dk + place, stride, wanted, a.dim - first_column);
      store_rows<L::kColumns>(dv, one, a.dv + place, stride, wanted, a.dim - first_column);
    }
    done_with<L>(items);
  }
}

template <int dim>
__global__ void __launch_bounds__(GradTeam::kThreads, 1)
    attention_grad_keys_sm90(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                             const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap dout_map,
                             GradArguments a) {
#if QENG_SM90
  init_barriers<KeyLayout<dim>>();
  if (threadIdx.x < kGroup) {
    ptx::registers_give<GradTeam::kFew>();
    if (threadIdx.x < kWarp) produce_queries<dim>(q_map, k_map, v_map, dout_map, a);
  } else {
    ptx::registers_take<GradTeam::kMany>();
    consume_queries<dim>(a);
  }
#else
  __trap();
#endif
}

// dk and dv from the shares' parts, added in their order.
__global__ void add_parts_sm90(const float* parts, int shares, int64_t elements, float scale, bf16* dk, bf16* dv) {
  const int64_t i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * 4;
  if (i >= elements) return;
  const bool is_dv = blockIdx.y == 1;
  float4 sum = make_float4(0, 0, 0, 0);
  for (int s = 0; s < shares; ++s) {
    const float4 part = *reinterpret_cast<const float4*>(parts + (s * 2 + is_dv) * elements + i);
    sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
  }
  const float factor = is_dv ? 1.0f : scale;
  *reinterpret_cast<uint2*>((is_dv ? dv : dk) + i) =
      make_uint2(ptx::pack_bf16(sum.x * factor, sum.y * factor), ptx::pack_bf16(sum.z * factor, sum.w * factor));
}

// ---------------------------------------------------------------- launches

// Blocks that share a kv head: the fewest, a divisor of the group, that make enough items for the longest not to keep
// the others waiting. Taken from the shapes alone, as the division decides about rounding.
int shares_of(int64_t items, int group) {
  constexpr int64_t kEnough = 512;  // about four for each of an H200's 132 multiprocessors
  int shares = 1;
  while (shares < group && (group % shares != 0 || items * shares < kEnough)) ++shares;
  return shares;
}

// How many items' heads a launch takes so that their dS may be kept; 0: none may. bytes: of one. As for the shares,
// launches that are too small would wait for their longest items.
int64_t kept_together(const AttentionGrad& op, const AttentionShape& shape, int64_t heads, int64_t bytes) {
  constexpr int64_t kMost = int64_t{1} << 30;  // bytes: lets rows of 16384 tokens keep theirs
  constexpr int64_t kEnough = 256;             // tiles whose lengths fall to 0, about two a multiprocessor of an H200's
  if (!may_keep(shape.dim) || op.cu_q.data != op.cu_k.data || shape.tq != shape.tk) return 0;
  const int64_t most = std::min(heads, kMost / bytes);
  if (most == 0) return 0;
  const int64_t together = ceil_div(heads, ceil_div(heads, most));
  return together == heads || together * (shape.tk / kSquare + 1) >= kEnough ? together : 0;
}

template <int dim>
void queue(const AttentionGrad& op, const AttentionShape& shape, CudaContext& context) {
  using K = KeyLayout<dim>;
  static_assert(K::kColumns <= 128, "dk and dv of 64 keys are 2 * kColumns / 2 registers");
  static_assert(K::kBytes <= kSharedLimit);
  const PlanWish wish{TileSide::keys, K::kRows, kStepQueries};
  const int64_t tiles = most_tiles(shape, wish), elements = op.dk.elements();
  const int shares = shares_of(tiles * shape.kv_heads, shape.group), heads_each = shape.group / shares;
  const int64_t heads = int64_t{shape.kv_heads} * shares;
  const int64_t squares = std::max<int64_t>(1, KeptGradient::before<int64_t>(shape.tk, shape.documents));
  const int64_t kept = kept_together(op, shape, heads, squares * heads_each * KeptGradient::kBytes);
  const int64_t together = kept ? kept : heads;
  GradArguments a{nullptr,
                  op.lse.as<float>(),
                  op.delta.as<float>(),
                  op.dq.as<bf16>(),
                  op.dk.as<bf16>(),
                  op.dv.as<bf16>(),
                  nullptr,
                  shares,
                  shape.tq,
                  shape.tk,
                  shape.heads,
                  shape.kv_heads,
                  shape.group,
                  shape.dim,
                  shape.window,
                  op.scale,
                  op.scale * kLog2e,
                  0,
                  0,
                  {}};
  if (shares > 1) a.parts = context.scratch.take<float>(shares * 2 * elements);
  if (kept)
    a.kept = {context.scratch.take<uint32_t>(together * heads_each * squares * KeptGradient::kWords),
              static_cast<int>(squares)};
  attention_delta(op, shape, context);
  AttentionPlan* const plan = plan_attention(shape, op.cu_q, op.cu_k, wish, context);
  AttentionPlan* const query_plan = kept ? plan_attention(shape, op.cu_q, op.cu_k, kKeptQueries, context) : nullptr;
  for (int64_t first = 0; first < heads; first += together) {
    a.first = static_cast<int>(first), a.count = static_cast<int>(std::min(together, heads - first));
    a.plan = plan;
    QENG_LAUNCH(context, attention_grad_keys_sm90<dim>, one_a_multiprocessor(tiles * a.count, context),
                dim3(GradTeam::kThreads), K::kBytes, panel_map(op.q, kStepQueries), panel_map(op.k, K::kRows),
                panel_map(op.v, K::kRows), panel_map(op.dout, kStepQueries), a);
    if (!kept) continue;
    a.plan = query_plan, a.first *= heads_each, a.count *= heads_each;
    queue_kept_query_pass(op, shape, a, context);
  }
  if (!kept) queue_query_pass(op, shape, a, context);
  if (a.parts) {
    const auto blocks = static_cast<unsigned>(ceil_div(elements, 4 * 256));
    QENG_LAUNCH(context, add_parts_sm90, dim3(blocks, 2), dim3(256), 0, a.parts, a.shares, elements, op.scale, a.dk,
                a.dv);
  }
}

}  // namespace

bool attention_grad_sm90(const AttentionGrad& op, const AttentionShape& shape, CudaContext& context) {
  if (shape.value_dim != shape.dim || op.softcap > 0) return false;
  if (!suits_sm90(context, op.scale, {op.q, op.k, op.v, op.dout, op.dq, op.dk, op.dv})) return false;
  with_head_dim(shape.dim, [&](auto head_dim) { queue<head_dim.value>(op, shape, context); });
  return true;
}

}  // namespace qeng
