// PagedAttention by tensor cores over pools of bf16 or f16 rows, for q in bf16. Keys and values stay in their dtype in
// shared memory, where a step of them arrives while the one before it is used.
//
// Few rows (decoding): each of the four warps has the scores of 16 of a step's 64 keys, and the sums of a quarter of the
// values' columns. Many (a prompt): each has 16 of 64 rows. Every number is made by the same operations in the same
// order both ways, so that a query has the same bits: an element is a chain of products of 16, and the probabilities of
// a step are totalled for each 16 keys apart.
#include "kernels/cuda/attention/paged_piece.h"

namespace qeng {

namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kStep = kStepKeys, kParts = kStepParts;  // keys at a time
static_assert(kParts == kWarps);

// T: bf16 or f16, of pools, and so of queries and probabilities.
template <class T, int kDimension, int kTile>
struct Form {
  using Element = T;
  static constexpr int kDim = kDimension, kRows = kTile;
  static constexpr bool kFew = kRows == 16;
  static constexpr int kColumns = kFew ? kDim / kWarps : kDim;  // of the values, to a warp
  static constexpr int kOwnParts = kFew ? 1 : kParts;           // of the keys
  using Q = SharedTile<kDim, kRows>;
  using K = SharedTile<kDim, kStep>;
  using P = SharedTile<kStep, 16>;  // where warps hand on probabilities
  static constexpr int kStage = 2 * K::kBytes;
  struct Shared {
    PagedItem item;
    int kv_head, heads, first_head, rows;  // first_head: of the heads that rows take in turn
    ItemKeys keys;
    int next;
    int slots[2][kStep];
    int seen[kRows];       // keys below that are seen by a row
    float factors[kRows];  // of the scores of a row, to base 2
    float tops[kWarps][16], totals[kWarps][16];
  };
  static constexpr int kStagesAt = Q::kBytes, kProbabilitiesAt = kStagesAt + 2 * kStage;
  static constexpr int kRestAt = kProbabilitiesAt + (kFew ? P::kBytes : 0);
  static constexpr size_t kShared = kRestAt + sizeof(Shared);
};

struct MmaArguments {
  const bf16 *q, *k_pool, *v_pool;  // the pools may be f16
  const int32_t* pages;
  float scale;  // times log2(e)
  PagedOutput out;
  Fault* fault;
};

template <class T>
__device__ inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, bf16>)
    ptx::mma_bf16(c, a, b0, b1);
  else
    ptx::mma_f16(c, a, b0, b1);
}
template <class T>
__device__ inline uint32_t packed(float low, float high) {
  T two[2];
  put(two, low), put(two + 1, high);
  return static_cast<uint32_t>(two[0].bits) | static_cast<uint32_t>(two[1].bits) << 16;
}

// An item: up to kRows rows, each a query and one of its heads, against some pieces of the keys. What all threads know of it
// lies in shared memory, as registers are few.
template <class F>
struct MmaWorker {
  using T = typename F::Element;
  const MmaArguments& a;
  const PagedShape& shape;
  char* const memory;
  typename F::Shared& s;
  const int lane, warp, g, t, own_row;  // own_row: the warp's first

  float o[F::kColumns / 8][4], all_o[F::kColumns / 8][4];  // of the piece, and of those before
  RowPiece<F::kOwnParts> piece[2];
  float all_top[2], all_total[2];

  __device__ explicit MmaWorker(const MmaArguments& arguments)
      : a(arguments),
        shape(arguments.out.shape),
        memory(shared_memory()),
        s(*reinterpret_cast<typename F::Shared*>(memory + F::kRestAt)),
        lane(static_cast<int>(threadIdx.x) % kWarp),
        warp(static_cast<int>(threadIdx.x) / kWarp),
        g(lane / 4),
        t(lane % 4),
        own_row(F::kFew ? 0 : 16 * warp) {}

  __device__ int64_t row_at(int r) const {  // the first column of row r in q or o
    return (int64_t{s.item.first + r / s.heads} * shape.heads + s.first_head + r % s.heads) * F::kDim;
  }
  __device__ int row_of(int half) const { return own_row + g + 8 * half; }  // of the thread's sums

  __device__ void begin_item(int next) {
    if (threadIdx.x == 0) {
      const PagedItem item = a.out.plan->list()[next / shape.columns];
      const int head_block = next % shape.columns % shape.head_blocks * shape.tile_heads;
      s.item = item;
      s.kv_head = next % shape.columns / shape.head_blocks;
      s.heads = min(shape.tile_heads, shape.group - head_block);
      s.first_head = s.kv_head * shape.group + head_block;
      s.rows = item.queries * s.heads;
      s.keys = keys_of(shape, item);
    }
    __syncthreads();
    for (int r = static_cast<int>(threadIdx.x); r < F::kRows; r += kThreads)
      s.seen[r] = r < s.rows ? s.item.seen + r / s.heads : 0;
    // Rows of q, in f16 times a power of two that brings the largest element to 2^14, so that nothing is lost but what is
    // 2^-30 of it.
    for (int r = warp; r < F::kRows; r += kWarps) {
      const bf16* q = r < s.rows ? a.q + row_at(r) : nullptr;
      float up = 1, down = 1;
      if constexpr (!std::is_same_v<T, bf16>) {
        float largest = 0;
        for (int d = lane; d < F::kDim; d += kWarp) largest = fmaxf(largest, q ? fabsf(to_f32(q[d])) : 0.0f);
        const uint32_t exponent = min(max(bits_of(warp_max(largest)) >> 23, 16u), 250u);
        up = float_of((268 - exponent) << 23), down = float_of((exponent - 14) << 23);
      }
      for (int d = lane; d < F::kDim; d += kWarp)
        put(reinterpret_cast<T*>(memory + F::Q::offset(r, d / 8)) + d % 8, q ? to_f32(q[d]) * up : 0.0f);
      if (lane == 0) s.factors[r] = down * a.scale;
    }
    clear_piece();
#pragma unroll
    for (int half = 0; half < 2; ++half) all_top[half] = kMasked, all_total[half] = 0;
#pragma unroll
    for (auto& tile : all_o)
#pragma unroll
      for (float& x : tile) x = 0;
  }
  __device__ void clear_piece() {
#pragma unroll
    for (auto& row : piece) row.clear();
#pragma unroll
    for (auto& tile : o)
#pragma unroll
      for (float& x : tile) x = 0;
  }

  // Looks up where keys first .. first + kStep are; -1 where no row sees one.
  __device__ void find(int first, int turn) {
    if (threadIdx.x >= kStep) return;
    const int key = first + static_cast<int>(threadIdx.x);
    s.slots[turn][threadIdx.x] = key >= s.keys.lowest && key < s.keys.end
                                     ? slot_of(shape, a.pages, shape.pool_pages, s.item.sequence, key, a.fault)
                                     : -1;
  }
  __device__ char* keys(int turn) const { return memory + F::kStagesAt + turn * F::kStage; }
  __device__ char* values(int turn) const { return keys(turn) + F::K::kBytes; }
  // Starts copying them: eight threads to 128 bytes of a row.
  __device__ void fetch(int turn) {
    const int column = static_cast<int>(threadIdx.x) % 8;
#pragma unroll(F::kFew ? 4 : 1)  // addresses that are kept take registers
    for (int row = static_cast<int>(threadIdx.x) / 8; row < kStep; row += kThreads / 8) {
      const int slot = s.slots[turn][row];
      const int64_t at = slot < 0 ? 0 : (int64_t{slot} * shape.kv_heads + s.kv_head) * F::kDim;
#pragma unroll
      for (int chunk = column; chunk < F::kDim / 8; chunk += 8) {
        const int to = F::K::offset(row, chunk);
        ptx::cp_async_16(keys(turn) + to, a.k_pool + at + chunk * 8, slot < 0 ? 0 : 16);
        ptx::cp_async_16(values(turn) + to, a.v_pool + at + chunk * 8, slot < 0 ? 0 : 16);
      }
    }
    ptx::cp_async_commit();
  }

  // The warp's scores against its keys of a step that begins with key `first`.
  __device__ void score(int first, int turn, float (&scores)[2 * F::kOwnParts][4]) const {
    const int q_lane = lane_offset<typename F::Q>(), k_lane = lane_offset<typename F::K>();
    const int part = F::kFew ? warp : 0;
#pragma unroll
    for (auto& tile : scores)
#pragma unroll
      for (float& x : tile) x = 0;
#pragma unroll(F::kFew ? F::kDim / 16 : 2)  // what is read ahead takes registers
    for (int d = 0; d < F::kDim / 16; ++d) {
      uint32_t q[4];
      ptx::ldmatrix_x4(q, memory + F::Q::moved(q_lane, own_row, 2 * d));
#pragma unroll
      for (int n = 0; n < F::kOwnParts; ++n) {
        uint32_t b[4];
        ptx::ldmatrix_x4(b, keys(turn) + F::K::moved(k_lane, 16 * (part + n), 2 * d));
        multiply<T>(scores[2 * n], q, b[0], b[2]);
        multiply<T>(scores[2 * n + 1], q, b[1], b[3]);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = row_of(half), high = s.seen[r];
      const int low = shape.window > 0 ? high - shape.window : 0;
      const float factor = s.factors[r];
#pragma unroll
      for (int n = 0; n < 2 * F::kOwnParts; ++n)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          const int key = first + 16 * part + 8 * n + 2 * t + e % 2;
          scores[n][e] = key < high && key >= low ? __fmul_rn(scores[n][e], factor) : kMasked;
        }
    }
  }

  // A step: scores, the softmax, sums of values.
  __device__ void attend(int first, int turn) {
    float scores[2 * F::kOwnParts][4];
    score(first, turn, scores);
    float tops[2] = {kMasked, kMasked};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (auto& tile : scores) tops[half] = fmaxf(tops[half], fmaxf(tile[2 * half], tile[2 * half + 1]));
      tops[half] = quad_max(tops[half]);
      if (F::kFew && t == 0) s.tops[warp][g + 8 * half] = tops[half];
    }
    if constexpr (F::kFew) {
      __syncthreads();
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int w = 0; w < kWarps; ++w) tops[half] = fmaxf(tops[half], s.tops[w][g + 8 * half]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float factor =
          piece[half].raise(tops[half], [&](int i) -> float& { return scores[i / 2][2 * half + i % 2]; });
#pragma unroll
      for (auto& tile : o) tile[2 * half] *= factor, tile[2 * half + 1] *= factor;
    }
    add_values(turn, scores);
  }

  __device__ void add_values(int turn, const float (&scores)[2 * F::kOwnParts][4]) {
    const int v_lane = lane_offset<typename F::K>();
    const int first_chunk = F::kFew ? warp * (F::kColumns / 8) : 0;
    if constexpr (F::kFew) {
      char* const to = memory + F::kProbabilitiesAt;
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          *reinterpret_cast<uint32_t*>(to + F::P::offset(g + 8 * half, 2 * warp + n) + 4 * t) =
              packed<T>(scores[n][2 * half], scores[n][2 * half + 1]);
      __syncthreads();
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      uint32_t p[4];
      if constexpr (F::kFew) {
        ptx::ldmatrix_x4(p, memory + F::kProbabilitiesAt + F::P::moved(lane_offset<typename F::P>(), 0, 2 * part));
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          p[i] = packed<T>(scores[2 * part + i / 2][i % 2 * 2], scores[2 * part + i / 2][i % 2 * 2 + 1]);
      }
#pragma unroll
      for (int d = 0; d < F::kColumns / 16; ++d) {
        uint32_t b[4];
        ptx::ldmatrix_x4_trans(b, values(turn) + F::K::moved(v_lane, 16 * part, first_chunk + 2 * d));
        multiply<T>(o[2 * d], p, b[0], b[1]);
        multiply<T>(o[2 * d + 1], p, b[2], b[3]);
      }
    }
  }

  // The piece's sums to memory, or into those before it.
  __device__ void end_piece(int next) {
    float whole[2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if constexpr (F::kFew) {
        const float own = piece[half].whole();
        if (t == 0) s.totals[warp][g + 8 * half] = own;
      } else {
        whole[half] = piece[half].whole();
      }
    if constexpr (F::kFew) {
      __syncthreads();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        whole[half] = s.totals[0][g + 8 * half];
#pragma unroll
        for (int w = 1; w < kWarps; ++w) whole[half] += s.totals[w][g + 8 * half];
      }
    }
    const int column = (F::kFew ? warp * F::kColumns : 0) + 2 * t;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (a.out.partial) {
        const int r = row_of(half);
        if (r >= s.rows) continue;
        float* const to = a.out.partial + (int64_t{next} * F::kRows + r) * partial_row(F::kDim);
#pragma unroll
        for (int i = 0; i < F::kColumns / 8; ++i)
          *reinterpret_cast<float2*>(to + column + 8 * i) = make_float2(o[i][2 * half], o[i][2 * half + 1]);
        if (column == 0) to[F::kDim] = piece[half].top, to[F::kDim + 1] = whole[half];
        continue;
      }
      const MergeFactors factors = merge_pieces(all_top[half], all_total[half], piece[half].top, whole[half]);
#pragma unroll
      for (int i = 0; i < F::kColumns / 8; ++i)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) all_o[i][e] = merged(all_o[i][e], o[i][e], factors);
    }
    clear_piece();
  }

  __device__ void write() const {
    const int column = (F::kFew ? warp * F::kColumns : 0) + 2 * t;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = row_of(half);
      if (r >= s.rows) continue;
      const float* sink = a.out.sinks ? a.out.sinks + s.first_head + r % s.heads : nullptr;
      const float factor = finish_row(all_top[half], all_total[half], sink);
      const int64_t at = row_at(r) + column;
#pragma unroll
      for (int i = 0; i < F::kColumns / 8; ++i)
#pragma unroll
        for (int e = 0; e < 2; ++e) put_output(a.out, at + 8 * i + e, all_o[i][2 * half + e] * factor);
    }
  }
};

template <class F>
__global__ void __launch_bounds__(kThreads) paged_mma_kernel(const __grid_constant__ MmaArguments a) {
  if (!ptx::from_sm80()) return;
  ptx::begin_ahead();
  MmaWorker<F> worker(a);
  const PagedShape& shape = a.out.shape;
  for (int next = next_item(a.out.plan, shape.columns, &worker.s.next); next < a.out.plan->items * shape.columns;
       next = next_item(a.out.plan, shape.columns, &worker.s.next)) {
    worker.begin_item(next);
    worker.find(worker.s.keys.begin, 0);
    __syncthreads();
    // Nobody would wait for copies of an item without keys, and they could land among the next item's.
    if (worker.s.keys.begin < worker.s.keys.end) worker.fetch(0);
    worker.find(worker.s.keys.begin + kStep, 1);
    int turn = 0;
    for (int key = worker.s.keys.begin; key < worker.s.keys.end; key += kStep, turn ^= 1) {
      ptx::cp_async_wait<0>();
      __syncthreads();  // this step is there, the next one's slots too, and nobody needs the step before
      if (key + kStep < worker.s.keys.end) worker.fetch(turn ^ 1);
      worker.find(key + 2 * kStep, turn);
      worker.attend(key, turn);
      if ((key + kStep) % kPieceKeys == 0 || key + kStep >= worker.s.keys.end) worker.end_piece(next);
    }
    if (!a.out.partial) worker.write();
  }
}

template <class F>
bool launch_mma(const PagedAttention& op, const PagedOutput& out, CudaContext& context) {
  const MmaArguments a{op.q.as<bf16>(),        op.k_pool.as<bf16>(), op.v_pool.as<bf16>(),
                       op.pages.as<int32_t>(), op.scale * kLog2e,    out,
                       context.fault};
  const int64_t most_items = int64_t{out.shape.most_tiles} * out.shape.most_pieces * out.shape.columns;
  QENG_LAUNCH_AHEAD(context, paged_mma_kernel<F>, plan_blocks(most_items, context), dim3(kThreads), F::kShared, a);
  return true;
}
template <class T, int kDim>
bool launch_rows(const PagedAttention& op, const PagedOutput& out, CudaContext& context) {
  if constexpr (kDim <= 128)
    if (out.shape.tile_rows == kManyTileRows) return launch_mma<Form<T, kDim, kManyTileRows>>(op, out, context);
  return launch_mma<Form<T, kDim, kTileRows>>(op, out, context);
}
template <class T>
bool launch_dims(const PagedAttention& op, const PagedOutput& out, CudaContext& context) {
  switch (out.shape.dim) {
    case 64: return launch_rows<T, 64>(op, out, context);
    case 128: return launch_rows<T, 128>(op, out, context);
    default: return launch_rows<T, 256>(op, out, context);
  }
}

}  // namespace

// Nothing here may depend on the batch: a query goes the same way in all of them.
bool suits_paged_mma(const PagedAttention& op, const CudaContext& context) {
  const int64_t dim = op.q.shape[2];
  const DType stored = op.k_pool.dtype;
  return context.tensor_bf16() && op.q.dtype == DType::bf16 && !op.k_levels && !op.v_levels &&
         op.v_pool.dtype == stored && (stored == DType::bf16 || stored == DType::f16) && op.o.shape[2] == dim &&
         op.softcap == 0 && op.scale > 0 &&
         (dim == 64 || dim == 128 || (dim == 256 && Form<bf16, 256, kTileRows>::kShared <= context.shared_limit)) &&
         aligned(op.k_pool.data, 16) && aligned(op.v_pool.data, 16);
}

void paged_by_mma(const PagedAttention& op, const PagedOutput& out, CudaContext& context) {
  op.k_pool.dtype == DType::bf16 ? launch_dims<bf16>(op, out, context) : launch_dims<f16>(op, out, context);
}

}  // namespace qeng
