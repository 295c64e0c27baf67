// What the threads of a block of paged_tiles.cu share: how much it takes at a time, its shared memory, and what a thread
// sums.
#pragma once
#include "kernels/cuda/attention/code_tables.h"
#include "kernels/cuda/attention/paged_sides.h"

namespace qeng::tiles {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kTileKeys = kv_codes::kLanes;  // keys of a warp's product
constexpr int kPieceTiles = kPieceKeys / kTileKeys, kOwnTiles = kPieceTiles / kWarps;
constexpr int kUnit = 16;                                    // dimensions of a product of values
constexpr int kWordBytes = 4 * kv_codes::kLanes;             // a word of each lane of a run
constexpr int kRunBytes = kWordBytes * kv_codes::kMostBits;  // of codes, at most

// Rows (queries times heads) are taken in turns of 8 tiles. runs: most of a key and of a value. staged: how many of a
// piece's tiles of values lie in shared memory at a time: all, or two halves of which one is copied while the other is
// used.
template <int runs, int tiles, int staged>
struct Form {
  static constexpr int kRuns = runs, kTiles = tiles, kRows = 8 * tiles;
  static constexpr int kOwnRuns = (runs + kWarps - 1) / kWarps;  // of the values, for a warp
  static constexpr bool kHalves = runs < kWarps;                 // two warps share a run, each has a half
  // Of a tile, for a warp: half a run is two words of each lane at most. Tiles lie so that the threads of a quad, which
  // look at two words of two tiles, meet in no bank.
  static constexpr int kOwnBytes = (kHalves ? 2 * kWordBytes : kOwnRuns * kRunBytes) + kWordBytes / 2;
  static constexpr int kCopyLanes = kHalves ? 8 : 16;
  static constexpr int kUnits = kHalves ? 1 : 2 * kOwnRuns;
  static constexpr int kStagedKeys = runs * tiles <= 4 ? kOwnTiles : 16 / (runs * tiles);  // of a warp's tiles
  static constexpr int kStagedValues = staged, kGroup = staged == kPieceTiles ? staged : staged / 2;
};

// An item, as its first warp finds it for all.
struct Task {
  int number;       // among all, or one past the last
  int piece, turn;  // what is being done: rows from `turn` on of the item
  int begins;       // the piece is the turn's first
  int kv_head, rows, pieces_end;
  int end, lowest, recent;  // keys that some row sees: [lowest, end); from `recent` on, rows beside codes
  int partial;              // of a divided plan: where its first row is, in floats
  PagedItem item;
  int64_t places[kTileRows];  // of each row in q and o, in rows
  int heads[kTileRows];       // of q
  int seen[kTileRows];        // a row sees the keys below
};

// Which tiles of a piece some row takes codes or rows of, a bit each, those of values kPieceTiles higher than those of
// keys; of which tiles some row does not see all keys; and which need more than codes, keys or values.
struct Needs {
  uint32_t codes, rows, edges, care;
};
constexpr uint32_t kEveryTile = (1u << kPieceTiles) - 1;

// Shared memory behind the tables. Fragments of B lie as the lanes ask for them.
template <class F>
struct Shared {
  uint4 q[F::kRuns][F::kTiles][kWarp];               // of a run: two products
  uint4 p_codes[kPieceTiles / 2][F::kTiles][kWarp];  // of two tiles: two products; at probability_place
  union {
    char keys[kWarps][F::kStagedKeys][F::kRuns * kRunBytes + 2 * kv_codes::kLanes];  // each warp's tiles
    uint2 p_rows[kPieceTiles][F::kTiles][kWarp];                                     // once the scores are there
  };
  char values[kWarps][F::kStagedValues][F::kOwnBytes];  // each warp's runs, or half of one
  uint32_t value_scales[kPieceTiles][kv_codes::kLanes / 2];
  float4 tops[F::kRows], totals[F::kRows];       // a number of each warp
  float factors[F::kRows], late[F::kRows];       // of a row, for its scores; and what is left to the softmax of that
  float ups[F::kRows];                           // what its q was multiplied by
  alignas(16) uint32_t code_tiles[kPieceTiles];  // where codes are
  int key_slots[kPieceTiles], value_slots[kPieceTiles];  // where rows are
  Needs needs;
  Task task;
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

// Where a lane's probabilities lie: threads that write them together meet in no bank.
__device__ inline int probability_place(int lane) { return lane ^ (lane / 8 * 2); }

__device__ inline float largest_of(float4 x) { return fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w)); }
__device__ inline float sum_of(float4 x) { return x.x + x.y + x.z + x.w; }
// Of two numbers in each of the eight lanes that have the same rows: g = 0 gets the sum or the largest of the first, g = 1
// of the second.
template <class Join>
__device__ float over_rows(float x, float y, int g, Join join) {
  const float sent = g % 2 ? x : y;
  float kept = g % 2 ? y : x;
  kept = join(kept, __shfl_xor_sync(kAllLanes, sent, 4));
  for (int distance = 8; distance < kWarp; distance *= 2) kept = join(kept, __shfl_xor_sync(kAllLanes, kept, distance));
  return kept;
}
// The same in all lanes of a warp, as the compiler then knows: it need not bring them together behind a branch.
template <class T>
__device__ T uniform(T x) {
  return __shfl_sync(kAllLanes, x, 0);
}
// An address that the compiler keeps, where it would add up its parts before each copy.
__device__ inline const char* in_registers(const char* address) {
  const uint64_t bits = reinterpret_cast<uint64_t>(address);
  const uint64_t low = ptx::opaque(static_cast<uint32_t>(bits)), high = ptx::opaque(static_cast<uint32_t>(bits >> 32));
  return reinterpret_cast<const char*>(high << 32 | low);
}
// Two floats as bf16, and what is missing there.
__device__ inline uint32_t split_bf16(float low, float high, uint32_t& rest) {
  const uint32_t pair = ptx::pack_bf16(low, high);
  rest = ptx::pack_bf16(low - float_of(pair << 16), high - float_of(pair & 0xffff0000u));
  return pair;
}

}  // namespace qeng::tiles
