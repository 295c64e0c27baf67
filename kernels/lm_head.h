// How LmHeadLoss cuts up its workspace, for every backend (lm_head_workspace in ops.h gives the bytes).
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

  int64_t logits, h, dh, rows, end;  // byte offsets from base()
  LmHeadParts(int64_t tokens, int64_t hidden, int64_t vocab, int64_t chunk, DType dtype) {
    const auto aligned = [](int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; };
    const int64_t element = static_cast<int64_t>(dtype_size(dtype));
    logits = 0;
    h = logits + aligned(std::min(padded(chunk), padded(tokens)) * row(vocab) * 4);
    dh = h + aligned(padded(tokens) * hidden * element);
    rows = dh + aligned(padded(tokens) * hidden * element);
    end = rows + aligned(tokens * 4);
  }
  int64_t bytes() const { return end + kAlign; }
  static char* base(const View& workspace) {
    char* begin = workspace.as<char>();
    return begin + (kAlign - reinterpret_cast<intptr_t>(begin) % kAlign) % kAlign;
  }
};

// Rows of a chunk on a GPU. Each chunk reads the head's weight again, in each of its products, which then do as many
// operations for a byte of it as the chunk has rows. An H200 does 180 in the time it reads one: 256 rows would leave
// reading 70 % as long as computing, 2048 rows 9 %. They also give dh, which has few columns, about as many tiles as
// there are multiprocessors. The logits take at most a sixteenth of the device's memory; chunks are even.
inline int gpu_head_chunk(int64_t tokens, int64_t vocab, size_t device_bytes) {
  int64_t rows = 2048;
  while (rows > 256 && static_cast<size_t>(rows * LmHeadParts::row(vocab) * 4) > device_bytes / 16) rows /= 2;
  const int64_t chunks = std::max<int64_t>(1, (tokens + rows - 1) / rows);
  return static_cast<int>(std::max<int64_t>(1, (tokens + chunks - 1) / chunks));
}

}  // namespace qeng
