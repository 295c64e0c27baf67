// RowLinear with one_bit and ternary weights (isa/sign_tables.h), for any number of rows of x: some at a time, so that
// their tables stay in the cache.
#include <algorithm>

#include "kernels/cpu/row_linear.h"

namespace qeng {

namespace {

constexpr int64_t kMostPiece = 1 << 17, kLeastPiece = 1 << 14;  // bytes of w that a thread takes at a time

// Rows first .. first + n of w_i.
struct SignPiece {
  size_t i;
  int64_t first, n;
};
std::vector<SignPiece> pieces_of(const RowLinear& op, int threads) {
  std::vector<SignPiece> pieces;
  size_t total = 0;
  for (const View& w : op.w)
    if (isa::is_signs(w.dtype)) total += w.bytes();
  const int64_t bytes = std::clamp(static_cast<int64_t>(total) / (4 * threads), kLeastPiece, kMostPiece);
  for (size_t i = 0; i < op.w.size(); ++i) {
    const View& w = op.w[i];
    if (!isa::is_signs(w.dtype)) continue;
    const auto group = static_cast<int64_t>(dtype_bytes(w.dtype, w.columns())) * isa::kSignRows;
    const int64_t step = std::max<int64_t>(1, bytes / std::max<int64_t>(1, group)) * isa::kSignRows;
    for (int64_t first = 0; first < w.shape[0]; first += step)
      pieces.push_back({i, first, std::min(step, w.shape[0] - first)});
  }
  return pieces;
}

isa::SignTables take_tables(DType format, int64_t rows, int64_t k, CpuContext& context) {
  return {k, context.scratch.take<uint8_t>(rows * isa::sign_row_bytes(format, k)),
          context.scratch.take<float>(rows * isa::sign_groups(k)),
          context.scratch.take<int32_t>(rows * isa::sign_groups(k))};
}

}  // namespace

void sign_products(const RowLinear& op, CpuContext& context) {
  const int64_t rows = op.x.rows(), k = op.x.columns(), groups = isa::sign_groups(k);
  const int64_t most = std::min(rows, isa::kMostSignRows);
  constexpr DType kFormats[] = {DType::one_bit, DType::ternary};
  isa::SignTables tables[2];
  for (int f = 0; f < 2; ++f)
    for (const View& w : op.w)
      if (w.dtype == kFormats[f] && !tables[f].tables) tables[f] = take_tables(kFormats[f], most, k, context);
  const std::vector<SignPiece> pieces = pieces_of(op, context.threads);
  int64_t widest = 0;
  for (const SignPiece& piece : pieces) widest = std::max(widest, piece.n);
  auto* sums = context.scratch.take<float>(context.threads * most * widest);
  for (int64_t first = 0; first < rows; first += most) {
    const int64_t count = std::min(most, rows - first);
    parallel_for(context.threads, count * groups, 1, [&](int64_t begin, int64_t end) {
      for (int64_t index = begin; index < end; ++index) {
        const int64_t r = index / groups, g = index % groups, at_column = g * blocks::kSignGroup;
        float x[blocks::kSignGroup];
        const int64_t n = std::min<int64_t>(blocks::kSignGroup, k - at_column);
        context.isa->scale(float_type(op.x), at(op.x, (first + r) * k + at_column), isa::Float::f32, x, 1.0f, n);
        for (int f = 0; f < 2; ++f)
          if (tables[f].tables) context.isa->sign_tables(kFormats[f], x, tables[f], r, g);
      }
    });
    parallel_shares(context.threads, static_cast<int64_t>(pieces.size()), [&](int64_t index) {
      const auto [i, row, n] = pieces[static_cast<size_t>(index)];
      const View& w = op.w[i];
      const char* data = w.as<char>() + static_cast<int64_t>(dtype_bytes(w.dtype, k)) * row;
      float* dots = sums + team_rank() * most * widest;
      context.isa->sign_dots(w.dtype, tables[w.dtype == DType::ternary], 0, count, data, n, dots, widest);
      for (int64_t r = 0; r < count; ++r) finish_row(op, i, first + r, row, n, dots + r * widest, *context.isa);
    });
  }
}

}  // namespace qeng
