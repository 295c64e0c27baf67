// What the threads of a block of paged_tiles.cu share: how much it takes at a time, its shared memory, and what a thread
// sums.
#pragma once
#include "kernels/cuda/attention/code_tables.h"
#include "kernels/cuda/attention/paged_sides.h"

namespace qeng::tiles {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kTileKeys = kv_codes::kLanes;  // keys of a warp's product
constexpr int kPieceTiles = kPieceKeys / kTileKeys;
constexpr int kUnit = 16;                                              // dimensions of a product of values
constexpr int kRunBytes = 4 * kv_codes::kLanes * kv_codes::kMostBits;  // of codes, at most

// What some row takes of 16 keys; a word has it of four times 16.
enum Needs : uint32_t { kKeyCodes = 1, kKeyRows = 2, kValueCodes = 4, kValueRows = 8 };
constexpr uint32_t kEach = 0x01010101;

// Rows (queries times heads) are taken in turns of 8 tiles. runs: most of a key and of a value.
template <int runs, int tiles>
struct Form {
  static constexpr int kRuns = runs, kTiles = tiles, kRows = 8 * tiles;
  static constexpr int kOwnRuns = (runs + kWarps - 1) / kWarps;  // of the values, for a warp
  static constexpr bool kHalves = runs < kWarps;                 // two warps share a run, each has a half
  static constexpr int kUnits = kHalves ? 1 : 2 * kOwnRuns;
  // Times 16 keys of a step, for a warp and for all: with 8 rows and tables of 4 bits, 90 KB.
  static constexpr int kOwnTiles = runs <= 4 ? 2 : 1, kStepTiles = kWarps * kOwnTiles, kStep = kStepTiles * kTileKeys;
};

// Shared memory behind the tables. Fragments of B lie as the lanes ask for them.
template <class F>
struct Shared {
  uint4 q_half[F::kRuns][F::kTiles][kWarp], q_bf16[F::kRuns][F::kTiles][kWarp];             // of a run: two products
  uint2 p_codes[F::kStepTiles][F::kTiles][kWarp], p_rows[F::kStepTiles][F::kTiles][kWarp];  // of 16 keys: one
  char keys[kWarps][F::kOwnTiles][F::kRuns * kRunBytes + 2 * kv_codes::kLanes];             // each warp's tiles
  char values[kWarps][F::kStepTiles][F::kOwnRuns][kRunBytes];  // each warp's runs of all tiles
  uint32_t value_scales[F::kStepTiles][kv_codes::kLanes / 2];
  float tops[kWarps][F::kRows], totals[kWarps][F::kRows], factors[F::kRows];
  uint32_t needs[kPieceTiles / F::kStepTiles + 1][F::kOwnTiles];  // of each step of a piece, and of none
  int64_t key_tiles[kPieceTiles], value_tiles[kPieceTiles];       // where their codes begin
  int key_slots[kPieceTiles], value_slots[kPieceTiles];
  int item;
};

// What a thread has of the softmax, and of the sums: rows 2 t and 2 t + 1 of each tile, in dimensions 2 g and 2 g + 1 of
// its warp's units, as mma has them.
template <class F>
struct Sums {
  float top[F::kTiles][2], total[F::kTiles][2], o[F::kUnits][F::kTiles][4];
  __device__ void clear() {
#pragma unroll
    for (int n = 0; n < F::kTiles; ++n) {
      top[n][0] = top[n][1] = kMasked, total[n][0] = total[n][1] = 0;
#pragma unroll
      for (int u = 0; u < F::kUnits; ++u)
        for (float& x : o[u][n]) x = 0;
    }
  }
};

// What the tiles of a step need, the same in all lanes.
template <class F>
struct StepNeeds {
  uint32_t words[F::kOwnTiles];
  __device__ uint32_t of(int tile) const { return words[tile / 4] >> (8 * (tile % 4)); }
  __device__ uint32_t own(int warp, int i) const {  // of a warp's tile
    return (warp * F::kOwnTiles < 4 ? words[0] : words[F::kOwnTiles - 1]) >> (8 * (warp * F::kOwnTiles % 4 + i));
  }
  __device__ bool any(uint32_t need) const {
    uint32_t some = 0;
    for (const uint32_t word : words) some |= word;
    return some & kEach * need;
  }
  __device__ bool all(uint32_t need) const {
    uint32_t each = ~0u;
    for (const uint32_t word : words) each &= word;
    return (each & kEach * need) == kEach * need;
  }
};

// Over the eight lanes that have the same rows.
__device__ inline float rows_max(float x) {
  for (int distance = 4; distance < kWarp; distance *= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, distance));
  return x;
}
__device__ inline float rows_sum(float x) {
  for (int distance = 4; distance < kWarp; distance *= 2) x += __shfl_xor_sync(kAllLanes, x, distance);
  return x;
}
// The same in all lanes of a warp, as the compiler then knows: it need not bring them together behind a branch.
template <class T>
__device__ T uniform(T x) {
  return __shfl_sync(kAllLanes, x, 0);
}
// Two floats as bf16, and what is missing there.
__device__ inline uint32_t split_bf16(float low, float high, uint32_t& rest) {
  const uint32_t pair = ptx::pack_bf16(low, high);
  rest = ptx::pack_bf16(low - float_of(pair << 16), high - float_of(pair & 0xffff0000u));
  return pair;
}

}  // namespace qeng::tiles
