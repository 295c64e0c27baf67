// RowLinear with bf16 weights on processors with AMX, for any number of rows: tiles of 16 rows of the weight, as they
// lie in memory, times up to 16 rows of x. The order of sums is that of the tile instruction, 32 elements of k after
// 32, and so the same for one row of x as for many.
#include "kernels/cpu/isa/simd/tile_config_amx.h"
#include "kernels/cpu/isa/simd/transpose.h"
#include "kernels/cpu/isa/table.h"

namespace qeng::isa::QENG_ISA {
namespace {

constexpr int kRows = static_cast<int>(kMatrixRows), kStep = static_cast<int>(kBf16Step), kPairs = kStep / 2;
// Steps after which sums are put aside, so that a part of x meets many rows of a weight from the second-level cache.
constexpr int64_t kChunk = 32;

// Tiles 0 to 3: sums, [rows of w, rows of x]; 4 and 5: of w; 6 and 7: of x, [pairs, rows of x, 2].
void configure(int columns) {
  alignas(64) TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    const bool of_w = tile == 4 || tile == 5;
    config.rows[tile] = kRows;
    config.row_bytes[tile] = static_cast<uint16_t>(of_w ? 2 * kStep : 4 * columns);
  }
  asm volatile("" : : "r"(&config) : "memory");  // g++ 12 takes the stores for dead
  _tile_loadconfig(&config);
}

// The instructions name their tiles.
template <int i>
inline void zero_sums() {
  if constexpr (i == 0) _tile_zero(0);
  if constexpr (i == 1) _tile_zero(1);
  if constexpr (i == 2) _tile_zero(2);
  if constexpr (i == 3) _tile_zero(3);
}
template <int i>
inline void load_sums(const float* p, int64_t bytes) {
  if constexpr (i == 0) _tile_loadd(0, p, bytes);
  if constexpr (i == 1) _tile_loadd(1, p, bytes);
  if constexpr (i == 2) _tile_loadd(2, p, bytes);
  if constexpr (i == 3) _tile_loadd(3, p, bytes);
}
template <int i>
inline void store_sums(float* p, int64_t bytes) {
  if constexpr (i == 0) _tile_stored(0, p, bytes);
  if constexpr (i == 1) _tile_stored(1, p, bytes);
  if constexpr (i == 2) _tile_stored(2, p, bytes);
  if constexpr (i == 3) _tile_stored(3, p, bytes);
}
template <int i, int groups>
inline void multiply(const void* w, int64_t bytes) {  // loads tile i of w; those of x are there
  if constexpr (i == 0) {
    _tile_loadd(4, w, bytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (groups == 2) _tile_dpbf16ps(1, 4, 7);
  } else {
    _tile_loadd(5, w, bytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

template <int n, class F>
inline __attribute__((always_inline)) void each(F f) {
  if constexpr (n > 0) {
    each<n - 1>(f);
    f.template operator()<n - 1>();
  }
}

struct Product {
  const bf16 *x, *w;
  int64_t n, k, steps, groups;
  int columns;  // of a group
  float* sums;  // [n rounded up to 16, groups * columns]
};

// kWs tiles of rows of w from row j on, times kGroups groups of x from `group` on, over steps begin .. end: 2 by 2, as
// each tile then is loaded for two products, or 1 by 1, which draws more from the memory than more rows of w together
// do.
template <int kWs, int kGroups>
void chunk(const Product& p, int64_t j, int64_t group, int64_t begin, int64_t end) {
  const int64_t row_bytes = 2 * p.k, across = p.groups * p.columns, group_size = p.steps * kStep * p.columns;
  float* sums = p.sums + j * across + group * p.columns;
  const auto at = [&](int i) { return sums + i / kGroups * kRows * across + i % kGroups * p.columns; };
  each<kWs * kGroups>([&]<int i>() { begin == 0 ? zero_sums<i>() : load_sums<i>(at(i), 4 * across); });
  for (int64_t step = begin; step < end; ++step) {
    const bf16* x = p.x + group * group_size + step * kStep * p.columns;
    _tile_loadd(6, x, 4 * p.columns);
    if constexpr (kGroups == 2) _tile_loadd(7, x + group_size, 4 * p.columns);
    each<kWs>([&]<int i>() {
      const bf16* w = p.w + (j + i * kRows) * p.k + step * kStep;
      const int64_t rows = p.n - j - i * kRows, elements = p.k - step * kStep;
      if (rows >= kRows && elements >= kStep) return multiply<i, kGroups>(w, row_bytes);
      alignas(64) bf16 edge[kRows][kStep] = {};
      for (int64_t r = 0; r < (rows < kRows ? rows : kRows); ++r)
        __builtin_memcpy(edge[r], w + r * p.k, static_cast<size_t>(2 * (elements < kStep ? elements : kStep)));
      asm volatile("" : : "r"(edge) : "memory");
      multiply<i, kGroups>(edge, 2 * kStep);
    });
  }
  each<kWs * kGroups>([&]<int i>() { store_sums<i>(at(i), 4 * across); });
}

void bf16_group(Float type, const void* x, int64_t rows, int64_t columns, int64_t k, bf16* to) {
  for_type(type, [&](auto tag) {
    const auto* from = static_cast<const decltype(tag)*>(x);
    for (int64_t first = 0; first < k; first += kStep, to += kStep * columns) {
      alignas(64) bf16 block[kRows][kStep] = {};
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = 0; i < kStep && first + i < k; i += kWidth) {
          const int64_t left = k - first - i, lanes = left < kWidth ? left : kWidth;
          store(block[r] + i, load(from + r * k + first + i, lanes), lanes);
        }
      auto* words = reinterpret_cast<float*>(to);  // pairs, which only move
      const auto* pairs = reinterpret_cast<const float*>(block);
      if (columns == kRows) {
        transpose(pairs, kPairs, kRows, kPairs, words, kRows);
      } else {
        for (int pair = 0; pair < kPairs; ++pair)
          for (int64_t r = 0; r < columns; ++r)
            __builtin_memcpy(words + pair * columns + r, pairs + r * kPairs + pair, 4);
      }
    }
  });
}

void bf16_tiles(const bf16* x, int64_t rows, const void* w, float* sums, float* out, int64_t stride, int64_t n,
                int64_t k) {
  Product p;
  p.x = x, p.w = static_cast<const bf16*>(w), p.n = n, p.k = k, p.sums = sums;
  p.steps = (k + kStep - 1) / kStep, p.groups = (rows + kRows - 1) / kRows;
  p.columns = static_cast<int>(rows < kRows ? rows : kRows);
  const int64_t together = p.groups > 1 ? kChunk : p.steps;
  configure(p.columns);
  for (int64_t begin = 0; begin < p.steps; begin += together) {
    const int64_t end = begin + together < p.steps ? begin + together : p.steps;
    for (int64_t j = 0; j < n; j += 2 * kRows) {
      const bool both = j + kRows < n;
      int64_t group = 0;
      for (; both && group + 2 <= p.groups; group += 2) chunk<2, 2>(p, j, group, begin, end);
      for (; group < p.groups; ++group) {
        chunk<1, 1>(p, j, group, begin, end);
        if (both) chunk<1, 1>(p, j + kRows, group, begin, end);
      }
    }
  }
  _tile_release();
  const int64_t across = p.groups * p.columns;
  for (int64_t j = 0; j < n; j += kRows)
    for (int64_t r = 0; r < rows; r += kRows) {
      const int64_t count_j = n - j < kRows ? n - j : kRows, count_r = rows - r < kRows ? rows - r : kRows;
      const float* from = sums + j * across + r;
      if (count_j == kRows && count_r == kRows) {
        transpose(from, across, kRows, kRows, out + r * stride + j, stride);
        continue;
      }
      for (int64_t i = 0; i < count_r; ++i)
        for (int64_t l = 0; l < count_j; ++l) out[(r + i) * stride + j + l] = from[l * across + i];
    }
}

}  // namespace

void fill_bf16_tiles(Table& table) {
  table.bf16_group = bf16_group;
  table.bf16_tiles = bf16_tiles;
}

}  // namespace qeng::isa::QENG_ISA
