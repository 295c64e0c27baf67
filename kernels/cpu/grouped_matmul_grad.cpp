// GroupedMatmulGrad: f32 products of tiles, each on one thread, for all experts in one region. Rows whose dy is zero
// change no bit.
#include <algorithm>

#include "kernels/cpu/grouped_matmul.h"

namespace qeng {
namespace {

constexpr int64_t kTileRows = isa::kOrderedRows, kTileColumns = 512;  // of dw

// A tile of one expert's dw; its rows are columns of dy, its columns those of x.
struct Piece {
  Segment from;
  int64_t row, rows, column, columns;
};

std::vector<Piece> pieces_of(const std::vector<Segment>& segments, int64_t n, int64_t k) {
  std::vector<Piece> pieces;
  for (const Segment& segment : segments)
    for (int64_t row = 0; row < n; row += kTileRows)
      for (int64_t column = 0; column < k; column += kTileColumns)
        pieces.push_back({segment, row, std::min(kTileRows, n - row), column, std::min(kTileColumns, k - column)});
  return pieces;
}

void sum_biases(const GroupedMatmulGrad& op, const std::vector<Segment>& segments, CpuContext& context) {
  constexpr int64_t kBand = 256;  // columns of a thread's sums
  const int64_t n = op.dy.columns(), bands = (n + kBand - 1) / kBand;
  parallel_each(context.threads, static_cast<int64_t>(segments.size()) * bands, [&](int64_t index) {
    const Segment& segment = segments[static_cast<size_t>(index / bands)];
    const int64_t column = index % bands * kBand, columns = std::min(kBand, n - column);
    float* sum = op.dbias.as<float>() + segment.expert * n + column;
    if (!op.acc) std::fill(sum, sum + columns, 0.0f);
    for (int64_t r = segment.first; r < segment.first + segment.rows; ++r)
      context.isa->accumulate(float_type(op.dy), at(op.dy, r * n + column), sum, columns);
  });
}

// False, and nothing done, where that is not how to multiply the segment.
bool multiply_by_library(const GroupedMatmulGrad& op, const Segment& of, CpuContext& context) {
  if (op.dy.dtype != DType::bf16 || of.rows < kRowsOfLibrary) return false;
  GemmShape shape;
  shape.m = op.dy.columns(), shape.n = op.x.columns(), shape.k = of.rows, shape.in = DType::bf16;
  shape.trans_a = true, shape.acc = op.acc;
  return multiply_bf16(shape, at(op.dy, of.first * shape.m), at(op.x, of.first * shape.n), nullptr,
                       at(op.dw, of.expert * shape.m * shape.n), context);
}

void multiply(const GroupedMatmulGrad& op, const std::vector<Segment>& segments, CpuContext& context) {
  const int64_t n = op.dy.columns(), k = op.x.columns();
  std::vector<Segment> left;
  for (const Segment& segment : segments)
    if (!multiply_by_library(op, segment, context)) left.push_back(segment);
  if (left.empty()) return;
  const std::vector<Piece> pieces = pieces_of(left, n, k);
  const float *dy = wide_rows(op.dy, context), *x = wide_rows(op.x, context);
  auto* memory = context.scratch.take<float>(context.threads * isa::kOrderedMemory);
  parallel_each(context.threads, static_cast<int64_t>(pieces.size()), [&](int64_t index) {
    const Piece& piece = pieces[static_cast<size_t>(index)];
    float* dw = op.dw.as<float>() + (piece.from.expert * n + piece.row) * k + piece.column;
    if (piece.from.rows == 0) {
      for (int64_t r = 0; !op.acc && r < piece.rows; ++r) std::fill(dw + r * k, dw + r * k + piece.columns, 0.0f);
      return;
    }
    Tile tile;
    tile.a = dy + piece.from.first * n + piece.row, tile.lda = n, tile.trans_a = true;
    tile.b = x + piece.from.first * k + piece.column, tile.ldb = k;
    tile.c = dw, tile.ldc = k;
    tile.m = piece.rows, tile.n = piece.columns, tile.k = piece.from.rows, tile.acc = op.acc;
    context.isa->ordered_product(tile, memory + team_rank() * isa::kOrderedMemory);
  });
}

}  // namespace

void run(const GroupedMatmulGrad& op, CpuContext& context) {
  const std::vector<Segment> segments = segments_of(op.name, op.first, op.dy.rows());
  if (op.dbias) sum_biases(op, segments, context);
  if (op.dw) multiply(op, segments, context);
}

}  // namespace qeng
