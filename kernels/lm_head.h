// How LmHeadLoss cuts up its workspace (lm_head_workspace in ops.h gives the bytes) and its rows, for every backend.
#pragma once
#include <algorithm>

#include "kernels/view.h"

namespace qeng {

struct LmHeadParts {
  static constexpr int64_t kAlign = 64;
  static constexpr int64_t kRowsStep = 16;  // chunks are padded to multiples, so that libraries see few shapes
  static int64_t padded(int64_t rows) { return (rows + kRowsStep - 1) / kRowsStep * kRowsStep; }
  // Room for a row of logits, in floats: rows may start at multiples of 32 bytes, though a vocabulary is odd.
  static int64_t row(int64_t vocab) { return (vocab + 7) / 8 * 8; }

  int64_t logits, h, dh, rows, places, end;  // byte offsets from base()
  LmHeadParts(int64_t tokens, int64_t hidden, int64_t vocab, int64_t chunk, DType dtype) {
    const auto aligned = [](int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; };
    const int64_t element = static_cast<int64_t>(dtype_size(dtype));
    logits = 0;
    h = logits + aligned(std::min(padded(chunk), padded(tokens)) * row(vocab) * 4);
    dh = h + aligned(padded(tokens) * hidden * element);
    rows = dh + aligned(padded(tokens) * hidden * element);
    places = rows + aligned(padded(tokens) * 4);
    end = places + aligned(tokens * 4);
  }
  int64_t bytes() const { return end + kAlign; }
  static char* base(const View& workspace) {
    char* begin = workspace.as<char>();
    return begin + (kAlign - reinterpret_cast<intptr_t>(begin) % kAlign) % kAlign;
  }
};

// Of the tokens of a batch, of which `trained` are (-1: any number), those that LmHeadLoss is to compute: the number is
// rounded up to a share of the tokens. A recorded program has sizes of its own, so each value is one more recording: a
// step that is run and not replayed, products whose new shapes are timed, and the graph's own memory, some MB; the
// tensors are the same. With eighths these are eight at most, and a sixteenth of the tokens is computed in vain.
constexpr int64_t kHeadShares = 8;
inline int64_t head_rows(int64_t tokens, int64_t trained) {
  if (trained < 0) return tokens;
  const int64_t share = LmHeadParts::padded((tokens + kHeadShares - 1) / kHeadShares);
  return std::min(tokens, std::max<int64_t>(1, (trained + share - 1) / share) * share);
}

// Rows of a chunk on a GPU. Each chunk reads the head's weight again, in each of its products, which then do as many
// operations for a byte of it as the chunk has rows. An H200 does 180 in the time it reads one: 256 rows would leave
// reading 70 % as long as computing, 2048 rows 9 %. They also give dh, which has few columns, about as many tiles as
// there are multiprocessors. The logits take at most a sixteenth of the device's memory; chunks are even
// where all rows are trained. They do not depend on how many are: a row adds to dw in the same chunk either way.
inline int gpu_head_chunk(int64_t tokens, int64_t vocab, size_t device_bytes) {
  int64_t rows = 2048;
  while (rows > 256 && static_cast<size_t>(rows * LmHeadParts::row(vocab) * 4) > device_bytes / 16) rows /= 2;
  const int64_t chunks = std::max<int64_t>(1, (tokens + rows - 1) / rows);
  return static_cast<int>(std::max<int64_t>(1, (tokens + chunks - 1) / chunks));
}

}  // namespace qeng
