// What the two passes over a document have in common, the forward one (gated_delta.cu) and the backward one
// (delta_scan_grad.cu). Columns of a state are independent, so a block has a document, a value head and one or two
// times 16 columns, each with warps of two roles: what follows from chunk to chunk is kept short by one, and the other
// does beside it what can wait or be done before. The state is sums in registers of one role and, for products, parts in
// shared memory. What a chunk needs from memory comes while the one before it is at work, where shared memory has room
// for both.
#pragma once
#include "kernels/cuda/delta/delta.h"
#include "kernels/error.h"

namespace qeng {

constexpr int kScanColumns = 16;
constexpr int kScanWarps = kChunk / 16;  // of a role, that share the rows of a chunk
constexpr int kScanRoles = 2;

// What passes leave in memory for the gradient, as parts, of each slot and value head and of each 16 columns:
//   states, dstates: [parts, 16, dim], S^T as the chunk began, and the gradient of S^T that it leaves
//   deltas, ddeltas: [parts, 16, kChunk], D^T, and the gradient of beta R, R being what D comes from
struct DeltaStates {
  bf16 *states = nullptr, *deltas = nullptr, *dstates = nullptr, *ddeltas = nullptr;
};

// The forward pass that fills states and deltas of `kept`.
template <class T>
void keep_delta_states(const Delta<T>& op, const DeltaPrepared& prepared, const DeltaStates& kept,
                       CudaContext& context);
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
// bf16, and rows that are whole 16-byte vectors, and of which GPUs before sm_80 have too little; else operands are read
// from memory as they are needed. kHalves: times 16 columns of a block. kParts: of what is computed.
template <class Type, int kDim, bool kStages, int kColumnHalves, int kNumberParts>
struct ScanForm {
  using T = Type;
  static constexpr int kMostDim = kDim, kHalves = kColumnHalves, kParts = kNumberParts;
  static constexpr bool kStaged = kStages;
  static constexpr int kColumns = kHalves * kScanColumns, kRoleThreads = kScanWarps * kWarp,
                       kThreads = kHalves * kScanRoles * kRoleThreads;
  static constexpr int kPairs = kMostDim / 16 / kScanWarps;  // of a warp's dims, 16 each
  // Dims that products run over: where they are staged zeros fill them up, for loops that end at a constant.
  __device__ static int dims(const Delta<T>& op) { return kStaged ? kMostDim : op.dim; }
};

// A warp's place. Warps of a role share the rows of a chunk, and those that have the state its dims.
template <class Form>
struct ScanPlace {
  int thread = static_cast<int>(threadIdx.x);
  int warp = thread / kWarp % kScanWarps, row = warp * 16, role = thread / Form::kRoleThreads % kScanRoles,
      half = thread / Form::kRoleThreads / kScanRoles;
  int document = static_cast<int>(blockIdx.y);
  int block_column, column, head, value_head, key_head;
  __device__ explicit ScanPlace(const Delta<typename Form::T>& op) {
    const int blocks = op.wide / Form::kColumns, block = static_cast<int>(blockIdx.x);
    block_column = block % blocks * Form::kColumns, column = block_column + half * kScanColumns;
    head = block / blocks, value_head = op.first_value_head() + head, key_head = value_head / op.group;
  }
  __device__ int role_thread() const { return thread % Form::kRoleThreads; }
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
  __device__ void add(const Parts<kA>& left, const Right& right, int row, int dim, int warp) {
#pragma unroll
    for (int p = 0; p < Form::kPairs; ++p) {
      const int d = (p * kScanWarps + warp) * 16;
      if (d < dim) multiply(sums[p], left, right.right_down(row, d));
    }
  }
  template <class Tile>
  __device__ void put(const Tile& tile, int dim, int warp) const {
#pragma unroll
    for (int p = 0; p < Form::kPairs; ++p) {
      const int d = (p * kScanWarps + warp) * 16;
      if (d < dim) tile.put(0, d, sums[p]);
    }
  }
};

// sums += left's 16 columns times a warp's 16 rows of right. Neighbouring dims go into sums apart, for a chain half as long.
template <class Form, class Left, class Right>
__device__ inline void read_state(Sums16 (&sums)[Form::kParts], const Left& state, const Right& right, int row,
                                  int dim) {
  Sums16 odd[Form::kParts] = {};
#pragma unroll
  for (int d = 0; d < dim; d += 32) {
    multiply(sums, state.left(0, d), right.right(row, d));
    if (d + 16 < dim) multiply(odd, state.left(0, d + 16), right.right(row, d + 16));
  }
#pragma unroll
  for (int part = 0; part < Form::kParts; ++part)
    each_sum([&](int n, int i, int, int) { sums[part][n][i] += odd[part][n][i]; });
}

// What a chunk's work reads: T and P, the vectors of DeltaPrepared, the rows of k and q, and the block's columns of v or
// dO. In shared memory where they are staged; the columns have memory of their own, as they may stay longer.
template <class Form>
struct ScanStage {
  using T = typename Form::T;
  static constexpr bool kStaged = Form::kStaged;
  using Matrix = Triangle<Form::kParts, kChunk, kStaged>;
  using Rows = RowsOf<T, kStaged>;
  static constexpr int kRows = kChunk * (Form::kMostDim + kRowGap);
  static constexpr int kBytes = kStaged ? 2 * (2 * Matrix::kElements + 2 * kRows) + kPreparedVectors * kChunk * 4 : 0;
  static constexpr int kValuesBytes = kStaged ? 2 * kChunk * (Form::kColumns + kRowGap) : 0;

  Matrix t, p;
  Rows k, q, values;
  const float* vectors;
  __device__ const float* vector(DeltaVector which) const { return vectors + which * kChunk; }

  // The chunk in a slot, which begins at a row; rows before `first` of it and from `rows` on do not exist. columns: the
  // block's of v or dO, from that row on.
  struct Source {
    int64_t slot, row;
    int rows;
    const T* columns;
    int64_t stride;
    int first = 0;
  };

  __device__ ScanStage(char* memory, char* of_values, const DeltaPrepared& prepared, const Delta<T>& op,
                       const ScanPlace<Form>& place, const Source& from) {
    if constexpr (kStaged) {
      bf16* next = reinterpret_cast<bf16*>(memory);
      t = {next}, p = {next + Matrix::kElements}, next += 2 * Matrix::kElements;
      k = {next, kChunk, Form::kMostDim}, q = {next + kRows, kChunk, Form::kMostDim}, next += 2 * kRows;
      vectors = reinterpret_cast<const float*>(next);
      values = {reinterpret_cast<bf16*>(of_values), kChunk, Form::kColumns};
    } else {
      const int64_t at = from.slot * op.launched_value_heads() + place.head;
      t = {prepared.t + at * Matrix::kElements}, p = {prepared.p + at * Matrix::kElements};
      k = {op.k(from.row, place.key_head), op.columns, from.rows, from.first},
      q = {op.q(from.row, place.key_head), op.columns, from.rows, from.first};
      values = {from.columns, from.stride, from.rows, from.first},
      vectors = prepared.vectors + at * kPreparedVectors * kChunk;
    }
  }

  // These start to fill it, by kThreads threads.
  template <int kThreads>
  __device__ void fetch_matrix(int thread, const Matrix& matrix, const bf16* from, const Delta<T>& op,
                               const ScanPlace<Form>& place, int64_t slot) const {
    if constexpr (kStaged)
      fetch_run<kThreads, Matrix::kElements>(
          thread, matrix.data, from + (slot * op.launched_value_heads() + place.head) * Matrix::kElements);
  }
  template <int kThreads>
  __device__ void fetch_values(int thread, const Source& from) const {
    if constexpr (kStaged)
      fetch_rows<kThreads, kChunk, Form::kColumns>(thread, values, from.columns, from.stride, Form::kColumns, from.rows,
                                                   from.first);
  }
  // T, k, the vectors and, with `queries`, q.
  template <int kThreads>
  __device__ void fetch_chunk(int thread, const DeltaPrepared& prepared, const Delta<T>& op,
                              const ScanPlace<Form>& place, const Source& from, bool queries) const {
    if constexpr (kStaged) {
      fetch_matrix<kThreads>(thread, t, prepared.t, op, place, from.slot);
      constexpr int kFloats = kPreparedVectors * kChunk;
      fetch_run<kThreads, kFloats>(thread, const_cast<float*>(vectors),
                                   prepared.vectors + (from.slot * op.launched_value_heads() + place.head) * kFloats);
      fetch_rows<kThreads, kChunk, Form::kMostDim>(thread, k, op.k(from.row, place.key_head), op.columns, op.dim,
                                                   from.rows, from.first);
      if (queries)
        fetch_rows<kThreads, kChunk, Form::kMostDim>(thread, q, op.q(from.row, place.key_head), op.columns, op.dim,
                                                     from.rows, from.first);
    }
  }
};

// A half's own shared memory: kStates states, kTiles times [16, kChunk], and kFloats floats.
template <class Form, int kStates, int kTiles, int kFloats = 0>
struct ScanHalf {
  using Tile = PartsTile<Form::kParts>;
  static constexpr int kState = Form::kParts * kScanColumns * (Form::kMostDim + kRowGap);
  static constexpr int kRows = Form::kParts * kScanColumns * (kChunk + kRowGap);
  static constexpr int kBytes = 2 * (kStates * kState + kTiles * kRows) + 4 * kFloats;
  bf16* memory;
  __device__ Tile state(int i = 0) const { return {memory + i * kState, kScanColumns, Form::kMostDim}; }
  __device__ Tile rows(int i) const { return {memory + kStates * kState + i * kRows, kScanColumns, kChunk}; }
  __device__ float* floats() const { return reinterpret_cast<float*>(memory + kStates * kState + kTiles * kRows); }
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

// Calls launch(form, grid, bytes of shared memory, stages) for these shapes: bytes(form, stages) says what they take,
// stages are the chunks that shared memory has room for, 1 or 2. The bits do not depend on any of it.
template <int kParts, int kMostHalves, class T, class Bytes, class F>
void with_scan_form(const Delta<T>& op, bool vectors, const CudaContext& context, Bytes bytes_of, F launch) {
  const auto try_form = [&](auto form, int most_stages) {
    using Form = decltype(form);
    for (int stages = most_stages; stages > 0; --stages) {
      const size_t bytes = static_cast<size_t>(bytes_of(form, stages));
      if (bytes > context.shared_limit) continue;
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
            try_form(ScanForm<T, 128, true, 2, kParts>(), 2))
          return;
      if (try_form(ScanForm<T, 128, true, 1, kParts>(), 2)) return;
    }
  }
  if (op.dim <= 128 ? try_form(ScanForm<T, 128, false, 1, kParts>(), 1)
                    : try_form(ScanForm<T, 256, false, 1, kParts>(), 1))
    return;
  fail("unsupported", "gated_delta: key_dim ", op.dim, " in ", sizeof(T) == 4 ? "f32" : "bf16",
       " takes more shared memory than this GPU has (", context.shared_limit >> 10, " KB)");
}

}  // namespace qeng
