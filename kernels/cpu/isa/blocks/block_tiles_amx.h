// Tiles of block_tiles.cpp for processors with AMX: 16 rows of x times the 16 of a panel, whose codes lie as the tile
// instructions take them. Of several groups or blocks the sums are made first, all of them exact; what follows is the
// arithmetic of tile(), a row of 16 lanes at a time.
#pragma once
#include <immintrin.h>

#include "kernels/cpu/isa/blocks/block_panel.h"
#include "kernels/cpu/isa/simd/tile_config_amx.h"

namespace qeng::isa::QENG_ISA {

// Tiles 0 and 1: codes of x; 2: of the panel; 4 and 5: sums.
template <int kSteps>
constexpr TileConfig tile_config() {
  TileConfig config;
  config.rows[0] = config.rows[1] = config.rows[4] = config.rows[5] = static_cast<uint8_t>(kMatrixRows);
  config.row_bytes[0] = config.row_bytes[1] = 4 * kSteps;
  config.rows[2] = kSteps;
  config.row_bytes[2] = config.row_bytes[4] = config.row_bytes[5] = 4 * kPanelRows;
  return config;
}

template <class Block>
struct MatrixTile {
  using D = Dot<Block>;
  using P = PanelBlock<Block>;
  // A unit has an integer sum of its own: a group of the block, or what meets a group of x if it has none.
  static constexpr int kUnits = D::kScaled ? P::kGroups : kActivationGroups<Block>, kUnitSteps = P::kSteps / kUnits;
  static constexpr int kDepth = kUnitSteps < 16 ? kUnitSteps : 16;  // steps of an instruction
  static constexpr int kBlocks = D::kScaled ? 1 : 8 / kUnits;       // together
  static constexpr int kMostXs = kUnits > 8 ? 1 : 2;                // tiles of x: their sums stay in the first level
  alignas(64) static constexpr TileConfig kConfig = tile_config<kDepth>();

  // x: the tiles of 16 rows; apart: bytes to those of the next
  template <int kXs>
  static void unit(const int8_t* x, int64_t apart, int64_t column, const P& w, int step, int32_t* sums) {
    _tile_zero(4);
    if constexpr (kXs == 2) _tile_zero(5);
    for (int s = step; s < step + kUnitSteps; s += kDepth) {
      const int64_t at = column + 4 * s;
      const int8_t* tile = x + at / kMatrixBytes * (kMatrixRows * kMatrixBytes) + at % kMatrixBytes;
      _tile_loadd(2, w.codes[s], 4 * kPanelRows);
      _tile_loadd(0, tile, kMatrixBytes);
      if constexpr (kXs == 2) _tile_loadd(1, tile + apart, kMatrixBytes);
      if constexpr (D::kMost == 0) {
        _tile_dpbssd(4, 0, 2);
        if constexpr (kXs == 2) _tile_dpbssd(5, 1, 2);
      } else {
        _tile_dpbsud(4, 0, 2);
        if constexpr (kXs == 2) _tile_dpbsud(5, 1, 2);
      }
    }
    _tile_stored(4, sums, 4 * kPanelRows);
    if constexpr (kXs == 2) _tile_stored(5, sums + kMatrixRows * kPanelRows, 4 * kPanelRows);
  }

  // total + <x, w> over a group of x. sums: of the first unit, those of others in the group `stride` apart
  static __m512 add_group(const Activations& x, int64_t group, const P& w, const int32_t* sums, int64_t stride,
                          __m512 total) {
    __m512i dot = _mm512_load_si512(sums);
    if constexpr (D::kScaled) {
      const auto scaled = [&](int u) {  // the upper of two equal factors, with sign
        return _mm512_mullo_epi32(_mm512_load_si512(sums + u * stride),
                                  _mm512_srai_epi32(_mm512_load_si512(w.scales[u]), 16));
      };
      dot = scaled(0);
      for (int u = 1; u < kUnits; ++u) dot = _mm512_add_epi32(dot, scaled(u));
    }
    __m512i less = _mm512_setzero_si512();
    if constexpr (P::kSums) {
      const int16_t* of_x = P::kGroups == 16 ? x.sums_16 + group * 16 : x.sums_32 + group * 8;
      for (int pair = 0; pair < P::kGroups / 2; ++pair) {
        int both;
        __builtin_memcpy(&both, of_x + 2 * pair, 4);
        less = _mm512_add_epi32(less, _mm512_madd_epi16(_mm512_load_si512(w.mins[pair]), _mm512_set1_epi32(both)));
      }
    }
    const __m512i sum = _mm512_set1_epi32(x.sums[group]);
    const __m512 scale = _mm512_set1_ps(x.scales[group]);
    if constexpr (D::kScaled && D::kOffset) dot = _mm512_sub_epi32(dot, less);
    if constexpr (!D::kScaled && D::kOffset)
      dot = _mm512_sub_epi32(dot, _mm512_mullo_epi32(sum, _mm512_set1_epi32(D::kOffset)));
    total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(_mm512_load_ps(w.factor), scale), total);
    if constexpr (has_min<Block>()) {
      const __m512 times = _mm512_mul_ps(_mm512_load_ps(w.minimum_factor), scale);
      if constexpr (D::kScaled)
        total = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(less), times, total);
      else
        total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), times, total);
    }
    return total;
  }

  // Rows first .. first + 16 kXs of x.
  template <int kXs>
  static void run(const Activations& x, int64_t first, const P* panel, float* out, int64_t stride) {
    constexpr int kRows = kXs * static_cast<int>(kMatrixRows);
    alignas(64) int32_t sums[kBlocks * kUnits][kRows][kPanelRows];
    const int64_t count = x.k / Block::kElements;
    const int64_t apart = (x.k + kMatrixBytes - 1) / kMatrixBytes * kMatrixBytes * kMatrixRows;
    const int8_t* tiles = x.tiles + first / kMatrixRows * apart;
    for (int r = 0; r < kRows; ++r) _mm512_storeu_ps(out + r * stride, _mm512_setzero_ps());
    for (int64_t b = 0; b < count; b += kBlocks) {
      const int blocks = count - b < kBlocks ? static_cast<int>(count - b) : kBlocks;
      for (int i = 0; i < blocks; ++i)
        for (int u = 0; u < kUnits; ++u)
          unit<kXs>(tiles, apart, (b + i) * Block::kElements, panel[b + i], u * kUnitSteps, sums[i * kUnits + u][0]);
      constexpr int kGroups = kActivationGroups<Block>;  // each of all units, or of one
      for (int r = 0; r < kRows; ++r) {
        __m512 total = _mm512_loadu_ps(out + r * stride);
        for (int i = 0; i < blocks; ++i)
          for (int a = 0; a < kGroups; ++a)
            total = add_group(x, ((first + r) * count + b + i) * kGroups + a, panel[b + i], sums[i * kUnits + a][r],
                              kRows * kPanelRows, total);
        _mm512_storeu_ps(out + r * stride, total);
      }
    }
  }
};

// As many of the rows as tiles take; returns how many.
template <class Block>
int64_t matrix_tiles(const Activations& x, int64_t first, int64_t rows, const PanelBlock<Block>* panel, float* out,
                     int64_t stride) {
  using Tile = MatrixTile<Block>;
  if (rows < kMatrixRows) return 0;
  _tile_loadconfig(&Tile::kConfig);
  int64_t r = 0;
  if constexpr (Tile::kMostXs == 2)
    for (; r + 2 * kMatrixRows <= rows; r += 2 * kMatrixRows)
      Tile::template run<2>(x, first + r, panel, out + r * stride, stride);
  for (; r + kMatrixRows <= rows; r += kMatrixRows)
    Tile::template run<1>(x, first + r, panel, out + r * stride, stride);
  _tile_release();
  return r;
}

}  // namespace qeng::isa::QENG_ISA
