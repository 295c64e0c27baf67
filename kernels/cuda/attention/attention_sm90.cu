// Attention on Hopper: flash attention with wgmma and TMA, after FlashAttention-3 (Shah et al. 2024, arXiv 2407.08608).
//
// A block keeps 128 or 192 queries of one head in shared memory, 64 to a consumer group, and walks over the keys that
// they see from the last step to the first. A group starts the next step's scores and then this step's P V, and works
// on the softmax of the next while P V runs; the groups take turns at starting products, so that one's softmax falls
// into the others' products. The fetching group goes on to the next item's tiles while the consumers finish this one's.
//
// Up to head_dim 64 exponentials limit as much as products: a step of 128 keys is 512 clocks of the tensor cores and
// 512 of MUFU to a group. Of two groups, MUFU has nothing to do where one is at its maxima, its packing or O, and the
// other waits for its product. O is small enough there for three groups' registers: each then has two others' products
// and exponentials to hide the rest behind. A step's K and V serve 192 queries: 171 bytes by TMA a query, not 256.
#include <cstdlib>
#include <string>

#include "kernels/cuda/attention/attention_sm90.h"
#include "kernels/error.h"

namespace qeng {
namespace {

using namespace sm90;

constexpr int kStages = 2;

// Keys of a step: the scores of the next step, P of this one and O are in registers together (240 of them), and two
// steps of K and V with Q in shared memory (227 KB).
constexpr int step_keys(int dim) { return dim <= 128 ? 128 : 80; }

template <int dim>
struct Layout {
  static constexpr int kGroups = dim <= 64 ? 3 : 2, kRows = kGroups * 64;  // of consumers; queries of a tile
  using Team = Crew<kGroups>;
  static constexpr int kKeys = step_keys(dim);
  static constexpr int kTile = tile_bytes(dim, kKeys);
  static constexpr int kQ = 0, kK = kQ + tile_bytes(dim, kRows), kV = kK + kStages * kTile;
  static constexpr int kItem = kV + kStages * kTile, kBarriers = kItem + kItems * static_cast<int>(sizeof(Item));
  enum {
    item_full,
    item_empty = item_full + kItems,
    q_full = item_empty + kItems,
    q_empty,
    k_full,
    k_empty = k_full + kStages,
    v_full = k_empty + kStages,
    v_empty = v_full + kStages,
    barriers = v_empty + kStages
  };
  static constexpr size_t kBytes = kBarriers + 8 * barriers;
};

struct Arguments {
  AttentionPlan* plan;
  bf16* o;
  float* lse;
  int tq, heads, group, dim, window;
  float c;             // scale * log2(e)
  const float* sinks;  // [heads], or null
};

// Scores become probabilities relative to the rows' new maxima; factor: for what was summed before.
template <int keys>
__device__ __forceinline__ void softmax(float (&s)[keys / 2], SoftmaxRow (&row)[2], float (&factor)[2], float c) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float top = kMasked;
#pragma unroll
    for (int i = 0; i < keys / 2; ++i)
      if (i / 2 % 2 == r) top = fmaxf(top, s[i]);
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
    factor[r] = row[r].raise(top, c);
    const float offset = row[r].offset(c);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < keys / 2; ++i)
      if (i / 2 % 2 == r) sum += s[i] = SoftmaxRow::probability(s[i], c, offset);
    row[r].total += sum;
  }
}

template <int dim>
__device__ __forceinline__ void produce(const TensorMap& q_map, const TensorMap& k_map, const TensorMap& v_map,
                                        const Arguments& a) {
  using L = Layout<dim>;
  char* const shared = shared_memory();
  uint64_t* const barrier = barriers_of<L>();
  Ring<kItems> items;
  Ring<1> queries;
  Ring<kStages> keys, values;
  for (;;) {
    const Item item = hand_out<L>(a.plan, a.heads, items);
    if (item.head < 0) return;
    const AttentionTile& tile = item.tile;
    const Span span = keys_seen(tile, tile.first, min(tile.first + L::kRows, tile.q_end), a.window, L::kKeys);
    if (span.empty() || threadIdx.x != 0) continue;
    const int kv_head = item.head / a.group;
    ptx::mbarrier_wait(barrier + L::q_empty, queries.parity ^ 1);
    ptx::mbarrier_arrive_expect(barrier + L::q_full, tile_bytes(dim, L::kRows));
    fetch_tile<dim, L::kRows>(shared + L::kQ, &q_map, item.head, tile.first, barrier + L::q_full);
    queries.next();
    const auto fetch_values = [&](int step) {
      uint64_t* const full = barrier + L::v_full + values.stage;
      ptx::mbarrier_wait(barrier + L::v_empty + values.stage, values.parity ^ 1);
      ptx::mbarrier_arrive_expect(full, L::kTile);
      fetch_tile<dim, L::kKeys>(shared + L::kV + values.stage * L::kTile, &v_map, kv_head, span.begin + step * L::kKeys,
                                full);
      values.next();
    };
    const int steps = (span.end - span.begin + L::kKeys - 1) / L::kKeys;
    for (int step = steps - 1; step >= 0; --step) {
      uint64_t* const full = barrier + L::k_full + keys.stage;
      ptx::mbarrier_wait(barrier + L::k_empty + keys.stage, keys.parity ^ 1);
      ptx::mbarrier_arrive_expect(full, L::kTile);
      fetch_tile<dim, L::kKeys>(shared + L::kK + keys.stage * L::kTile, &k_map, kv_head, span.begin + step * L::kKeys,
                                full);
      keys.next();
      if (step < steps - 1) fetch_values(step + 1);
    }
    fetch_values(0);
  }
}

template <int dim>
__device__ __forceinline__ void consume(const Arguments& a) {
  using L = Layout<dim>;
  constexpr int kKeys = L::kKeys;
  char* const shared = shared_memory();
  uint64_t* const barrier = barriers_of<L>();
  const int group = warpgroup() - 1;
  const char* const q = shared + L::kQ + group * 64 * kPanelColumns * 2;
  const auto take_turn = [&] { ptx::barrier_sync(kTurnBarrier + group, 2 * kGroup); };
  const auto give_turn = [&] {
    ptx::barrier_arrive(kTurnBarrier + (group == L::kGroups - 1 ? 0 : group + 1), 2 * kGroup);
  };
  Ring<kItems> items;
  Ring<1> queries;
  Ring<kStages> keys, values;
  if (group == L::kGroups - 1) give_turn();
  for (;;) {
    const Item item = *receive<L>(items);
    if (item.head < 0) break;
    done_with<L>(items);
    const AttentionTile& tile = item.tile;
    const Span span = keys_seen(tile, tile.first, min(tile.first + L::kRows, tile.q_end), a.window, kKeys);
    const int begin = tile.first + group * 64, query = begin + fragment_row();
    float o[dim / 2] = {};
    SoftmaxRow row[2];
    if (!span.empty()) {
      float s[kKeys / 2], factor[2];
      uint32_t p[kKeys / 16][4];
      int step = (span.end - span.begin + kKeys - 1) / kKeys - 1;
      const auto hide = [&] {
        const int first = span.begin + step * kKeys;
        if (!all_seen(tile, begin, min(begin + 64, tile.q_end), first, first + kKeys, a.window))
          mask<kKeys>(s, tile, query, first, a.window);
      };
      const auto start_scores = [&] {
        ptx::wgmma_start(s);
        multiply<dim, L::kRows, kKeys>(s, q, shared + L::kK + keys.stage * L::kTile);
        ptx::wgmma_commit();
      };
      const auto start_output = [&] {
        ptx::wgmma_start(o, p);
        multiply_add<dim, kKeys>(o, p, shared + L::kV + values.stage * L::kTile);
        ptx::wgmma_commit();
      };
      const auto next_keys = [&] {
        release(barrier + L::k_empty + keys.stage);
        keys.next();
      };
      const auto next_values = [&] {
        release(barrier + L::v_empty + values.stage);
        values.next();
      };
      // Of the last step's values, what lies past the document's end.
      const auto clear_values = [&] {
        const int past = tile.k_end - (span.begin + step * kKeys);
        if (past >= kKeys) return;
        ptx::mbarrier_wait(barrier + L::v_full + values.stage, values.parity);
        clear_rows<dim, kKeys, L::kGroups>(shared + L::kV + values.stage * L::kTile, past);
        end_clearing<L::kGroups>();
      };

      ptx::mbarrier_wait(barrier + L::q_full, queries.parity);
      // The last keys that the tile sees may all come after those that this group sees. (It takes the first step in any
      // case: with a branch for none, ptxas no longer knows that a warp agrees on the rings' places.)
      const Span own = keys_seen(tile, begin, min(begin + 64, tile.q_end), a.window, kKeys);
      const int steps = max(1, (own.end - span.begin + kKeys - 1) / kKeys);
      for (; step >= steps; --step) {
        ptx::mbarrier_wait(barrier + L::k_full + keys.stage, keys.parity);
        take_turn();
        give_turn();
        next_keys();
        clear_values();
        ptx::mbarrier_wait(barrier + L::v_full + values.stage, values.parity);
        next_values();
      }
      ptx::mbarrier_wait(barrier + L::k_full + keys.stage, keys.parity);
      take_turn();
      start_scores();
      give_turn();
      ptx::wgmma_wait<0>(s);
      next_keys();
      hide();
      softmax<kKeys>(s, row, factor, a.c);
      pack<kKeys>(p, s);
      clear_values();
      while (--step >= 0) {
        ptx::mbarrier_wait(barrier + L::k_full + keys.stage, keys.parity);
        take_turn();
        start_scores();
        ptx::mbarrier_wait(barrier + L::v_full + values.stage, values.parity);
        start_output();
        give_turn();
        ptx::wgmma_wait<1>(s);
        next_keys();
        hide();
        softmax<kKeys>(s, row, factor, a.c);
        ptx::keep_before_wait(row[0].total);
        ptx::wgmma_wait<0>(o);
        next_values();
        pack<kKeys>(p, s);
#pragma unroll
        for (int i = 0; i < dim / 2; ++i) o[i] *= factor[i / 2 % 2];
      }
      ptx::mbarrier_wait(barrier + L::v_full + values.stage, values.parity);
      start_output();
      ptx::wgmma_wait<0>(o);
      next_values();
      release(barrier + L::q_empty);
      queries.next();
    }
    float inverse[2];
    bool wanted[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row[r].total += __shfl_xor_sync(kAllLanes, row[r].total, 1);
      row[r].total += __shfl_xor_sync(kAllLanes, row[r].total, 2);
      inverse[r] = row[r].join(a.sinks ? a.sinks + item.head : nullptr, a.c);
      inverse[r] *= row[r].inverse();
      wanted[r] = query + 8 * r < tile.q_end;
      if (wanted[r] && threadIdx.x % 4 == 0) a.lse[int64_t{item.head} * a.tq + query + 8 * r] = row[r].lse(a.c);
    }
    const int64_t stride = int64_t{a.heads} * a.dim;
    store_rows<dim>(o, inverse, a.o + query * stride + item.head * a.dim, stride, wanted, a.dim);
  }
  if (group == 0) take_turn();
}

template <int dim>
__global__ void __launch_bounds__(Layout<dim>::Team::kThreads, 1)
    attention_sm90_kernel(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                          const __grid_constant__ TensorMap v_map, Arguments a) {
#if QENG_SM90
  using L = Layout<dim>;
  if (threadIdx.x == 0) {
    uint64_t* const barrier = barriers_of<L>();
    init_ring(barrier + L::item_full, barrier + L::item_empty, kItems, L::Team::kConsumerWarps);
    init_ring(barrier + L::q_full, barrier + L::q_empty, 1, L::Team::kConsumerWarps);
    init_ring(barrier + L::k_full, barrier + L::k_empty, kStages, L::Team::kConsumerWarps);
    init_ring(barrier + L::v_full, barrier + L::v_empty, kStages, L::Team::kConsumerWarps);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x < kGroup) {
    ptx::registers_give<L::Team::kFew>();
    if (threadIdx.x < kWarp) produce<dim>(q_map, k_map, v_map, a);
  } else {
    ptx::registers_take<L::Team::kMany>();
    consume<dim>(a);
  }
#else
  __trap();
#endif
}

template <int dim>
void queue(const Attention& op, const AttentionShape& shape, CudaContext& context) {
  using L = Layout<dim>;
  static_assert(L::kBytes <= kSharedLimit);
  const PlanWish wish{TileSide::queries, L::kRows, L::kKeys};
  const Arguments a{plan_attention(shape, op.cu_q, op.cu_k, wish, context),
                    op.o.as<bf16>(),
                    op.lse.as<float>(),
                    shape.tq,
                    shape.heads,
                    shape.group,
                    shape.dim,
                    shape.window,
                    op.scale * kLog2e,
                    op.sinks ? op.sinks.as<float>() : nullptr};
  const int64_t items = most_tiles(shape, wish) * shape.heads;
  QENG_LAUNCH(context, attention_sm90_kernel<dim>, one_a_multiprocessor(items, context), dim3(L::Team::kThreads),
              L::kBytes, panel_map(op.q, L::kRows), panel_map(op.k, L::kKeys), panel_map(op.v, L::kKeys), a);
}

// QENG_ATTENTION: mma, or wgmma (which is what an empty one means).
bool wants_wgmma() {
  static const std::string word = [] {
    const char* text = std::getenv("QENG_ATTENTION");
    return std::string(text ? text : "");
  }();
  if (word != "" && word != "mma" && word != "wgmma")
    fail("value", "QENG_ATTENTION is \"", word,
         "\", expected mma (tensor cores as on every GPU) or wgmma (Hopper's own, ", "where a GPU has them)");
  return word != "mma";
}

}  // namespace

bool sm90::suits_sm90(const CudaContext& context, float scale, std::initializer_list<View> operands) {
  bool suits = kHopperCompiled && wants_wgmma() && context.capability == 90 && scale > 0;
  for (const View& view : operands) suits = suits && view.dtype == DType::bf16 && fits_tensor_map(view);
  return suits;
}

bool attention_sm90(const Attention& op, const AttentionShape& shape, CudaContext& context) {
  if (shape.value_dim != shape.dim || op.softcap > 0) return false;
  if (!suits_sm90(context, op.scale, {op.q, op.k, op.v, op.o})) return false;
  with_head_dim(shape.dim, [&](auto head_dim) { queue<head_dim.value>(op, shape, context); });
  return true;
}

}  // namespace qeng
