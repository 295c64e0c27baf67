// GroupedMatmul of rows apart: experts of few rows, as in decoding, share one region; the others are RowLinear's, one after
// the other. A row has the same bits in both.
#include "kernels/cpu/grouped_matmul.h"
#include "kernels/cpu/row_linear.h"

namespace qeng {
namespace {

View part(const View& of, int64_t first, int64_t rows) {
  return View(of.as<char>() + static_cast<int64_t>(dtype_bytes(of.dtype, of.columns())) * first, of.dtype,
              {rows, of.columns()});
}

void multiply_many(const GroupedMatmul& op, const Segment& segment, CpuContext& context) {
  const ScratchFrame frame(context.scratch);
  const int64_t n = op.w.shape[1];
  RowLinear product;
  product.x = part(op.x, segment.first, segment.rows);
  product.w = {part(op.w, segment.expert * n, n)};
  if (op.bias) product.bias = {View(at(op.bias, segment.expert * n), op.bias.dtype, {n})};
  product.y = {part(op.y, segment.first, segment.rows)};
  product.acc = op.acc;
  run(product, context);
}

// Rows of an expert's weight.
struct Piece {
  Segment of;
  int64_t first, rows;
};

// The bias, what is there, and one rounding, as RowLinear has them. Changes dots.
void finish_row(const GroupedMatmul& op, const Piece& piece, int64_t r, float* dots, const isa::Table& isa) {
  const int64_t n = op.y.columns();
  char* y = at(op.y, (piece.of.first + r) * n + piece.first);
  if (op.bias) isa.accumulate(float_type(op.bias), at(op.bias, piece.of.expert * n + piece.first), dots, piece.rows);
  if (op.acc) isa.accumulate(float_type(op.y), y, dots, piece.rows);
  isa.scale(isa::Float::f32, dots, float_type(op.y), y, 1.0f, piece.rows);
}

void multiply_few(const GroupedMatmul& op, const std::vector<Segment>& segments, CpuContext& context) {
  const int64_t n = op.w.shape[1], k = op.x.columns();
  const DType format = op.w.dtype;
  const auto row_bytes = static_cast<int64_t>(dtype_bytes(format, k)), count = static_cast<int64_t>(segments.size());
  const int64_t step = rows_of_piece(false, count * n * row_bytes, row_bytes, context.threads);
  std::vector<Piece> pieces;
  for (const Segment& segment : segments)
    for (int64_t first = 0; first < n; first += step) pieces.push_back({segment, first, std::min(step, n - first)});
  isa::Activations codes;
  const float* floats = nullptr;
  if (is_block(format))
    codes = round_rows(op.x, format, true, context);
  else
    floats = float_rows(op.x, format, context);
  auto* sums = context.scratch.take<float>(context.threads * kFewRows * step);
  parallel_shares(context.threads, static_cast<int64_t>(pieces.size()), [&](int64_t index) {
    const Piece& piece = pieces[static_cast<size_t>(index)];
    const char* w = op.w.as<char>() + (piece.of.expert * n + piece.first) * row_bytes;
    float* dots = sums + team_rank() * kFewRows * step;
    if (floats)
      context.isa->row_dots(floats + piece.of.first * k, piece.of.rows, float_type(op.w), w, dots, step, piece.rows, k);
    else
      context.isa->block_dots(format, codes, piece.of.first, piece.of.rows, w, piece.rows, dots, step);
    for (int64_t r = 0; r < piece.of.rows; ++r) finish_row(op, piece, r, dots + r * step, *context.isa);
  });
}

}  // namespace

void multiply_apart(const GroupedMatmul& op, const std::vector<Segment>& segments, CpuContext& context) {
  const bool together = !isa::is_signs(op.w.dtype) && !has_tiles(op.w, *context.isa);
  std::vector<Segment> few;
  for (const Segment& segment : segments) {
    if (together && segment.rows <= kFewRows) {
      if (segment.rows > 0) few.push_back(segment);
    } else if (segment.rows > 0) {
      multiply_many(op, segment, context);
    }
  }
  if (!few.empty()) multiply_few(op, few, context);
}

}  // namespace qeng
