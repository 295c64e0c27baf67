// RowLinear: dot products of a few rows by reading each weight as it is stored, of many by panels of 16 of its rows,
// both in the same order of sums, which depends on k alone.
#include "kernels/cpu/row_linear.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "kernels/interleave.h"
#include "kernels/math/blocks/activations.h"

namespace qeng {

// y[j] = alpha * scale[j] * dot[j] + bias[j] + y[j]
void finish_row(const RowLinear& op, size_t i, int64_t r, int64_t first, int64_t n, float* dots,
                const isa::Table& isa) {
  const View& y = op.y[i];
  const View bias = op.bias.empty() ? View() : op.bias[i], scale = op.scale.empty() ? View() : op.scale[i];
  void* to = at(y, r * op.w[i].shape[0] + first);
  if (scale) isa.multiply(dots, scale.as<float>() + first, n);
  if (op.alpha != 1) isa.scale(isa::Float::f32, dots, isa::Float::f32, dots, op.alpha, n);
  if (bias) isa.accumulate(float_type(bias), at(bias, first), dots, n);
  if (op.acc) isa.accumulate(float_type(y), to, dots, n);
  isa.scale(isa::Float::f32, dots, float_type(y), to, 1.0f, n);
}

namespace {

// Rows of x at a time: their codes stay in the last-level cache, or without panels in the thread's own.
constexpr int64_t kMostRows = 512, kMostRowsOfFew = 128;
constexpr int64_t kMostPiece = 1 << 18;  // bytes of w that a thread takes at a time for few rows: they fit its cache
constexpr int64_t kMostTileRows = 512;   // of a bf16 weight that a thread multiplies by tiles at a time for many rows
// Panels side by side meet so many rows of x at a time: results go out in longer runs, and x is read less often.
constexpr int64_t kMostPanels = 16, kMostPanelBytes = 1 << 19, kRowsOfPanels = 32;

// The codes once more, as block_tiles takes them.
void make_tiles(isa::Activations& x, CpuContext& context) {
  constexpr int64_t kRows = isa::kMatrixRows, kBytes = isa::kMatrixBytes;
  const int64_t across = (x.k + kBytes - 1) / kBytes, groups = x.rows / kRows;
  x.tiles = context.scratch.take<int8_t>(groups * across * kRows * kBytes);
  parallel_for(context.threads, groups, grain_rows(x.k * kRows), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin * kRows; row < end * kRows; ++row)
      for (int64_t i = 0; i < across; ++i)
        std::memcpy(x.tiles + ((row / kRows * across + i) * kRows + row % kRows) * kBytes,
                    x.codes + row * x.k + i * kBytes, static_cast<size_t>(std::min(kBytes, x.k - i * kBytes)));
  });
}

template <class To>
To* converted(const void* from, isa::Float type, isa::Float to_type, int64_t n, CpuContext& context) {
  auto* to = context.scratch.take<To>(n);
  const auto size = static_cast<int64_t>(type == isa::Float::f32 ? sizeof(float) : sizeof(bf16));
  parallel_for(context.threads, n, kGrainElements, [&](int64_t begin, int64_t end) {
    context.isa->scale(type, static_cast<const char*>(from) + begin * size, to_type, to + begin, 1.0f, end - begin);
  });
  return to;
}

}  // namespace

isa::Activations round_rows(const View& x, DType format, bool few, CpuContext& context) {
  isa::Activations to;
  to.few = few;
  to.rows = x.rows(), to.k = x.columns(), to.group = blocks::group_elements(dtype_info(format).elements);
  const int64_t n = to.rows * to.k;
  to.codes = context.scratch.take<int8_t>(n);
  to.scales = context.scratch.take<float>(n / to.group);
  to.sums = context.scratch.take<int32_t>(n / to.group);
  to.sums_16 = context.scratch.take<int16_t>(n / 16);
  to.sums_32 = context.scratch.take<int16_t>(n / 32);
  to.halves_16 = context.scratch.take<int16_t>(n / 8);
  float* wide = x.dtype == DType::f32 ? nullptr : context.scratch.take<float>(context.threads * to.k);
  parallel_for(context.threads, to.rows, grain_rows(to.k), [&](int64_t begin, int64_t end) {
    if (!wide) return context.isa->round_activations(format, x.as<float>() + begin * to.k, to, begin, end - begin);
    float* row = wide + team_rank() * to.k;
    for (int64_t r = begin; r < end; ++r) {
      context.isa->scale(float_type(x), at(x, r * to.k), isa::Float::f32, row, 1.0f, to.k);
      context.isa->round_activations(format, row, to, r, 1);
    }
  });
  return to;
}

const float* float_rows(const View& x, DType weight, CpuContext& context) {
  const bool rounds = weight == DType::bf16 && x.dtype == DType::f32;
  const void* from =
      rounds ? converted<bf16>(x.data, isa::Float::f32, isa::Float::bf16, x.elements(), context) : x.data;
  if (x.dtype == DType::f32 && !rounds) return x.as<float>();
  return converted<float>(from, isa::Float::bf16, isa::Float::f32, x.elements(), context);
}

namespace {

int64_t whole_steps(int64_t k) { return (k + isa::kBf16Step - 1) / isa::kBf16Step * isa::kBf16Step; }

// x as isa.bf16_tiles takes it: `most` rows, a multiple of kMatrixRows or all of them, and then the next.
const bf16* bf16_groups(const View& x, int64_t most, CpuContext& context) {
  constexpr int64_t kRows = isa::kMatrixRows;
  const int64_t rows = x.rows(), k = x.columns();
  auto* groups = context.scratch.take<bf16>((rows + kRows - 1) / kRows * kRows * whole_steps(k));
  parallel_for(context.threads, (rows + kRows - 1) / kRows, grain_rows(k * kRows), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin * kRows; row < std::min(rows, end * kRows); row += kRows) {
      const int64_t columns = std::min({rows - row / most * most, most, kRows});
      context.isa->bf16_group(float_type(x), at(x, row * k), std::min(rows - row, kRows), columns, k,
                              groups + row * whole_steps(k));
    }
  });
  return groups;
}

int64_t bytes_of_piece(int64_t total, int threads) {
  return std::clamp<int64_t>(total / (4 * threads), kMostPiece / 8, kMostPiece);
}

// Whether eight streams so many bytes apart spread over the sets of a first-level cache, whose ways are 4096 bytes.
bool spreads(int64_t apart) {
  for (int64_t r = 1; r < 8; ++r)
    if (const int64_t at = r * apart % 4096; at < 256 || at > 4096 - 256) return false;
  return true;
}

}  // namespace

// In a number that isa.block_dots or isa.interleaved_dots walks well.
int64_t rows_of_piece(bool interleaved, int64_t total_bytes, int64_t row_bytes, int threads) {
  const int64_t bytes = bytes_of_piece(total_bytes, threads);
  constexpr int64_t kGroups = 2 * kInterleavedRows;
  if (interleaved) return std::max<int64_t>(1, bytes / row_bytes / kGroups) * kGroups;
  const int64_t most = std::max<int64_t>(1, bytes / row_bytes / isa::kPanelRows) * isa::kPanelRows;
  for (int64_t rows = most; rows > most / 2; rows -= 8)
    if (spreads(rows / 8 * row_bytes)) return rows;
  return most;
}

namespace {

// Whether y_i is the products themselves.
bool is_product(const RowLinear& op, size_t i) {
  const bool plain = (op.bias.empty() || !op.bias[i]) && (op.scale.empty() || !op.scale[i]);
  return plain && !op.acc && op.alpha == 1 && op.y[i].dtype == DType::f32;
}

// Whether w is read as it lies for so many rows of x. tq2_0 interleaved always is, but where tiles take panels:
// unpacking it costs less than reading a panel.
bool is_few(const View& w, int64_t rows, const isa::Table& isa) {
  return rows <= kFewRows || (w.interleaved && w.dtype == DType::tq2_0 && !isa.matrix_tiles);
}

// Rows of a bf16 weight that a thread multiplies by tiles at a time, of which `fit` fit its cache; for many rows of x
// more, as they share its parts.
int64_t tile_rows(const RowLinear& op, size_t i, int64_t fit, int threads) {
  constexpr int64_t kTogether = 2 * isa::kMatrixRows;
  const int64_t share = op.w[i].shape[0] / (4 * threads);
  const int64_t rows = op.x.rows() <= isa::kMatrixRows ? fit : std::min<int64_t>(share, kMostTileRows);
  return std::max<int64_t>(1, rows / kTogether) * kTogether;
}

// Rows first .. first + n of w_i: what a thread takes at a time.
struct Piece {
  size_t i;
  int64_t first, n;
};
std::vector<Piece> pieces_of(const RowLinear& op, const CpuContext& context) {
  std::vector<Piece> pieces;
  int64_t total = 0;
  for (const View& w : op.w) total += static_cast<int64_t>(w.bytes());
  const int64_t bytes = bytes_of_piece(total, context.threads);
  for (size_t i = 0; i < op.w.size(); ++i) {
    if (isa::is_signs(op.w[i].dtype)) continue;
    const int64_t n = op.w[i].shape[0];
    const auto row_bytes = static_cast<int64_t>(dtype_bytes(op.w[i].dtype, op.w[i].columns()));
    const DType format = op.w[i].dtype;
    const bool few = is_few(op.w[i], op.x.rows(), *context.isa);
    if (has_tiles(op.w[i], *context.isa)) {
      const int64_t step = tile_rows(op, i, bytes / row_bytes, context.threads);
      for (int64_t first = 0; first < n; first += step) pieces.push_back({i, first, std::min(step, n - first)});
      continue;
    }
    int64_t step = few ? rows_of_piece(op.w[i].interleaved, total, row_bytes, context.threads) : isa::kPanelRows;
    if (is_block(format) && !few) {
      const int64_t fit = kMostPanelBytes / context.isa->panel_bytes(format, op.x.columns());
      const int64_t share = n / (4 * context.threads * isa::kPanelRows);
      step = std::clamp<int64_t>(std::min(fit, share), 1, kMostPanels) * isa::kPanelRows;
    }
    for (int64_t first = 0; first < n; first += step) pieces.push_back({i, first, std::min(step, n - first)});
  }
  return pieces;
}

}  // namespace

void run(const RowLinear& op, CpuContext& context) {
  const auto signs = [](const View& w) { return isa::is_signs(w.dtype); };
  if (std::any_of(op.w.begin(), op.w.end(), signs)) sign_products(op, context);
  if (std::all_of(op.w.begin(), op.w.end(), signs)) return;
  const int64_t rows = op.x.rows(), k = op.x.columns();
  const isa::Table& isa = *context.isa;
  std::map<int, isa::Activations> rounded;  // by kind
  std::vector<const isa::Activations*> x(op.w.size());
  std::map<DType, const float*> wide;  // by the weight's dtype
  bool any_tiles = false;
  int64_t widest = isa::kPanelRows, most = std::min(rows, kMostRowsOfFew);
  for (size_t i = 0; i < op.w.size(); ++i) {
    const DType format = op.w[i].dtype;
    if (isa::is_signs(format)) continue;
    const bool tiles = has_tiles(op.w[i], isa);
    if (tiles || !is_few(op.w[i], rows, isa)) most = std::min(rows, kMostRows);
    any_tiles = any_tiles || tiles;
    if (!is_block(format)) {
      if (!tiles && !wide.count(format)) wide[format] = float_rows(op.x, format, context);
      continue;
    }
    const bool few = is_few(op.w[i], rows, isa);
    const int kind = isa.activation_kind(format, few);
    if (!rounded.count(kind)) rounded[kind] = round_rows(op.x, format, few, context);
    x[i] = &rounded[kind];
    if (isa.matrix_tiles && !few && !x[i]->tiles) make_tiles(rounded[kind], context);
  }
  const std::vector<Piece> pieces = pieces_of(op, context);
  int64_t piece_bytes = 1;  // of panels
  for (const Piece& piece : pieces) {
    const int64_t count = (piece.n + isa::kPanelRows - 1) / isa::kPanelRows;
    widest = std::max(widest, count * isa::kPanelRows);  // the last panel is written whole
    const View& w = op.w[piece.i];
    if (is_block(w.dtype) && !is_few(w, rows, isa))
      piece_bytes = std::max(piece_bytes, count * isa.panel_bytes(w.dtype, k));
  }
  const bf16* groups = any_tiles ? bf16_groups(op.x, most, context) : nullptr;
  const int64_t tile_sums = any_tiles ? widest * (most + isa::kMatrixRows) : 0;
  auto* tiles = context.scratch.take<float>(context.threads * tile_sums);
  auto* panels = context.scratch.take<char>(context.threads * piece_bytes);
  auto* sums = context.scratch.take<float>(context.threads * most * widest);
  for (int64_t first = 0; first < rows; first += most) {
    const int64_t count = std::min(most, rows - first);
    parallel_shares(context.threads, static_cast<int64_t>(pieces.size()), [&](int64_t index) {
      const auto [i, column, n] = pieces[static_cast<size_t>(index)];
      const View& w = op.w[i];
      const auto* data = w.as<char>() + static_cast<int64_t>(dtype_bytes(w.dtype, k)) * column;  // or its group's
      float* dots = sums + team_rank() * most * widest;
      int64_t stride = widest;
      const bool straight = is_product(op, i) && (!is_block(w.dtype) || is_few(w, rows, isa));
      if (straight) stride = w.shape[0], dots = op.y[i].as<float>() + first * stride + column;
      if (has_tiles(w, isa)) {
        isa.bf16_tiles(groups + first * whole_steps(k), count, data, tiles + team_rank() * tile_sums, dots, stride, n,
                       k);
      } else if (!is_block(w.dtype)) {
        isa.row_dots(wide.at(w.dtype) + first * k, count, float_type(w), data, dots, stride, n, k);
      } else if (is_few(w, rows, isa)) {
        const auto few_dots = w.interleaved ? isa.interleaved_dots : isa.block_dots;
        few_dots(w.dtype, *x[i], first, count, data, n, dots, stride);
      } else {
        char* panel = panels + team_rank() * piece_bytes;
        const int64_t panel_bytes = isa.panel_bytes(w.dtype, k);
        for (int64_t j = 0; j < n; j += isa::kPanelRows)
          isa.pack_panel(w.dtype, w.interleaved, w.data, column + j, std::min(n - j, isa::kPanelRows), k,
                         panel + j / isa::kPanelRows * panel_bytes);
        for (int64_t r = 0; r < count; r += kRowsOfPanels) {
          const int64_t together = std::min(kRowsOfPanels, count - r);
          for (int64_t j = 0; j < n; j += isa::kPanelRows)
            isa.block_tiles(w.dtype, *x[i], first + r, together, panel + j / isa::kPanelRows * panel_bytes, dots + j,
                            stride);
          for (int64_t row = 0; row < together; ++row)
            finish_row(op, i, first + r + row, column, n, dots + row * stride, isa);
        }
        return;
      }
      if (straight) return;
      for (int64_t r = 0; r < count; ++r) finish_row(op, i, first + r, column, n, dots + r * stride, isa);
    });
  }
}

}  // namespace qeng
