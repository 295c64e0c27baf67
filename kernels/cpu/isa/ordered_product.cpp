// A product whose elements are summed in the order of k, each by itself, whatever the sizes and the strides.
#include "kernels/cpu/isa/simd/tile.h"
#include "kernels/cpu/tile.h"

namespace qeng::isa::QENG_ISA {
namespace {

// Of a block of k, kOrderedDepth long, copies of some columns of b lie in the first-level cache (32 KB at AVX-512's width:
// 256 long they did not fit), and those of the rows of a in the second.
constexpr int64_t kColumns = kBlockVecs * kWidth < 16 ? 16 : kBlockVecs * kWidth;
constexpr int64_t kStride = kOrderedDepth + 16;  // of a's rows: an odd number of lines, so that they share no sets

// to[i, l] = from[i, l], or from[l, i] where it is transposed: i < rows, l < columns. Rows of `to` are to_stride apart, and
// have room for whole vectors.
void copy_part(const float* from, int64_t stride, bool transposed, int64_t rows, int64_t columns, float* to,
               int64_t to_stride) {
  if (!transposed) {
    for (int64_t i = 0; i < rows; ++i)
      for_lanes(columns,
                [&](int64_t l, int64_t lanes) { store(to + i * to_stride + l, load(from + i * stride + l, lanes)); });
    return;
  }
  const int64_t whole_rows = rows / 16 * 16, whole_columns = columns / 16 * 16;
  transpose(from, stride, whole_columns, whole_rows, to, to_stride);
  for (int64_t l = whole_columns; l < columns; ++l)
    for (int64_t i = 0; i < whole_rows; ++i) to[i * to_stride + l] = from[l * stride + i];
  for (int64_t l = 0; l < columns; ++l)
    for (int64_t i = whole_rows; i < rows; ++i) to[i * to_stride + l] = from[l * stride + i];
}

void ordered_product(const Tile& t, float* memory) {
  float *a = memory, *b = a + kOrderedRows * kStride, *c = b + kOrderedDepth * kOrderedColumns;
  for (int64_t l = 0; l < t.k; l += kOrderedDepth) {
    const int64_t depth = t.k - l < kOrderedDepth ? t.k - l : kOrderedDepth;
    const bool add = t.acc || l > 0;
    copy_part(t.a + (t.trans_a ? l * t.lda : l), t.lda, t.trans_a, t.m, depth, a, kStride);
    for (int64_t j = 0; j < t.n; j += kColumns) {
      const int64_t columns = t.n - j < kColumns ? t.n - j : kColumns, wide = (columns + 15) / 16 * 16;
      if (columns < wide) clear(b, depth * kColumns);
      copy_part(t.b + (t.trans_b ? j * t.ldb + l : l * t.ldb + j), t.ldb, t.trans_b, depth, columns, b, kColumns);
      float* out = columns < wide ? c : t.c + j;
      const int64_t stride = columns < wide ? kColumns : t.ldc;
      if (columns < wide && add) copy_part(t.c + j, t.ldc, false, t.m, columns, c, kColumns);
      (add ? multiply<true> : multiply<false>)(t.m, depth, wide, a, kStride, 1, b, kColumns, out, stride, nullptr);
      for (int64_t i = 0; i < t.m && columns < wide; ++i)
        for_lanes(columns, [&](int64_t at, int64_t lanes) {
          store(t.c + i * t.ldc + j + at, load(c + i * kColumns + at), lanes);
        });
    }
  }
}

}  // namespace

void fill_ordered_product(Table& table) { table.ordered_product = ordered_product; }

}  // namespace qeng::isa::QENG_ISA
