// The order of the rows of q and k. llama.cpp's llama architecture rotates neighbours (2i, 2i + 1) where Hugging
// Face's, and qeng's, rotates halves (i, i + d / 2); its files hold the rows of each head in the order that makes the
// two agree:
//   pairs[h d + 2 i + s, :] = halves[h d + s d / 2 + i, :]     d = rows / heads, i < d / 2, s in {0, 1}
// Whole rows move, so blocks stay as they are. A bias is one element a row.
#pragma once
#include <cstring>

#include "kernels/error.h"
#include "kernels/view.h"
#include "kernels/view_text.h"

namespace qeng {

// out: as many bytes as x has, elsewhere. Error("shape") unless the heads divide x's rows into even numbers.
template <bool kToPairs>
void move_rows(const View& x, int64_t heads, std::byte* out) {
  const int64_t rows = x.shape[0];
  if (x.rank < 1 || heads < 1 || rows % (2 * heads) != 0)
    fail("shape", shape_text(x), ": its rows are not those of ", heads, " heads of even size");
  const int64_t half = rows / heads / 2;
  const size_t bytes = x.bytes() / static_cast<size_t>(rows);
  const std::byte* in = x.as<const std::byte>();
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t s = 0; s < 2; ++s)
      for (int64_t i = 0; i < half; ++i) {
        const auto pairs = static_cast<size_t>(2 * (h * half + i) + s) * bytes;
        const auto halves = static_cast<size_t>((2 * h + s) * half + i) * bytes;
        std::memcpy(out + (kToPairs ? pairs : halves), in + (kToPairs ? halves : pairs), bytes);
      }
}

inline void rows_to_halves(const View& x, int64_t heads, std::byte* out) { move_rows<false>(x, heads, out); }
inline void rows_to_pairs(const View& x, int64_t heads, std::byte* out) { move_rows<true>(x, heads, out); }

}  // namespace qeng
