#include "kernels/cuda/linear/stored.h"
#include "kernels/cuda/vector.h"
#include "kernels/error.h"
#include "kernels/math/blocks/with_block.h"
#include "kernels/view_text.h"

namespace qeng {

namespace {

// f16 and bf16 as blocks of 8 where rows are whole ones, and element by element.
template <class T, int n>
struct Halves {
  static constexpr int kElements = n;
  T x[n];
};

template <class Block>
constexpr int kRun = Block::kElements < 8 ? Block::kElements : 8;

template <class Block>
__device__ void decode_run(const Block& b, int first, float (&values)[kRun<Block>]) {
  if constexpr (requires { b.x; }) {
    for (int i = 0; i < kRun<Block>; ++i) values[i] = to_f32(b.x[i]);
  } else {
    static_assert(Block::kGroup % kRun<Block> == 0);  // one scale for the run
    const int group = first / Block::kGroup;
    const float d = scale(b, group);
    float m = 0;
    if constexpr (Block::kHasMin) m = min(b, group);
#pragma unroll
    for (int i = 0; i < kRun<Block>; ++i) {
      const float value = static_cast<float>(code(b, first + i));
      values[i] = Block::kHasMin ? blocks::times_minus(d, value, m) : d * value;
    }
  }
}

// Eight bits of a byte as signs of 1, and eight pairs.
__device__ void decode_run(const blocks::OneBit& b, int first, float (&values)[8]) {
  const uint32_t minus = ~static_cast<uint32_t>(b.qs[first / 8]);
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] = float_of(0x3f800000u | (minus << (31 - i) & 0x80000000u));
}
__device__ void decode_run(const blocks::Ternary& b, int first, float (&values)[8]) {
  const uint32_t pairs = *reinterpret_cast<const uint16_t*>(b.qs + first / 4);
#pragma unroll
  for (int i = 0; i < 8; ++i)
    values[i] = static_cast<float>(static_cast<int>(pairs >> (2 * i) & 1) - static_cast<int>(pairs >> (2 * i + 1) & 1));
}

constexpr int kDecodeThreads = 128;

struct Decoding {
  const void* table;
  int64_t row_blocks;     // of a stored row
  int64_t row, block;     // the first of each
  int64_t runs;           // of a row of y
  const int32_t* tokens;  // or null
  int64_t table_rows;
  void* y;
  DType out;
  bool vectors;     // y is aligned to 16 bytes, and so are its rows
  unsigned pieces;  // thread blocks to a row
  Fault* fault;
};

template <class T, int n>
__device__ void write_run(void* y, int64_t i, const float (&values)[n], bool vectors) {
  T* to = static_cast<T*>(y) + i;
  if constexpr (n > 1)
    if (vectors) return store(to, pack<T>(values));
#pragma unroll
  for (int k = 0; k < n; ++k) put(to + k, values[k]);
}

// A thread decodes a run of 8 weights (1 where the format has no more): one scale and, of 4-bit codes, 4 to 8 bytes,
// which neighbouring lanes share, so that the first-level cache turns them into whole lines.
template <class Block>
__global__ void __launch_bounds__(kDecodeThreads) decode_blocks(Decoding d) {
  const int64_t i = blockIdx.x / d.pieces, run = int64_t{blockIdx.x % d.pieces} * kDecodeThreads + threadIdx.x;
  if (run >= d.runs) return;
  int64_t row = d.tokens ? d.tokens[i] : d.row + i;
  if (row < 0 || row >= d.table_rows) {
    if (run == 0) report(d.fault, FaultKind::token, i, row, d.table_rows);
    row = 0;
  }
  const int64_t first = run * kRun<Block>;
  const Block* block = static_cast<const Block*>(d.table) + row * d.row_blocks + d.block + first / Block::kElements;
  float values[kRun<Block>];
  decode_run(*block, static_cast<int>(first % Block::kElements), values);
  const int64_t at = i * d.runs * kRun<Block> + first;
  if (d.out == DType::f32)
    write_run<float>(d.y, at, values, d.vectors);
  else if (d.out == DType::bf16)
    write_run<bf16>(d.y, at, values, d.vectors);
  else
    write_run<f16>(d.y, at, values, d.vectors);
}

template <class Block>
void launch_decoding(const char* name, const DecodeRows& rows, CudaContext& context) {
  Decoding d;
  d.table = rows.table.data, d.row_blocks = rows.table.columns() / Block::kElements;
  d.row = rows.row, d.block = rows.column / Block::kElements, d.runs = rows.columns / kRun<Block>;
  d.tokens = rows.tokens, d.table_rows = rows.table.rows();
  d.y = rows.y, d.out = rows.out, d.vectors = aligned(rows.y, 16);
  d.pieces = static_cast<unsigned>(ceil_div(d.runs, kDecodeThreads)), d.fault = context.fault;
  const int64_t grid = rows.rows * d.pieces;
  if (grid == 0) return;
  if (grid > INT32_MAX)
    fail("unsupported", name, ": ", shape_text(rows.table), " has more blocks than one launch takes");
  QENG_LAUNCH(context, decode_blocks<Block>, dim3(static_cast<unsigned>(grid)), dim3(kDecodeThreads), 0, d);
}

}  // namespace

void decode_rows(const char* name, const DecodeRows& rows, CudaContext& context) {
  const bool whole = rows.table.columns() % 8 == 0 && rows.column % 8 == 0 && rows.columns % 8 == 0;
  const auto halves = [&](auto one) {
    using T = decltype(one);
    whole ? launch_decoding<Halves<T, 8>>(name, rows, context) : launch_decoding<Halves<T, 1>>(name, rows, context);
  };
  if (rows.table.dtype == DType::f16) return halves(f16{});
  if (rows.table.dtype == DType::bf16) return halves(bf16{});
  blocks::with_block(rows.table.dtype, [&](auto tag) { launch_decoding<decltype(tag)>(name, rows, context); });
}

}  // namespace qeng
