// Matmul with one_bit b, in f32, by tables of sums (isa/sign_sums.cpp): twice as fast as a product with the weights as
// f32, and as exact. A row's sums have one order, which neither its neighbours nor the threads change.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "kernels/cpu/isa/signs/sign_tables.h"
#include "kernels/cpu/matmul.h"

namespace qeng {

namespace {

using isa::kSumColumns;
using isa::kSumRows;
using isa::kSumRuns;

constexpr int64_t kPickBytes = 1 << 20;  // of weights at a time: they stay in the last-level cache while rows pass
// Columns of c that a thread takes at a time: enough for a set of tables to be worth making, few enough for their sums
// (32 KB) to stay near.
constexpr int64_t kLeastColumns = 128, kMostColumns = 512;
static_assert(std::endian::native == std::endian::little);

int64_t pieces(int64_t n, int64_t size) { return (n + size - 1) / size; }

// Eight bytes from the bits of one, each 16 or 0.
constexpr auto spread_table() {
  std::array<uint64_t, 256> all{};
  for (uint64_t byte = 0; byte < 256; ++byte)
    for (int i = 0; i < 8; ++i) all[byte] |= (byte >> i & 1) << (8 * i + 4);
  return all;
}
constexpr std::array<uint64_t, 256> kSpread = spread_table();

// Columns first .. first + n of op(b) as isa.sign_sums picks them: [kSumColumns-th of k, n, kSumRuns]. Rows past k are
// -1. Where b is stored [n, k], the runs of column j are the nibbles of its row.
void pick_rows(const View& b, int64_t first, int64_t n, int64_t j, uint8_t* picks) {
  const char* row = row_at(b, first + j);
  const int64_t words = b.columns() / 32;
  for (int64_t i = 0; i < words; ++i) {
    uint32_t word;
    std::memcpy(&word, row + 4 * i, sizeof word);
    uint64_t nibbles = word;
    nibbles = (nibbles | nibbles << 16) & 0x0000ffff0000ffff;
    nibbles = (nibbles | nibbles << 8) & 0x00ff00ff00ff00ff;
    nibbles = (nibbles << 4 | nibbles << 8) & 0xf0f0f0f0f0f0f0f0;
    std::memcpy(picks + (i / 2 * n + j) * kSumRuns + i % 2 * 8, &nibbles, sizeof nibbles);
  }
  if (words % 2) std::memset(picks + (words / 2 * n + j) * kSumRuns + 8, 0, 8);
}

// Transposes 8 x 8 bytes, a row a word: blocks of 4, of 2 and of 1 change sides.
void transpose_bytes(std::array<uint64_t, 8>& rows) {
  constexpr std::array<uint64_t, 3> kLower = {0x00000000ffffffff, 0x0000ffff0000ffff, 0x00ff00ff00ff00ff};
  for (size_t step = 0; step < 3; ++step)
    for (size_t i = 0, half = size_t{4} >> step; i < 8; ++i) {
      if (i & half) continue;
      const uint64_t change = (rows[i] >> 8 * half ^ rows[i + half]) & kLower[step];
      rows[i] ^= change << 8 * half, rows[i + half] ^= change;
    }
}

// Where it is stored [k, n], for kSumColumns rows of it from `depth` on and the 8 columns from first + j on.
void pick_columns(const View& b, int64_t first, int64_t n, int64_t depth, int64_t j, uint8_t* picks) {
  const int64_t row_bytes = b.columns() / 8, left = b.rows() - depth;
  const auto* bytes = reinterpret_cast<const uint8_t*>(row_at(b, depth)) + (first + j) / 8;
  for (int64_t run = 0; run < kSumRuns; run += 8) {
    std::array<uint64_t, 8> eight{};  // a run of each column in each
    for (int64_t i = 4 * run; i < std::min(left, 4 * (run + 8)); ++i)
      eight[static_cast<size_t>(i / 4 - run)] |= kSpread[bytes[i * row_bytes]] << i % 4;
    transpose_bytes(eight);
    for (size_t c = 0; c < 8; ++c)
      std::memcpy(picks + (depth / kSumColumns * n + j + static_cast<int64_t>(c)) * kSumRuns + run, &eight[c], 8);
  }
}

// Rows first .. first + kSumRows and columns depth .. depth + kSumColumns of alpha op(a): [kSumColumns, kSumRows],
// zeros past the ends. rows: memory for [kSumRows, kSumColumns]
void gather(const Matmul& op, int64_t first, int64_t depth, float* rows, float* x, const isa::Table& isa) {
  const int64_t m = op.c.rows(), k = op.trans_a ? op.a.rows() : op.a.columns();
  const int64_t m_left = std::min(kSumRows, m - first), k_left = std::min(kSumColumns, k - depth);
  const auto widen = [&](int64_t element, float* to, int64_t count) {
    isa.scale(float_type(op.a), at(op.a, element), isa::Float::f32, to, op.alpha, count);
  };
  const bool whole = m_left == kSumRows && k_left == kSumColumns;
  if (whole && !op.trans_a && op.a.dtype == DType::f32 && op.alpha == 1)
    return isa.transpose(op.a.as<float>() + first * k + depth, k, kSumRows, kSumColumns, x, kSumRows);
  if (!whole) std::fill_n(op.trans_a ? x : rows, kSumRows * kSumColumns, 0.0f);
  if (op.trans_a) {
    for (int64_t i = 0; i < k_left; ++i) widen((depth + i) * m + first, x + i * kSumRows, m_left);
  } else {
    for (int64_t r = 0; r < m_left; ++r) widen((first + r) * k + depth, rows + r * kSumColumns, k_left);
    isa.transpose(rows, kSumColumns, kSumRows, kSumColumns, x, kSumRows);
  }
}

// The same part of a, early: its rows lie far apart, where the hardware does not fetch ahead.
void ask_for(const Matmul& op, int64_t first, int64_t depth) {
  if (op.trans_a) return;
  const int64_t k = op.a.columns(), m_left = std::min(kSumRows, op.a.rows() - first);
  for (int64_t r = 0; r < m_left; ++r)
    for (int64_t i = depth; i < std::min(k, depth + kSumColumns); i += 16)
      __builtin_prefetch(at(op.a, (first + r) * k + i));
}

}  // namespace

void multiply_signs(const Matmul& op, CpuContext& context) {
  const isa::Table& isa = *context.isa;
  const int64_t m = op.c.rows(), n = op.c.columns(), k = op.trans_a ? op.a.rows() : op.a.columns();
  const int64_t tiles = pieces(m, kSumRows), depths = pieces(k, kSumColumns);
  const int64_t fitting = kPickBytes / std::max<int64_t>(1, depths * kSumRuns) / 32 * 32;
  const int64_t most = std::min(std::max(fitting, kLeastColumns), pieces(n, 32) * 32);
  // Fewer at a time where there would not be work for every thread.
  const int64_t splits = std::min(pieces(most, kLeastColumns), pieces(4 * context.threads, tiles));
  const int64_t width = std::min(kMostColumns, pieces(pieces(most, splits), 16) * 16);
  auto* picks = context.scratch.take<uint8_t>(depths * most * kSumRuns);
  const bool plain = op.c.dtype == DType::f32 && !op.bias && !op.acc;
  constexpr int64_t kTile = kSumRows * kSumColumns;
  const int64_t each = 2 * kTile + 16 * kSumRuns * kSumRows + 2 * width * kSumRows;
  auto* memory = context.scratch.take<float>(context.threads * each);
  for (int64_t first = 0; first < n; first += most) {
    const int64_t columns = std::min(most, n - first);
    if (op.trans_b)
      parallel_for(context.threads, columns, grain_rows(k), [&](int64_t begin, int64_t end) {
        for (int64_t j = begin; j < end; ++j) pick_rows(op.b, first, columns, j, picks);
      });
    else
      parallel_for(
          context.threads, depths * columns / 8, kGrainElements / kSumColumns, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i)
              pick_columns(op.b, first, columns, i / (columns / 8) * kSumColumns, i % (columns / 8) * 8, picks);
          });
    const int64_t across = pieces(columns, width);
    parallel_each(context.threads, tiles * across, [&](int64_t index) {
      const int64_t row = index / across * kSumRows, column = index % across * width;
      const int64_t count = std::min(width, columns - column);
      float* rows = memory + team_rank() * each;
      float *x = rows + kTile, *tables = x + kTile, *sums = tables + 16 * kSumRuns * kSumRows;
      float* dots = sums + width * kSumRows;
      std::fill_n(sums, width * kSumRows, 0.0f);
      for (int64_t d = 0; d < depths; ++d) {
        gather(op, row, d * kSumColumns, rows, x, isa);
        if (d + 1 < depths) ask_for(op, row, (d + 1) * kSumColumns);
        isa.sign_sum_tables(x, tables);
        isa.sign_sums(tables, picks + (d * columns + column) * kSumRuns, count, sums);
      }
      const int64_t m_left = std::min(kSumRows, m - row);
      if (plain && m_left == kSumRows && count % 16 == 0)
        return isa.transpose(sums, kSumRows, count, kSumRows, op.c.as<float>() + row * n + first + column, n);
      isa.transpose(sums, kSumRows, pieces(count, 16) * 16, kSumRows, dots, width);
      for (int64_t r = 0; r < m_left; ++r) finish_row(op, row + r, first + column, count, dots + r * width, context);
    });
  }
}

}  // namespace qeng
