// What the two passes over a document have in common, the forward one (gated_delta.cu) and the backward one
// (delta_scan_grad.cu). Columns of a state are independent, so a block has a document, a value head and one or two
// times 16 columns, for each of which some warps share the dims of the state and the rows of a chunk. The state is sums
// in registers and, for products, parts in shared memory. What a chunk needs from memory comes while the one before it
// is at work, where shared memory has room for both.
#pragma once
#include "kernels/cuda/delta/delta.h"

namespace qeng {

constexpr int kScanColumns = 16;
constexpr int kScanWarps = kChunk / 16;  // that share the rows of a chunk

// What passes leave in memory for the gradient, as parts, of each slot and value head and of each 16 columns:
//   states, dstates: [parts, 16, dim], S^T as the chunk began, and the gradient of S^T that it leaves
//   deltas, ddeltas: [parts, 16, kChunk], D^T, and the gradient of beta R, R being what D comes from
struct DeltaStates {
  bf16 *states = nullptr, *deltas = nullptr, *dstates = nullptr, *ddeltas = nullptr;
};

// Fills o, or `kept` where that is not null.
template <class T>
void scan_delta(const Delta<T>& op, const DeltaPrepared& prepared, const DeltaStates* kept, T* o, CudaContext& context);
// The paged form (paged_delta.cu).
template <class T>
void run_paged_delta(const GatedDelta& op, const Delta<T>& delta, CudaContext& context);

// Calls f(n, i, row, column) for each sum c[n][i] that the thread holds.
template <class F>
__device__ inline void each_sum(F f) {
  const int g = static_cast<int>(threadIdx.x) % kWarp / 4, t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) f(n, i, g + i / 2 * 8, 8 * n + 2 * t + i % 2);
}

// How a pass is compiled. kMostDim: its dims are at most. kStaged: x, and dO, come by way of shared memory, which takes
// bf16, and rows that are whole 16-byte vectors; else operands are read from memory as they are needed. kHalves: times
// 16 columns of a block. kSharers: warps to each half.
template <class Type, int kDim, bool kStages, int kColumnHalves, int kWarpsOfHalf>
struct ScanForm {
  using T = Type;
  static constexpr int kMostDim = kDim, kHalves = kColumnHalves, kSharers = kWarpsOfHalf, kParts = kDerived<T>;
  static constexpr bool kStaged = kStages;
  static constexpr int kColumns = kHalves * kScanColumns, kThreads = kHalves * kSharers * kWarp;
  static constexpr int kPairs = kMostDim / 16 / kSharers;  // of a warp's dims, 16 each
  // Dims that products run over: where they are staged zeros fill them up, for loops that end at a constant.
  __device__ static int dims(const Delta<T>& op) { return kStaged ? kMostDim : op.dim; }
};

// The first role's warps share the state, also where there is a second.
template <class Form>
struct StateForm : Form {
  static constexpr int kSharers = kScanWarps, kPairs = Form::kMostDim / 16 / kScanWarps;
};

// A warp's place. Warps of a half share the dims of its state; those of a role, kScanWarps of them, the rows of a chunk.
template <class Form>
struct ScanPlace {
  int thread = static_cast<int>(threadIdx.x);
  int half = thread / kWarp / Form::kSharers, sharer = thread / kWarp % Form::kSharers;
  int role = sharer / kScanWarps, row = sharer % kScanWarps * 16;
  int document = static_cast<int>(blockIdx.y);
  int block_column, column, head, value_head, key_head;
  __device__ explicit ScanPlace(const Delta<typename Form::T>& op) {
    const int blocks = op.wide / Form::kColumns, block = static_cast<int>(blockIdx.x);
    block_column = block % blocks * Form::kColumns, column = block_column + half * kScanColumns;
    head = block / blocks, value_head = op.first_value_head() + head, key_head = value_head / op.group;
  }
};

// The warp's share of S^T, or of its gradient.
template <class Form>
struct State {
  Sums16 sums[Form::kPairs] = {};
  __device__ void scale(float factor) {
#pragma unroll
    for (auto& pair : sums) each_sum([&](int n, int i, int, int) { pair[n][i] *= factor; });
  }
  // Adds left times 16 rows of right.
  template <int kA, class Right>
  __device__ void add(const Parts<kA>& left, const Right& right, int row, int dim, int sharer) {
#pragma unroll
    for (int p = 0; p < Form::kPairs; ++p) {
      const int d = (p * Form::kSharers + sharer) * 16;
      if (d < dim) multiply(sums[p], left, right.right_down(row, d));
    }
  }
  template <class Tile>
  __device__ void put(const Tile& tile, int dim, int sharer) const {
#pragma unroll
    for (int p = 0; p < Form::kPairs; ++p) {
      const int d = (p * Form::kSharers + sharer) * 16;
      if (d < dim) tile.put(0, d, sums[p]);
    }
  }
};

// What a chunk's work reads: T and P, the vectors of DeltaPrepared, the rows of k and q, and the block's columns of v or
// dO. In shared memory where they are staged.
template <class Form>
struct ScanStage {
  using T = typename Form::T;
  static constexpr bool kStaged = Form::kStaged;
  static constexpr int kMatrix = Form::kParts * kChunk * (kChunk + kRowGap);
  static constexpr int kRows = kChunk * (Form::kMostDim + kRowGap), kValues = kChunk * (Form::kColumns + kRowGap);
  static constexpr int kBytes = kStaged ? 2 * (2 * kMatrix + 2 * kRows + kValues) + kPreparedVectors * kChunk * 4 : 0;
  using Matrix = std::conditional_t<kStaged, PartsTile<Form::kParts>, MemoryParts<Form::kParts, kChunk>>;
  using Rows = RowsOf<T, kStaged>;

  Matrix t, p;
  Rows k, q, values;
  const float* vectors;
  __device__ const float* vector(DeltaVector which) const { return vectors + which * kChunk; }

  // The stage at `memory` of the chunk in a slot, which begins at a row; rows before `first` of it and from `rows` on do
  // not exist. columns: the block's of v or dO, from that row on.
  __device__ ScanStage(char* memory, const DeltaPrepared& prepared, const Delta<T>& op, const ScanPlace<Form>& place,
                       int64_t slot, int64_t row, int rows, const T* columns, int64_t stride, int first = 0) {
    if constexpr (kStaged) {
      bf16* next = reinterpret_cast<bf16*>(memory);
      t = {next, kChunk, kChunk}, p = {next + kMatrix, kChunk, kChunk}, next += 2 * kMatrix;
      k = {next, kChunk, Form::kMostDim}, q = {next + kRows, kChunk, Form::kMostDim}, next += 2 * kRows;
      values = {next, kChunk, Form::kColumns}, vectors = reinterpret_cast<const float*>(next + kValues);
    } else {
      const int64_t at = slot * op.launched_value_heads() + place.head;
      t = {prepared.t + at * Form::kParts * kChunk * kChunk}, p = {prepared.p + at * Form::kParts * kChunk * kChunk};
      k = {op.k(row, place.key_head), op.columns, rows, first},
      q = {op.q(row, place.key_head), op.columns, rows, first};
      values = {columns, stride, rows, first}, vectors = prepared.vectors + at * kPreparedVectors * kChunk;
    }
  }

  // Starts to fill it, as a group of copies. queries: with q and P.
  __device__ void fetch(const DeltaPrepared& prepared, const Delta<T>& op, const ScanPlace<Form>& place, int64_t slot,
                        int64_t row, int rows, const T* columns, int64_t stride, bool queries, int first = 0) const {
    if constexpr (kStaged) {
      const int64_t at = slot * op.launched_value_heads() + place.head;
      const int thread = ptx::opaque(place.thread);  // else addresses are kept in registers from chunk to chunk
      const auto own = static_cast<unsigned>(thread);
      const auto lower = [&](const Matrix& matrix, const bf16* from) {  // blocks above the diagonal nobody reads
        constexpr unsigned kChunks = kChunk / 8, kAtOnce = Form::kThreads / kChunks, kLines = Form::kParts * kChunk;
        static_assert(kChunk % kAtOnce == 0 || kAtOnce % kChunk == 0);
        const unsigned line = own / kChunks, chunk = own % kChunks;
        bf16* to = matrix.data + line * (kChunk + kRowGap) + chunk * 8;
        from += own * 8;  // where lines have no gaps
#pragma unroll
        for (unsigned i = 0; i < kLines; i += kAtOnce)
          if (chunk / 2 <= (line + i) % kChunk / 16 && (kLines % kAtOnce == 0 || line + i < kLines))
            ptx::cp_async_16(to + i * (kChunk + kRowGap), from + i * kChunk);
      };
      lower(t, prepared.t + at * Form::kParts * kChunk * kChunk);
      if (queries) lower(p, prepared.p + at * Form::kParts * kChunk * kChunk);
      constexpr unsigned kVectors = kPreparedVectors * kChunk / 4;
      float* to = const_cast<float*>(vectors) + 4 * own;
      const float* from = prepared.vectors + at * kPreparedVectors * kChunk + 4 * own;
#pragma unroll
      for (unsigned i = 0; i < kVectors; i += Form::kThreads)
        if (own + i < kVectors) ptx::cp_async_16(to + 4 * i, from + 4 * i);
      fetch_rows<Form::kThreads, kChunk, Form::kMostDim>(thread, k, op.k(row, place.key_head), op.columns, op.dim, rows,
                                                         first);
      if (queries)
        fetch_rows<Form::kThreads, kChunk, Form::kMostDim>(thread, q, op.q(row, place.key_head), op.columns, op.dim,
                                                           rows, first);
      fetch_rows<Form::kThreads, kChunk, Form::kColumns>(thread, values, columns, stride, Form::kColumns, rows, first);
    }
    ptx::cp_async_commit();
  }
};

// A half's own shared memory: the state, kTiles times [16, kChunk], and kFloats floats.
template <class Form, int kTiles, int kFloats = 0>
struct ScanHalf {
  using Tile = PartsTile<Form::kParts>;
  static constexpr int kState = Form::kParts * kScanColumns * (Form::kMostDim + kRowGap);
  static constexpr int kRows = Form::kParts * kScanColumns * (kChunk + kRowGap);
  static constexpr int kBytes = 2 * (kState + kTiles * kRows) + 4 * kFloats;
  bf16* memory;
  __device__ Tile state() const { return {memory, kScanColumns, Form::kMostDim}; }
  __device__ Tile rows(int i) const { return {memory + kState + i * kRows, kScanColumns, kChunk}; }
  __device__ float* floats() const { return reinterpret_cast<float*>(memory + kState + kTiles * kRows); }
};

// Writes a warp's sums, 16 columns of 16 rows, to rows of memory `stride` elements apart, of which there are `rows`.
// turned: shared memory of kTurned bytes of each warp's own, where rows are turned to be whole.
constexpr int kTurnedPitch = kScanColumns + kRowGap, kTurned = 16 * kTurnedPitch * 2;
template <class Form>
__device__ inline void store_columns(const Sums16& sums, int rows, typename Form::T* to, int64_t stride, void* turned) {
  if constexpr (Form::kStaged) {
    bf16* mine = static_cast<bf16*>(turned);
    each_sum([&](int n, int i, int column, int row) { put(mine + row * kTurnedPitch + column, sums[n][i]); });
    __syncwarp();
    const int lane = static_cast<int>(threadIdx.x) % kWarp, row = lane / 2, column = lane % 2 * 8;
    if (row < rows)
      *reinterpret_cast<uint4*>(to + row * stride + column) =
          *reinterpret_cast<const uint4*>(mine + row * kTurnedPitch + column);
  } else {
    each_sum([&](int n, int i, int column, int row) {
      if (row < rows) put(to + row * stride + column, sums[n][i]);
    });
  }
}

// Calls launch(form, grid, bytes of shared memory, stages) for these shapes: stages are the chunks that shared memory
// has room for. The bits do not depend on any of it.
template <int kSharers, int kTiles, int kFloats = 0, int kMostHalves = 2, class T, class F>
void with_scan_form(const Delta<T>& op, bool vectors, const CudaContext& context, F launch) {
  const auto try_form = [&](auto form, int most_stages) {
    using Form = decltype(form);
    for (int stages = most_stages; stages > 0; --stages) {
      const size_t bytes = static_cast<size_t>(Form::kHalves * ScanHalf<Form, kTiles, kFloats>::kBytes +
                                               stages * ScanStage<Form>::kBytes);
      if (stages > 1 && bytes > context.shared_limit) continue;
      if (bytes > context.shared_limit) return false;
      const dim3 grid(static_cast<unsigned>(op.heads * op.group * (op.wide / Form::kColumns)),
                      static_cast<unsigned>(op.documents));
      launch(form, grid, bytes, stages);
      return true;
    }
    return false;
  };
  if constexpr (std::is_same_v<T, bf16>) {
    if (vectors && op.dim <= 128) {
      // Twice 16 columns read the rows of x half as often, and are better where 16 are more blocks than run at once.
      const int64_t blocks = int64_t{op.heads} * op.group * (op.wide / 32) * op.documents;
      if constexpr (kMostHalves == 2)
        if (op.wide % 32 == 0 && 2 * blocks > context.multiprocessors &&
            try_form(ScanForm<T, 128, true, 2, kSharers>(), 2))
          return;
      if (try_form(ScanForm<T, 128, true, 1, kSharers>(), 2)) return;
    }
  }
  if (op.dim <= 128 ? try_form(ScanForm<T, 128, false, 1, kSharers>(), 1)
                    : try_form(ScanForm<T, 256, false, 1, kSharers>(), 1))
    return;
  fail("unsupported", "gated_delta: this GPU has too little shared memory");
}

}  // namespace qeng
