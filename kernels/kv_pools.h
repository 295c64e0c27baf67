// What the views of KvStore and PagedAttention say of a pool: plain rows, or codes where it has levels.
#pragma once
#include <bit>

#include "kernels/math/kv_codes.h"
#include "kernels/view.h"

namespace qeng {

// Slots of a pool of keys or values.
inline int64_t pool_slots(const View& pool, const View& levels) {
  return pool.shape[0] * (levels ? kv_codes::kLanes : 1);
}

// The codes of a pool with levels, for heads of `dim`; tile_bytes of the result are those of the pool if the views
// belong together.
inline kv_codes::Shape code_shape(const View& pool, const View& levels, int64_t dim) {
  const auto count = static_cast<uint64_t>(levels.elements());
  const uint64_t narrow = count % 3 == 0 ? count / 3 : count;
  const int bits = std::bit_width(narrow) - 1;
  const int64_t runs = dim / kv_codes::kRun, words = (pool.shape[2] - 2 * kv_codes::kLanes) / 4 / kv_codes::kLanes;
  const int64_t wide = count % 3 == 0 ? words - bits * runs : 0;
  return {static_cast<int>(dim), bits, static_cast<int>(wide * kv_codes::kRun)};
}

}  // namespace qeng
