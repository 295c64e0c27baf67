// multiply: a product by oneDNN as a whole, or by tiles of c, each a product by one thread: of oneDNN's in f32, or where
// the machine has instructions for products of bf16 matrices and it is such a product, by those of packed panels.
//
// For block (i, j) of c and depth l, all threads expand panels a(i, l) and b(l, j) to f32, which is exact (a stored
// matrix counts as its decoder's values), unless the last block left them there; then each thread takes a tile at a
// time. A tile sums in f32 and is rounded once. Panels and tiles depend on the shape alone, so results do not depend on
// the threads. At 512 rows expanding costs 5 % of the time.
#include <atomic>
#include <vector>

#include "kernels/cpu/matmul.h"

namespace qeng {

namespace {

constexpr int64_t kPanel = 1024;  // most rows, columns and depth of a block: its three panels of f32 are 4 MB each
// Most rows and columns of a tile: larger ones gain nothing, and leave threads without work at the end of a block. So
// that many threads have work, tiles are halved until a block has kTiles, or they are of kLeastTile rows and columns.
constexpr int64_t kTileRows = 128, kTileColumns = 256, kTiles = 32, kLeastTile = 64;

int64_t pieces(int64_t n, int64_t size) { return (n + size - 1) / size; }

// The size of equal pieces of n, at most `most`; multiples of 16, which is what the kernels compute at once.
int64_t piece_of(int64_t n, int64_t most) { return std::min(n, pieces(pieces(n, pieces(n, most)), 16) * 16); }

// Rows of a matrix in memory, ld elements apart. Only rows of a float dtype are entered at a column.
struct Rows {
  char* data;
  DType dtype;
  int64_t ld;
  bool interleaved = false;
  char* at(int64_t row, int64_t column) const {
    return data + row * static_cast<int64_t>(dtype_bytes(dtype, ld)) + column * static_cast<int64_t>(dtype_size(dtype));
  }
  isa::Float type() const { return dtype == DType::f32 ? isa::Float::f32 : isa::Float::bf16; }
};

void convert(const isa::Table& isa, const Rows& from, const Rows& to, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) isa.scale(from.type(), from.at(r, 0), to.type(), to.at(r, 0), 1.0f, columns);
}

// A panel of a or b at a time, in f32: a copy, or where it lies if that is as good. `side` counts rows of a or columns
// of b; the other direction is the depth. Stored rows run along the side (depth_down) or along the depth.
// packed: in bf16, as isa.bf16_multiply takes it.
class Panel {
 public:
  Panel(const Rows& matrix, bool depth_down, bool packed, int64_t most_side, int64_t most_depth, CpuContext& context)
      : context_(context), matrix_(matrix), depth_down_(depth_down), dtype_(packed ? DType::bf16 : DType::f32) {
    in_place_ = matrix.dtype == dtype_ && (packed || !(depth_down && is_bad_stride(matrix.ld)));
    const int64_t rows = depth_down ? most_depth : most_side, columns = depth_down ? most_side : most_depth;
    if (!in_place_)
      copy_ = context.scratch.take<char>(rows * good_stride(columns) * static_cast<int64_t>(dtype_size(dtype_)));
    if (packed) packed_ = context.scratch.take<bf16>(whole_sides(most_side) * whole_depth(most_depth));
  }

  void move(int64_t side, int64_t sides, int64_t depth, int64_t depths) {
    const int64_t rows = depth_down_ ? depths : sides, columns = depth_down_ ? sides : depths;
    const int64_t row = depth_down_ ? depth : side, column = depth_down_ ? side : depth;
    if (row == row_ && column == column_) return;
    row_ = row, column_ = column;
    if (in_place_)
      panel_ = {matrix_.at(row, column), dtype_, matrix_.ld};
    else
      copy(row, rows, column, columns);
    if (packed_) pack(sides, depths);
  }

  // From the given row of a's panel or column of b's, at the panel's least depth.
  const float* at(int64_t side) const {
    return reinterpret_cast<const float*>(depth_down_ ? panel_.at(0, side) : panel_.at(side, 0));
  }
  int64_t ld() const { return panel_.ld; }
  const bf16* packed(int64_t side) const { return packed_ + side * whole_depth(depths_); }  // of a whole group

 private:
  static int64_t whole_sides(int64_t n) { return pieces(n, isa::kBf16Side) * isa::kBf16Side; }
  static int64_t whole_depth(int64_t n) { return pieces(n, 4) * 4; }

  void copy(int64_t row, int64_t rows, int64_t column, int64_t columns) {
    panel_ = {copy_, dtype_, good_stride(columns)};
    View stored(matrix_.data, matrix_.dtype, {row + rows, matrix_.ld});
    stored.interleaved = matrix_.interleaved;
    parallel_for(context_.threads, rows, grain_rows(columns), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        decode_into(stored, row + r, column, columns, dtype_, panel_.at(r, 0), context_);
    });
  }

  void pack(int64_t sides, int64_t depths) {
    constexpr int64_t kSide = isa::kBf16Side;
    depths_ = depths;
    parallel_for(context_.threads, pieces(sides, kSide), grain_rows(depths * kSide), [&](int64_t begin, int64_t end) {
      const int64_t first = begin * kSide;
      const char* from = depth_down_ ? panel_.at(0, first) : panel_.at(first, 0);
      context_.isa->bf16_pack(reinterpret_cast<const bf16*>(from), panel_.ld, depth_down_,
                              std::min(sides, end * kSide) - first, depths, packed_ + first * whole_depth(depths));
    });
  }

  CpuContext& context_;
  Rows matrix_, panel_{};
  bool depth_down_, in_place_;
  DType dtype_;
  int64_t row_ = -1, column_ = -1, depths_ = 0;  // what the panel shows
  char* copy_ = nullptr;
  bf16* packed_ = nullptr;
};

Rows rows_of(const void* data, DType dtype, int64_t ld, bool interleaved = false) {
  return {static_cast<char*>(const_cast<void*>(data)), dtype, ld, interleaved};
}

}  // namespace

bool multiply_tile(const Tile& tile, const CpuContext& context) {
#if defined(__aarch64__)  // where Debian's oneDNN hardly has vectors (README.md)
  if (tile.alpha == 1 && tile.k > 0 && tile.m <= isa::kOrderedRows) {
    thread_local std::vector<float> memory(isa::kOrderedMemory);
    context.isa->ordered_product(tile, memory.data());
    return true;
  }
#endif
  (void)context;
  return run_tile(tile);
}

void multiply_tiles(const GemmShape& s, const void* a, const void* b, const void* bias, void* c, CpuContext& context) {
  const ScratchFrame frame(context.scratch);
  const isa::Table& isa = *context.isa;
  const int64_t mb = piece_of(s.m, kPanel), nb = piece_of(s.n, kPanel), kb = piece_of(s.k, kPanel);
  int64_t mt = piece_of(mb, kTileRows), nt = piece_of(nb, kTileColumns);
  while (pieces(mb, mt) * pieces(nb, nt) < kTiles && std::max(mt, nt) > kLeastTile) {
    int64_t& larger = mt > nt ? mt : nt;
    larger = piece_of(larger, pieces(larger, 2));
  }
  const bool packed = isa.bf16_multiply && s.in == DType::bf16 && s.alpha == 1 && (!s.stored || is_block(*s.stored));
  Panel panel_a(rows_of(a, s.in, s.lda_of()), s.trans_a, packed, mb, kb, context);
  Panel panel_b(rows_of(b, s.stored.value_or(s.in), s.trans_b ? s.k : s.n, s.interleaved), !s.trans_b, packed, nb, kb,
                context);
  const Rows out = rows_of(c, s.out, s.n), bias_rows = rows_of(bias, s.bias, 0);  // the one row again and again
  const bool direct = s.out == DType::f32;
  Rows sums = out;
  if (!direct) sums = rows_of(context.scratch.take<float>(mb * good_stride(nb)), DType::f32, good_stride(nb));
  std::atomic<bool> complete = true;

  for (int64_t i = 0; i < s.m; i += mb)
    for (int64_t j = 0; j < s.n; j += nb)
      for (int64_t l = 0; l < s.k; l += kb) {
        const int64_t m = std::min(mb, s.m - i), n = std::min(nb, s.n - j), k = std::min(kb, s.k - l);
        panel_a.move(i, m, l, k);
        panel_b.move(j, n, l, k);
        const int64_t across = pieces(n, nt);
        parallel_each(context.threads, pieces(m, mt) * across, [&](int64_t index) {
          const int64_t ti = index / across * mt, tj = index % across * nt;
          const int64_t rows = std::min(mt, m - ti), columns = std::min(nt, n - tj);
          const Rows result{out.at(i + ti, j + tj), out.dtype, out.ld};
          const Rows sum = direct ? result : Rows{sums.at(ti, tj), DType::f32, sums.ld};
          if (l == 0 && s.acc && !direct) convert(isa, result, sum, rows, columns);
          if (l == 0 && s.has_bias) {
            const Rows added{bias_rows.at(0, j + tj), s.bias, 0};
            if (!s.acc) convert(isa, added, sum, rows, columns);
            for (int64_t r = 0; s.acc && r < rows; ++r)
              isa.accumulate(added.type(), added.data, reinterpret_cast<float*>(sum.at(r, 0)), columns);
          }
          const bool add = l > 0 || s.acc || s.has_bias;
          auto* to = reinterpret_cast<float*>(sum.data);
          if (packed) {
            isa.bf16_multiply(panel_a.packed(ti), panel_b.packed(tj), rows, columns, k, to, sum.ld, add);
          } else {
            Tile tile;
            tile.a = panel_a.at(ti), tile.lda = panel_a.ld(), tile.trans_a = s.trans_a;
            tile.b = panel_b.at(tj), tile.ldb = panel_b.ld(), tile.trans_b = s.trans_b;
            tile.c = to, tile.ldc = sum.ld;
            tile.m = rows, tile.n = columns, tile.k = k;
            tile.alpha = s.alpha, tile.acc = add;
            if (!multiply_tile(tile, context)) complete = false;
          }
          if (l + k == s.k && !direct) convert(isa, sum, result, rows, columns);
        });
      }
  if (!complete) fail("memory", "matmul: oneDNN is out of memory (m ", s.m, ", n ", s.n, ", k ", s.k, ")");
}

namespace {

// Some columns of a stored b at a time, as bf16. False, and nothing done, where that is not how to multiply them.
bool multiply_decoded(const GemmShape& s, const void* a, const void* b, const void* bias, void* c,
                      CpuContext& context) {
  constexpr int64_t kElements = 1 << 20;  // of a panel, 2 MB
  if (s.in != DType::bf16 || !is_block(*s.stored) || !context.gemm.multiplies_bf16_by_tiles()) return false;
  const int64_t most = std::min(s.n, std::max<int64_t>(256, kElements / std::max<int64_t>(1, s.k) / 64 * 64));
  GemmShape panel = s;
  panel.stored.reset(), panel.interleaved = false, panel.ldc = s.n;
  for (const int64_t columns : {most, s.n % most}) {
    panel.n = columns;
    if (columns > 0 && !context.gemm.has(panel, context.threads)) return false;
  }
  const ScratchFrame frame(context.scratch);
  auto* decoded = context.scratch.take<bf16>(most * s.k);
  View stored(const_cast<void*>(b), *s.stored, {s.trans_b ? s.n : s.k, s.trans_b ? s.k : s.n});
  stored.interleaved = s.interleaved;
  const Rows out = rows_of(c, s.out, s.n), bias_row = rows_of(bias, s.bias, 0);
  for (int64_t j = 0; j < s.n; j += most) {
    panel.n = std::min(most, s.n - j);
    const int64_t rows = s.trans_b ? panel.n : s.k, columns = s.trans_b ? s.k : panel.n;
    parallel_for(context.threads, rows, grain_rows(columns), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        decode_into(stored, s.trans_b ? j + r : r, s.trans_b ? 0 : j, columns, DType::bf16, decoded + r * columns,
                    context);
    });
    if (!context.gemm.run(panel, a, decoded, s.has_bias ? bias_row.at(0, j) : nullptr, out.at(0, j), context))
      fail("internal", "matmul: oneDNN has lost a product that it had");
  }
  return true;
}

}  // namespace

bool multiply_bf16(const GemmShape& shape, const void* a, const void* b, const void* bias, void* c,
                   CpuContext& context) {
  if (!context.isa->bf16_multiply) return context.gemm.run(shape, a, b, bias, c, context);
  multiply_tiles(shape, a, b, bias, c, context);
  return true;
}

void multiply(const GemmShape& shape, const void* a, const void* b, const void* bias, void* c, CpuContext& context) {
  const bool done =
      shape.stored ? multiply_decoded(shape, a, b, bias, c, context) : context.gemm.run(shape, a, b, bias, c, context);
  if (!done) multiply_tiles(shape, a, b, bias, c, context);
}

}  // namespace qeng
