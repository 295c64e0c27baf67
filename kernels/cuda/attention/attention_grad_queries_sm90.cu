// The query pass of AttentionGrad on Hopper, in two forms: attention_grad_sm90.cu says when each is taken.
#include <algorithm>

#include "kernels/cuda/attention/attention_grad_sm90.h"

namespace qeng {
namespace {

using namespace sm90;

constexpr int kQueryRows = kSquare;  // queries of a tile, 64 to a consumer group

// ---------------------------------------------------------------- dS anew

// Keys of a step: scores, dP and dq together fit the registers, and two steps of K and V beside Q and
// dO the shared memory. (At head_dim 128 steps of 128 fit only while the exponentials wait for dP.)
template <int dim>
struct QueryLayout {
  static constexpr int kKeys = dim <= 64 ? 128 : dim <= 128 ? 96 : 48;
  static constexpr int kStages = 2;
  static constexpr int kOwn = tile_bytes(dim, kQueryRows), kTile = tile_bytes(dim, kKeys);
  static constexpr int kQ = 0, kDout = kQ + kOwn, kK = kDout + kOwn, kV = kK + kStages * kTile;
  static constexpr int kItem = kV + kStages * kTile, kBarriers = kItem + kItems * static_cast<int>(sizeof(Item));
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

template <int dim>
__device__ __forceinline__ void produce_keys(const TensorMap& q_map, const TensorMap& k_map, const TensorMap& v_map,
                                             const TensorMap& dout_map, const GradArguments& a) {
  using L = QueryLayout<dim>;
  char* const shared = shared_memory();
  uint64_t* const barrier = barriers_of<L>();
  Ring<kItems> items;
  Ring<1> own;
  Ring<L::kStages> ring;
  for (;;) {
    const Item item = hand_out<L>(a.plan, a.count, items);
    if (item.head < 0) return;
    const AttentionTile& tile = item.tile;
    const Span span = keys_seen(tile, tile.first, min(tile.first + kQueryRows, tile.q_end), a.window, L::kKeys);
    if (span.empty() || threadIdx.x != 0) continue;
    const int kv_head = item.head / a.group;
    ptx::mbarrier_wait(barrier + L::own_empty, own.parity ^ 1);
    ptx::mbarrier_arrive_expect(barrier + L::own_full, 2 * L::kOwn);
    fetch_tile<dim, kQueryRows>(shared + L::kQ, &q_map, item.head, tile.first, barrier + L::own_full);
    fetch_tile<dim, kQueryRows>(shared + L::kDout, &dout_map, item.head, tile.first, barrier + L::own_full);
    own.next();
    for (int first = span.begin; first < span.end; first += L::kKeys) {
      uint64_t* const full = barrier + L::full + ring.stage;
      ptx::mbarrier_wait(barrier + L::empty + ring.stage, ring.parity ^ 1);
      ptx::mbarrier_arrive_expect(full, 2 * L::kTile);
      fetch_tile<dim, L::kKeys>(shared + L::kK + ring.stage * L::kTile, &k_map, kv_head, first, full);
      fetch_tile<dim, L::kKeys>(shared + L::kV + ring.stage * L::kTile, &v_map, kv_head, first, full);
      ring.next();
    }
  }
}

template <int dim>
__device__ __forceinline__ void consume_keys(const GradArguments& a) {
  using L = QueryLayout<dim>;
  constexpr int kKeys = L::kKeys;
  char* const shared = shared_memory();
  uint64_t* const barrier = barriers_of<L>();
  const int group = warpgroup() - 1, rows = group * 64;
  const char* const q = shared + L::kQ + rows * kPanelColumns * 2;
  const char* const dout = shared + L::kDout + rows * kPanelColumns * 2;
  Ring<kItems> items;
  Ring<1> own;
  Ring<L::kStages> ring;
  for (;;) {
    const Item item = *receive<L>(items);
    if (item.head < 0) return;
    done_with<L>(items);
    const AttentionTile& tile = item.tile;
    const Span span = keys_seen(tile, tile.first, min(tile.first + kQueryRows, tile.q_end), a.window, kKeys);
    const int begin = tile.first + rows, query = begin + fragment_row();
    float dq[dim / 2] = {};
    if (!span.empty()) {
      float lse[2], delta[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        lse[r] = base2_lse(a.lse + int64_t{item.head} * a.tq, query + 8 * r, tile.q_end);
        delta[r] = delta_of(a.delta + int64_t{item.head} * a.tq, query + 8 * r, tile.q_end);
      }
      ptx::mbarrier_wait(barrier + L::own_full, own.parity);
      for (int first = span.begin; first < span.end; first += kKeys) {
        char* const k = shared + L::kK + ring.stage * L::kTile;
        char* const v = shared + L::kV + ring.stage * L::kTile;
        ptx::mbarrier_wait(barrier + L::full + ring.stage, ring.parity);
        if (first + kKeys > tile.k_end) {
          clear_rows<dim, kKeys, kGradGroups>(k, tile.k_end - first);
          clear_rows<dim, kKeys, kGradGroups>(v, tile.k_end - first);
          end_clearing<kGradGroups>();
        }
        float p[kKeys / 2] = {}, ds[kKeys / 2] = {};
        uint32_t fragments[kKeys / 16][4];
        ptx::wgmma_start(p, ds);
        multiply<dim, kQueryRows, kKeys>(p, q, k);
        ptx::wgmma_commit();
        multiply<dim, kQueryRows, kKeys>(ds, dout, v);
        ptx::wgmma_commit();
        ptx::wgmma_wait<1>(p);
        if (!all_seen(tile, begin, min(begin + 64, tile.q_end), first, first + kKeys, a.window))
          mask<kKeys>(p, tile, query, first, a.window);
#pragma unroll
        for (int i = 0; i < kKeys / 2; ++i) p[i] = SoftmaxRow::probability(p[i], a.c, lse[i / 2 % 2]);
        ptx::keep_before_wait(p[0]);
        ptx::wgmma_wait<0>(ds);
#pragma unroll
        for (int i = 0; i < kKeys / 2; ++i) ds[i] = p[i] * (ds[i] - delta[i / 2 % 2]);
        pack<kKeys>(fragments, ds);
        ptx::wgmma_start(dq, fragments);
        multiply_add<dim, kKeys>(dq, fragments, k);
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>(dq);
        release(barrier + L::empty + ring.stage);
        ring.next();
      }
      release(barrier + L::own_empty);
      own.next();
    }
    const float scale[2] = {a.scale, a.scale};
    const bool wanted[2] = {query < tile.q_end, query + 8 < tile.q_end};
    const int64_t stride = int64_t{a.heads} * a.dim;
    store_rows<dim>(dq, scale, a.dq + query * stride + item.head * a.dim, stride, wanted, a.dim);
  }
}

template <int dim>
__global__ void __launch_bounds__(GradTeam::kThreads, 1)
    attention_grad_queries_sm90(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                                const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap dout_map,
                                GradArguments a) {
#if QENG_SM90
  init_barriers<QueryLayout<dim>>();
  if (threadIdx.x < kGroup) {
    ptx::registers_give<GradTeam::kFew>();
    if (threadIdx.x < kWarp) produce_keys<dim>(q_map, k_map, v_map, dout_map, a);
  } else {
    ptx::registers_take<GradTeam::kMany>();
    consume_keys<dim>(a);
  }
#else
  __trap();
#endif
}

// ---------------------------------------------------------------- dS as the key pass left them

template <int dim>
struct KeptLayout {
  static constexpr int kStages = 3;  // as many as 227 KB hold: dS come from memory
  static constexpr int kTile = tile_bytes(dim, kSquare);
  static constexpr int kK = 0, kDs = kK + kStages * kTile;
  static constexpr int kItem = kDs + kStages * KeptGradient::kBytes;
  static constexpr int kBarriers = kItem + kItems * static_cast<int>(sizeof(Item));
  enum {
    item_full,
    item_empty = item_full + kItems,
    full = item_empty + kItems,
    empty = full + kStages,
    barriers = empty + kStages
  };
  static constexpr size_t kBytes = kBarriers + 8 * barriers;
};

template <int dim>
__device__ __forceinline__ void produce_kept(const TensorMap& k_map, const TensorMap& kept_map,
                                             const GradArguments& a) {
  using L = KeptLayout<dim>;
  char* const shared = shared_memory();
  uint64_t* const barrier = barriers_of<L>();
  Ring<kItems> items;
  Ring<L::kStages> ring;
  for (;;) {
    const Item item = hand_out<L>(a.plan, a.count, items);
    if (item.head < 0) return;
    const AttentionTile& tile = item.tile;
    const Span span = keys_seen(tile, tile.first, min(tile.first + kQueryRows, tile.q_end), a.window, kSquare);
    if (span.empty() || threadIdx.x != 0) continue;
    for (int first = span.begin; first < span.end; first += kSquare) {
      uint64_t* const full = barrier + L::full + ring.stage;
      const int square = a.kept.square(tile, item.head, tile.first, first);
      ptx::mbarrier_wait(barrier + L::empty + ring.stage, ring.parity ^ 1);
      ptx::mbarrier_arrive_expect(full, L::kTile + KeptGradient::kBytes);
      fetch_tile<dim, kSquare>(shared + L::kK + ring.stage * L::kTile, &k_map, (a.first + item.head) / a.group, first,
                               full);
      ptx::tma_load(shared + L::kDs + ring.stage * KeptGradient::kBytes, &kept_map, 0, 0, square * KeptGradient::kLines,
                    full);
      ring.next();
    }
  }
}

template <int dim>
__device__ __forceinline__ void consume_kept(const GradArguments& a) {
  using L = KeptLayout<dim>;
  char* const shared = shared_memory();
  uint64_t* const barrier = barriers_of<L>();
  const int group = warpgroup() - 1;
  Ring<kItems> items;
  Ring<L::kStages> ring;
  for (;;) {
    const Item item = *receive<L>(items);
    if (item.head < 0) return;
    done_with<L>(items);
    const AttentionTile& tile = item.tile;
    const Span span = keys_seen(tile, tile.first, min(tile.first + kQueryRows, tile.q_end), a.window, kSquare);
    const int begin = tile.first + group * 64, query = begin + fragment_row();
    const Span own = keys_seen(tile, begin, min(begin + 64, tile.q_end), a.window, kSquare);
    float dq[dim / 2] = {};
    for (int first = span.begin; first < span.end; first += kSquare) {
      char* const k = shared + L::kK + ring.stage * L::kTile;
      ptx::mbarrier_wait(barrier + L::full + ring.stage, ring.parity);
      if (first + kSquare > tile.k_end) {
        clear_rows<dim, kSquare, kGradGroups>(k, tile.k_end - first);
        end_clearing<kGradGroups>();
      }
      if (first >= own.begin &&
          first < own.end) {  // what no query of the group sees, the key pass may not have written
        uint32_t ds[kSquare / 16][4];
        KeptGradient::load(ds, shared + L::kDs + ring.stage * KeptGradient::kBytes, group);
        ptx::wgmma_start(dq, ds);
        multiply_add<dim, kSquare>(dq, ds, k);
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>(dq);
      }
      release(barrier + L::empty + ring.stage);
      ring.next();
    }
    const float scale[2] = {a.scale, a.scale};
    const bool wanted[2] = {query < tile.q_end, query + 8 < tile.q_end};
    const int64_t stride = int64_t{a.heads} * a.dim;
    store_rows<dim>(dq, scale, a.dq + query * stride + (a.first + item.head) * a.dim, stride, wanted, a.dim);
  }
}

template <int dim>
__global__ void __launch_bounds__(GradTeam::kThreads, 1)
    attention_grad_kept_sm90(const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap kept_map,
                             GradArguments a) {
#if QENG_SM90
  using L = KeptLayout<dim>;
  if (threadIdx.x == 0) {
    uint64_t* const barrier = barriers_of<L>();
    init_ring(barrier + L::item_full, barrier + L::item_empty, kItems, GradTeam::kConsumerWarps);
    init_ring(barrier + L::full, barrier + L::empty, L::kStages, GradTeam::kConsumerWarps);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x < kGroup) {
    ptx::registers_give<GradTeam::kFew>();
    if (threadIdx.x < kWarp) produce_kept<dim>(k_map, kept_map, a);
  } else {
    ptx::registers_take<GradTeam::kMany>();
    consume_kept<dim>(a);
  }
#else
  __trap();
#endif
}

}  // namespace

void sm90::queue_query_pass(const AttentionGrad& op, const AttentionShape& shape, GradArguments a,
                            CudaContext& context) {
  with_head_dim(shape.dim, [&](auto head_dim) {
    constexpr int dim = head_dim.value;
    using Q = QueryLayout<dim>;
    static_assert(Q::kBytes <= kSharedLimit);
    const PlanWish queries{TileSide::queries, kQueryRows, Q::kKeys};
    a.plan = plan_attention(shape, op.cu_q, op.cu_k, queries, context);
    a.first = 0, a.count = shape.heads;
    QENG_LAUNCH(context, attention_grad_queries_sm90<dim>,
                one_a_multiprocessor(most_tiles(shape, queries) * a.count, context), dim3(GradTeam::kThreads),
                Q::kBytes, panel_map(op.q, kQueryRows), panel_map(op.k, Q::kKeys), panel_map(op.v, Q::kKeys),
                panel_map(op.dout, kQueryRows), a);
  });
}

void sm90::queue_kept_query_pass(const AttentionGrad& op, const AttentionShape& shape, const GradArguments& a,
                                 CudaContext& context) {
  const View kept(a.kept.words, DType::bf16,
                  {int64_t{a.count} * a.kept.squares * KeptGradient::kLines, 1, kPanelColumns});
  with_head_dim(shape.dim, [&](auto head_dim) {
    constexpr int dim = head_dim.value;
    if constexpr (may_keep(dim)) {
      using K = KeptLayout<dim>;
      static_assert(K::kBytes <= kSharedLimit);
      QENG_LAUNCH(context, attention_grad_kept_sm90<dim>,
                  one_a_multiprocessor(most_tiles(shape, kKeptQueries) * a.count, context), dim3(GradTeam::kThreads),
                  K::kBytes, panel_map(op.k, kSquare), panel_map(kept, KeptGradient::kLines), a);
    }
  });
}

}  // namespace qeng
