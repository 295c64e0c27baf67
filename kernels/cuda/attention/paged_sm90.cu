// PagedAttention of prompts on Hopper, over pools of bf16 rows: wgmma, keys and values by TMA through the page table.
//
// A tile is 128 rows, each a query and one of its heads, 64 to a consumer group. The groups take steps of 64 keys as
// those of attention_sm90.cu do: the next step's scores and this one's products with values start together, and the
// softmax of the next runs beside the latter. Steps and pieces are those of paged_mma.cu, and so are the bits
// (paged_piece.h).
#include <algorithm>
#include <numeric>

#include "kernels/cuda/attention/attention_sm90.h"
#include "kernels/cuda/attention/paged_piece.h"

namespace qeng {
namespace {

using namespace sm90;
using Team = Crew<2>;

constexpr int kRows = kWideTileRows, kKeys = kStepKeys;
constexpr int kFetchers = kGroup / kWarp;  // warps that fetch
// Two steps that are worked on and two that arrive, each fetched by a warp of its own: pages are small, and a warp
// takes some 40 instructions to start the two copies of a page's keys.
constexpr int kStages = kFetchers;
constexpr int kLeastBox = 8;  // rows of a copy: the swizzle's period
static_assert(kRows == 2 * 64);

// What the first group found to do next: an item of the plan in one of its columns; column -1: nothing any more.
struct Work {
  PagedItem item;
  int number, column, unused[2];
};

template <int dim>
struct Layout {
  static constexpr int kTile = tile_bytes(dim, kKeys);
  static constexpr int kQ = 0, kK = kQ + tile_bytes(dim, kRows), kV = kK + kStages * kTile;
  static constexpr int kItem = kV + kStages * kTile, kBarriers = kItem + kItems * static_cast<int>(sizeof(Work));
  enum {
    item_full,
    item_empty = item_full + kItems,
    q_full = item_empty + kItems,
    q_empty,
    k_full,
    v_full = k_full + kStages,
    empty = v_full + kStages,  // of a stage's keys and values
    barriers = empty + kStages
  };
  static constexpr size_t kBytes = kBarriers + 8 * barriers;
};
template <class L>
__device__ inline Work* work_at(const Ring<kItems>& ring) {
  return reinterpret_cast<Work*>(shared_memory() + L::kItem) + ring.stage;
}

struct Arguments {
  const int32_t* pages;
  float scale;     // times log2(e)
  int box, boxes;  // rows of keys that lie together and are copied at once, and how many of them are a step
  PagedOutput out;
  Fault* fault;
};

// The next work, for the first warp; tells the others. As next_item of paged_attention.h.
template <class L>
__device__ inline Work hand_out(const Arguments& a, Ring<kItems>& ring) {
  PagedPlan* const plan = a.out.plan;
  const int columns = a.out.shape.columns, end = plan->items * columns;
  int number = 0;
  if (threadIdx.x == 0) {
    number = atomicAdd(&plan->taken, 1);
    if (number == end + static_cast<int>(gridDim.x) - 1) atomicExch(&plan->taken, 0);
  }
  number = __shfl_sync(kAllLanes, number, 0);
  Work work{{}, number, -1, {}};
  if (number < end) work.item = plan->list()[number / columns], work.column = number % columns;
  if (threadIdx.x == 0) {
    ptx::mbarrier_wait(barriers_of<L>() + L::item_empty + ring.stage, ring.parity ^ 1);
    *work_at<L>(ring) = work;
    ptx::mbarrier_arrive(barriers_of<L>() + L::item_full + ring.stage);
  }
  ring.next();
  return work;
}

// By the first group. In a warp each lane looks up the page of a box, some steps of them at once, and the first lane
// starts the copies of the warp's stage.
template <int dim>
__device__ __forceinline__ void produce(const TensorMap& q_map, const TensorMap& k_map, const TensorMap& v_map,
                                        const Arguments& a) {
  using L = Layout<dim>;
  const PagedShape& shape = a.out.shape;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarp, 0);
  char* const shared = shared_memory();
  uint64_t* const barrier = barriers_of<L>();
  Ring<kItems> items;
  Ring<1> queries;
  Ring<kStages> steps;
  for (;;) {
    Work work;
    if (warp == 0) {
      work = hand_out<L>(a, items);
    } else {
      ptx::mbarrier_wait(barrier + L::item_full + items.stage, items.parity);
      work = *work_at<L>(items);
      done_with<L>(items);
    }
    if (work.column < 0) return;
    const ItemKeys keys = keys_of(shape, work.item);
    if (keys.begin >= keys.end) continue;
    const ItemHeads heads = heads_of(shape, work.column);
    if (warp == 0 && lane == 0) {
      ptx::mbarrier_wait(barrier + L::q_empty, queries.parity ^ 1);
      ptx::mbarrier_arrive_expect(barrier + L::q_full, static_cast<uint32_t>(panels(dim)) * shape.tile_queries *
                                                           shape.tile_heads * kPanelColumns * 2);
      fetch_tile<dim, kRows>(shared + L::kQ, &q_map, heads.first, work.item.first, barrier + L::q_full);
    }
    queries.next();
    int slot = -1, box = kWarp;  // of the lane, and of the step's first
    for (int first = keys.begin; first < keys.end; first += kKeys, box += a.boxes, steps.next()) {
      if (box == kWarp) {
        const int key = first + lane * a.box;
        slot = key + a.box > keys.lowest && key < keys.end
                   ? slot_of(shape, a.pages, shape.pool_pages, work.item.sequence, key, a.fault)
                   : -1;
        box = 0;
      }
      if (steps.stage != warp) continue;
      const uint32_t wanted = __ballot_sync(kAllLanes, slot >= 0) >> box & ((1u << a.boxes) - 1);
      const uint32_t bytes = static_cast<uint32_t>(__popc(wanted)) * a.box * dim * 2;
      if (lane == 0) ptx::mbarrier_wait(barrier + L::empty + steps.stage, steps.parity ^ 1);
      const auto fetch = [&](const TensorMap& map, char* tile, uint64_t* full) {
        if (lane == 0) ptx::mbarrier_arrive_expect(full, bytes);
        for (int i = 0; i < a.boxes; ++i) {
          const int row = __shfl_sync(kAllLanes, slot, box + i);
          if (lane == 0 && row >= 0)
            fetch_tile<dim, kKeys>(tile + i * a.box * kPanelColumns * 2, &map, heads.kv_head, row, full);
        }
      };
      fetch(k_map, shared + L::kK + steps.stage * L::kTile, barrier + L::k_full + steps.stage);
      fetch(v_map, shared + L::kV + steps.stage * L::kTile, barrier + L::v_full + steps.stage);
    }
  }
}

// Values of keys that no row sees become zero. What lies there may be no number, and 0 times that is none either.
// [from, to): rows of a step. By both consumer groups, before either multiplies.
template <int dim>
__device__ __forceinline__ void clear_values(char* tile, int from, int to) {
  constexpr int kChunks = kPanelColumns * 2 / 16;
  for (int i = static_cast<int>(threadIdx.x) - kGroup; i < (to - from) * panels(dim) * kChunks; i += Team::kConsumers) {
    const int row = from + i / (panels(dim) * kChunks), chunk = i % (panels(dim) * kChunks);
    *reinterpret_cast<uint4*>(tile + chunk / kChunks * panel_bytes(kKeys) + row * kPanelColumns * 2 +
                              chunk % kChunks * 16) = make_uint4(0, 0, 0, 0);
  }
  end_clearing<2>();
}

template <int dim>
__device__ __forceinline__ void consume(const Arguments& a) {
  using L = Layout<dim>;
  const PagedShape& shape = a.out.shape;
  char* const shared = shared_memory();
  uint64_t* const barrier = barriers_of<L>();
  const int group = warpgroup() - 1;
  const char* const q = shared + L::kQ + group * 64 * kPanelColumns * 2;
  Ring<kItems> items;
  Ring<1> queries;
  Ring<kStages> keys_at, values_at;
  for (;; done_with<L>(items)) {
    ptx::mbarrier_wait(barrier + L::item_full + items.stage, items.parity);
    const Work& work = *work_at<L>(items);  // stays in shared memory, as registers are few
    if (work.column < 0) return;
    const ItemKeys keys = keys_of(shape, work.item);
    const auto row_of = [&](int r) { return group * 64 + fragment_row() + 8 * r; };
    const auto wanted = [&](int r) { return row_of(r) < work.item.queries * heads_of(shape, work.column).count; };
    float o[dim / 2], all_o[dim / 2];  // of the piece, and of those before
    float all_top[2] = {kMasked, kMasked}, all_total[2] = {};
    RowPiece<kStepParts> piece[2];
#pragma unroll
    for (int i = 0; i < dim / 2; ++i) o[i] = all_o[i] = 0;
    piece[0].clear(), piece[1].clear();
    if (keys.begin < keys.end) {
      float s[kKeys / 2], factor[2];
      uint32_t p[kKeys / 16][4];
      int first = keys.begin;
      const auto start_scores = [&] {
        ptx::wgmma_start(s);
        multiply<dim, kRows, kKeys>(s, q, shared + L::kK + keys_at.stage * L::kTile);
        ptx::wgmma_commit();
      };
      const auto start_output = [&] {
        ptx::wgmma_start(o, p);
        multiply_add<dim, kKeys>(o, p, shared + L::kV + values_at.stage * L::kTile);
        ptx::wgmma_commit();
      };
      const auto hide = [&] {  // scores of keys that a row does not see
        const PagedItem& item = work.item;
        if (first + kKeys <= item.seen && (shape.window == 0 || first >= item.seen + item.queries - 1 - shape.window))
          return;
        const int heads = heads_of(shape, work.column).count;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int past = item.seen + row_of(r) / heads - first - fragment_column();
          const int begin = shape.window > 0 ? past - shape.window : -kKeys;
#pragma unroll
          for (int i = 0; i < kKeys / 2; ++i) {
            const int column = i / 4 * 8 + i % 2;
            if (i / 2 % 2 == r && (column >= past || column < begin)) s[i] = kMasked;
          }
        }
      };
      const auto soften = [&] {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float top = kMasked;
#pragma unroll
          for (int i = 0; i < kKeys / 2; ++i)
            if (i / 2 % 2 == r) s[i] = __fmul_rn(s[i], a.scale), top = fmaxf(top, s[i]);
          factor[r] = piece[r].raise(quad_max(top), [&](int i) -> float& { return s[i / 2 * 4 + 2 * r + i % 2]; });
        }
      };
      const auto end_piece = [&](MergeFactors(&merge)[2]) {
#pragma unroll
        for (int r = 0; r < 2; ++r) merge[r] = merge_pieces(all_top[r], all_total[r], piece[r].top, piece[r].whole());
      };
      const auto add_piece = [&](const MergeFactors(&merge)[2]) {
#pragma unroll
        for (int i = 0; i < dim / 2; ++i) all_o[i] = merged(all_o[i], o[i], merge[i / 2 % 2]);
      };

      ptx::mbarrier_wait(barrier + L::q_full, queries.parity);
      ptx::mbarrier_wait(barrier + L::k_full + keys_at.stage, keys_at.parity);
      start_scores();
      ptx::wgmma_wait<0>(s);
      keys_at.next();
      hide();
      soften();
      pack<kKeys>(p, s);
      if (keys.lowest > first) {
        ptx::mbarrier_wait(barrier + L::v_full + values_at.stage, values_at.parity);
        clear_values<dim>(shared + L::kV + values_at.stage * L::kTile, 0, keys.lowest - first);
      }
      first += kKeys;
      if (group == 1 && first < keys.end) ptx::barrier_arrive(kTurnBarrier, Team::kConsumers);
      for (; first < keys.end; first += kKeys) {
        ptx::mbarrier_wait(barrier + L::k_full + keys_at.stage, keys_at.parity);
        ptx::barrier_sync(kTurnBarrier + group, Team::kConsumers);
        start_scores();
        ptx::mbarrier_wait(barrier + L::v_full + values_at.stage, values_at.parity);
        start_output();
        if (group == 0 || first + kKeys < keys.end) ptx::barrier_arrive(kTurnBarrier + 1 - group, Team::kConsumers);
        ptx::wgmma_wait<1>(s);
        keys_at.next();
        const bool begins = first % kPieceKeys == 0;
        MergeFactors merge[2];
        if (begins) end_piece(merge), piece[0].clear(), piece[1].clear();
        hide();
        soften();
        ptx::keep_before_wait(piece[0].total[0]);
        ptx::wgmma_wait<0>(o);
        release(barrier + L::empty + values_at.stage);
        values_at.next();
        pack<kKeys>(p, s);
        if (begins) {
          add_piece(merge);
#pragma unroll
          for (float& x : o) x = 0;
        } else {
#pragma unroll
          for (int i = 0; i < dim / 2; ++i) o[i] *= factor[i / 2 % 2];
        }
      }
      release(barrier + L::q_empty);
      queries.next();
      ptx::mbarrier_wait(barrier + L::v_full + values_at.stage, values_at.parity);
      if (keys.end < first)
        clear_values<dim>(shared + L::kV + values_at.stage * L::kTile, keys.end - (first - kKeys), kKeys);
      start_output();
      ptx::wgmma_wait<0>(o);
      release(barrier + L::empty + values_at.stage);
      values_at.next();
      if (a.out.partial) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float total = piece[r].whole();
          if (!wanted(r)) continue;
          float* const to = a.out.partial + (int64_t{work.number} * kRows + row_of(r)) * partial_row(dim);
#pragma unroll
          for (int i = 2 * r; i < dim / 2; i += 4)
            *reinterpret_cast<float2*>(to + i / 4 * 8 + fragment_column()) = make_float2(o[i], o[i + 1]);
          if (fragment_column() == 0) to[dim] = piece[r].top, to[dim + 1] = total;
        }
        continue;
      }
      MergeFactors merge[2];
      end_piece(merge), add_piece(merge);
    }
    if (a.out.partial) continue;
    const ItemHeads heads = heads_of(shape, work.column);
    bf16* to[2];
    float inverse[2];
    bool write[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int query = work.item.first + row_of(r) / heads.count, head = heads.first + row_of(r) % heads.count;
      write[r] = wanted(r);
      inverse[r] = finish_row(all_top[r], all_total[r], a.out.sinks && write[r] ? a.out.sinks + head : nullptr);
      to[r] = static_cast<bf16*>(a.out.o) + (int64_t{query} * shape.heads + head) * dim;
    }
    store_rows<dim>(all_o, inverse, to, write, dim);
  }
}

template <int dim>
__global__ void __launch_bounds__(Team::kThreads, 1)
    paged_sm90_kernel(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                      const __grid_constant__ TensorMap v_map, const __grid_constant__ Arguments a) {
#if QENG_SM90
  using L = Layout<dim>;
  ptx::begin_ahead();
  if (threadIdx.x == 0) {
    uint64_t* const barrier = barriers_of<L>();
    init_ring(barrier + L::item_full, barrier + L::item_empty, kItems, Team::kConsumerWarps + kFetchers - 1);
    init_ring(barrier + L::q_full, barrier + L::q_empty, 1, Team::kConsumerWarps);
    init_ring(barrier + L::k_full, barrier + L::empty, kStages, Team::kConsumerWarps);
    for (int i = 0; i < kStages; ++i) ptx::mbarrier_init(barrier + L::v_full + i, 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x < kGroup) {
    ptx::registers_give<Team::kFew>();
    produce<dim>(q_map, k_map, v_map, a);
  } else {
    ptx::registers_take<Team::kMany>();
    consume<dim>(a);
  }
#else
  __trap();
#endif
}

// Rows of a pool that lie beside each other in each page, and begin at a multiple of so many.
int box_rows(int page_tokens) { return std::gcd(page_tokens, kKeys); }

template <int dim>
void queue(const PagedAttention& op, const PagedOutput& out, CudaContext& context) {
  using L = Layout<dim>;
  static_assert(L::kBytes <= kSharedLimit);
  const PagedShape& shape = out.shape;
  const int box = box_rows(shape.page_tokens);
  const Arguments a{op.pages.as<int32_t>(), op.scale * kLog2e, box, kKeys / box, out, context.fault};
  const int64_t items = int64_t{shape.most_tiles} * shape.most_pieces * shape.columns;
  const auto grid = static_cast<unsigned>(std::min<int64_t>(items, context.multiprocessors));
  QENG_LAUNCH_AHEAD(context, paged_sm90_kernel<dim>, dim3(grid), dim3(Team::kThreads), L::kBytes,
                    panel_map(op.q, shape.tile_queries, shape.tile_heads), panel_map(op.k_pool, box),
                    panel_map(op.v_pool, box), a);
}

}  // namespace

bool suits_paged_sm90(const PagedAttention& op, const CudaContext& context) {
  const int64_t dim = op.q.shape[2];
  return suits_paged_mma(op, context) && (dim == 64 || dim == 128) && box_rows(op.page_tokens) >= kLeastBox &&
         sm90::suits_sm90(context, op.scale, {op.q, op.k_pool, op.v_pool, op.o});
}

void paged_by_wgmma(const PagedAttention& op, const PagedOutput& out, CudaContext& context) {
  out.shape.dim == 64 ? queue<64>(op, out, context) : queue<128>(op, out, context);
}

}  // namespace qeng
