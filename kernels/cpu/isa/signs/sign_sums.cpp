// Products of f32 rows with one_bit weights, four weights at a time: a table has the sixteen sums +-a +-b +-c +-d of
// each run of four elements, and a run of weights picks one. Tables are made of kSumRows rows of x together, so that an
// entry is whole vectors, which costs an addition where separate weights would cost four products.
#include "kernels/cpu/isa/signs/sign_tables.h"
#include "kernels/cpu/isa/simd/transpose.h"
#include "kernels/cpu/isa/table.h"

namespace qeng::isa::QENG_ISA {
namespace {

constexpr int kVecs = kSumRows / kWidth;
constexpr int64_t kTable = 16 * kSumRows;  // elements of a run's table

void sign_sum_tables(const float* x, float* tables) {
  for (int64_t run = 0; run < kSumRuns; ++run, x += 4 * kSumRows, tables += kTable)
    for (int v = 0; v < kVecs; ++v) {
      const auto element = [&](int i) { return load(x + i * kSumRows + v * kWidth); };
      const Vec a = element(0), b = element(1), c = element(2), d = element(3), none = splat(0.0f);
      const Vec lower[4] = {none - a - b, a - b, b - a, a + b}, upper[4] = {none - c - d, c - d, d - c, c + d};
      for (int bits = 0; bits < 16; ++bits)
        store(tables + bits * kSumRows + v * kWidth, lower[bits % 4] + upper[bits / 4]);
    }
}

void sign_sums(const float* tables, const uint8_t* picks, int64_t n, float* sums) {
  static_assert(kSumRows == 16);  // so that a pick, sixteen times the bits, counts elements of a table
  for (int64_t j = 0; j < n; ++j, picks += kSumRuns, sums += kSumRows) {
    Vec total[kVecs];
    for (int v = 0; v < kVecs; ++v) total[v] = load(sums + v * kWidth);
    for (int64_t part = 0; part < kSumRuns; part += 8) {
      uint64_t eight;
      __builtin_memcpy(&eight, picks + part, sizeof eight);
      // Where an entry is one vector, eight picks are loaded together, as each would need as many loads as its entry.
      const auto pick = [&](int64_t run) { return kVecs == 1 ? eight >> 8 * run & 255 : picks[part + run]; };
#pragma GCC unroll 8
      for (int64_t run = 0; run < 8; ++run) {
        const float* entry = tables + (part + run) * kTable + pick(run);
        for (int v = 0; v < kVecs; ++v) total[v] = total[v] + load(entry + v * kWidth);
      }
    }
    for (int v = 0; v < kVecs; ++v) store(sums + v * kWidth, total[v]);
  }
}

void transpose_floats(const float* from, int64_t from_stride, int64_t rows, int64_t columns, float* to,
                      int64_t to_stride) {
  transpose(from, from_stride, rows, columns, to, to_stride);
}

}  // namespace

void fill_sign_sums(Table& table) {
  table.sign_sum_tables = sign_sum_tables;
  table.sign_sums = sign_sums;
  table.transpose = transpose_floats;
}

}  // namespace qeng::isa::QENG_ISA
