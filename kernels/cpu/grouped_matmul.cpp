// GroupedMatmul: f32 products of pieces, each on one thread, for all experts in one region, so that an expert of few
// rows costs no wait for all threads. A row has the same bits however many its expert has: oneDNN's products have not,
// and by the choice of experts a document would know of the others in its row.
#include "kernels/cpu/grouped_matmul.h"

#include <cstring>

namespace qeng {

std::vector<Segment> segments_of(const char* op, const View& first, int64_t rows) {
  const int32_t* starts = first.as<int32_t>();
  std::vector<Segment> segments;
  for (int64_t e = 0; e < first.elements(); ++e) {
    const int64_t before = e > 0 ? starts[e - 1] : 0;
    if (starts[e] < before || starts[e] > rows || (e == 0 && starts[e] != 0))
      fail("value", op, ": first[", e, "] is ", starts[e], "; expected ascending from 0 to at most the ", rows,
           " rows");
    if (e > 0) segments.push_back({e - 1, before, starts[e] - before});
  }
  return segments;
}

const float* wide_rows(const View& x, CpuContext& context) {
  if (x.dtype == DType::f32) return x.as<float>();
  const int64_t columns = x.columns();
  auto* wide = context.scratch.take<float>(x.rows() * columns);
  parallel_for(context.threads, x.rows(), grain_rows(columns), [&](int64_t begin, int64_t end) {
    context.isa->scale(float_type(x), at(x, begin * columns), isa::Float::f32, wide + begin * columns, 1.0f,
                       (end - begin) * columns);
  });
  return wide;
}

namespace {

// Most rows and columns of a piece. Columns are halved, down to the least, until there are kPieces for many threads, and
// what a piece may have to decode of a weight fits a second-level cache or little more.
constexpr int64_t kTileRows = isa::kOrderedRows, kTileColumns = 512, kLeastColumns = 64, kPieces = 32,
                  kMostDecoded = 1 << 20;

// Rows of one expert, and columns of y.
struct Piece {
  Segment rows;
  int64_t column, columns;
};

int64_t columns_of_piece(const std::vector<Segment>& segments, int64_t n, int64_t k) {
  int64_t columns = kTileColumns, parts = 0;
  for (const Segment& segment : segments) parts += (segment.rows + kTileRows - 1) / kTileRows;
  while (columns > kLeastColumns && (parts * ((n + columns - 1) / columns) < kPieces || columns * k > kMostDecoded))
    columns /= 2;
  return std::min(columns, n);
}

std::vector<Piece> pieces_of(const std::vector<Segment>& segments, int64_t n, int64_t columns) {
  std::vector<Piece> pieces;
  for (const Segment& segment : segments)
    for (int64_t column = 0; column < n; column += columns)
      for (int64_t row = 0; row < segment.rows; row += kTileRows)
        pieces.push_back({{segment.expert, segment.first + row, std::min(kTileRows, segment.rows - row)},
                          column,
                          std::min(columns, n - column)});
  return pieces;
}

// f32 rows in memory, `stride` elements apart.
struct WideRows {
  const float* data;
  int64_t stride;
};

// What an expert's matrix contributes to a piece, in f32: rows of w, or with `tall` columns of them; where it lies, or
// decoded to `memory`.
WideRows weights_of(const GroupedMatmul& op, const Piece& piece, float* memory, const CpuContext& context) {
  const View& w = op.w;
  const int64_t first = piece.rows.expert * w.shape[1], stored = w.columns();
  const int64_t row = op.tall ? first : first + piece.column, rows = op.tall ? w.shape[1] : piece.columns;
  const int64_t column = op.tall ? piece.column : 0, columns = op.tall ? piece.columns : stored;
  if (w.dtype == DType::f32) return {w.as<float>() + row * stored + column, stored};
  for (int64_t r = 0; r < rows; ++r) decode_row(w, row + r, column, columns, memory + r * columns, context);
  return {memory, columns};
}

// The first element of a piece of y, and of the bias that it gets.
char* begin_of(const GroupedMatmul& op, const Piece& piece) {
  return at(op.y, piece.rows.first * op.y.columns() + piece.column);
}
const char* bias_of(const GroupedMatmul& op, const Piece& piece) {
  return at(op.bias, piece.rows.expert * op.y.columns() + piece.column);
}

// y's piece in f32: y itself where it is that, so that the product is added to what it begins with.
void begin_piece(const GroupedMatmul& op, const Piece& piece, float* sums, int64_t stride, const isa::Table& isa) {
  const int64_t n = op.y.columns();
  for (int64_t r = 0; r < piece.rows.rows; ++r) {
    float* row = sums + r * stride;
    const char* y = begin_of(op, piece) + r * n * static_cast<int64_t>(dtype_size(op.y.dtype));
    if (op.acc && op.y.dtype != DType::f32) isa.scale(float_type(op.y), y, isa::Float::f32, row, 1.0f, piece.columns);
    if (!op.bias) continue;
    if (op.acc)
      isa.accumulate(float_type(op.bias), bias_of(op, piece), row, piece.columns);
    else
      isa.scale(float_type(op.bias), bias_of(op, piece), isa::Float::f32, row, 1.0f, piece.columns);
  }
}

void multiply_pieces(const GroupedMatmul& op, const std::vector<Segment>& segments, CpuContext& context) {
  const int64_t n = op.y.columns(), k = op.x.columns(), most = columns_of_piece(segments, n, k);
  const std::vector<Piece> pieces = pieces_of(segments, n, most);
  if (pieces.empty()) return;
  const bool direct = op.y.dtype == DType::f32;
  const float* x = wide_rows(op.x, context);
  const int64_t decoded = op.w.dtype == DType::f32 ? 0 : most * k, sums = direct ? 0 : kTileRows * most;
  const int64_t size = decoded + sums + isa::kOrderedMemory;
  auto* memory = context.scratch.take<float>(context.threads * size);
  parallel_each(context.threads, static_cast<int64_t>(pieces.size()), [&](int64_t index) {
    const Piece& piece = pieces[static_cast<size_t>(index)];
    float* mine = memory + team_rank() * size;
    const WideRows w = weights_of(op, piece, mine, context);
    Tile tile;
    tile.a = x + piece.rows.first * k, tile.lda = k;
    tile.b = w.data, tile.ldb = w.stride, tile.trans_b = !op.tall;
    tile.c = direct ? reinterpret_cast<float*>(begin_of(op, piece)) : mine + decoded;
    tile.ldc = direct ? n : piece.columns;
    tile.m = piece.rows.rows, tile.n = piece.columns, tile.k = k, tile.acc = op.acc || op.bias;
    if (tile.acc) begin_piece(op, piece, tile.c, tile.ldc, *context.isa);
    context.isa->ordered_product(tile, mine + decoded + sums);
    for (int64_t r = 0; r < piece.rows.rows && !direct; ++r)
      context.isa->scale(isa::Float::f32, tile.c + r * tile.ldc, float_type(op.y),
                         begin_of(op, piece) + r * n * static_cast<int64_t>(dtype_size(op.y.dtype)), 1.0f,
                         piece.columns);
  });
}

// False, and nothing done, where that is not how to multiply the segment.
bool multiply_by_library(const GroupedMatmul& op, const Segment& of, CpuContext& context) {
  if (op.x.dtype != DType::bf16 || op.w.dtype != DType::bf16 || of.rows < kRowsOfLibrary) return false;
  const int64_t n = op.y.columns(), k = op.x.columns();
  GemmShape shape;
  shape.m = of.rows, shape.n = n, shape.k = k, shape.in = DType::bf16, shape.out = op.y.dtype;
  shape.trans_b = !op.tall, shape.acc = op.acc, shape.has_bias = static_cast<bool>(op.bias);
  if (op.bias) shape.bias = op.bias.dtype;
  return multiply_bf16(shape, at(op.x, of.first * k), at(op.w, of.expert * n * k),
                       op.bias ? at(op.bias, of.expert * n) : nullptr, at(op.y, of.first * n), context);
}

}  // namespace

void run(const GroupedMatmul& op, CpuContext& context) {
  const int64_t rows = op.x.rows(), n = op.y.columns();
  const std::vector<Segment> segments = segments_of(op.name, op.first, rows);
  if (op.y.elements() == 0) return;
  const int64_t used = segments.empty() ? 0 : segments.back().first + segments.back().rows;
  if (!op.acc && used < rows)
    std::memset(at(op.y, used * n), 0, static_cast<size_t>((rows - used) * n) * dtype_size(op.y.dtype));
  if (op.apart) return multiply_apart(op, segments, context);
  std::vector<Segment> left;
  for (const Segment& segment : segments)
    if (!multiply_by_library(op, segment, context)) left.push_back(segment);
  multiply_pieces(op, left, context);
}

}  // namespace qeng
