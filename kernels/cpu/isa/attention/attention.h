// What the attention loops (attention.cpp, attention_grad.cpp of this folder) are given, and the tile sizes they share.
//
// A tile is a run of queries of one document times the query heads that share one kv head: row r is query r / group,
// head r % group, so K and V are converted and transposed once for the whole group. All products run on padded f32
// copies.
#pragma once
#include <cstdint>

#include "kernels/cpu/isa/table.h"

namespace qeng::isa {

constexpr int64_t kTileKeys =
    64;  // one register block of columns with AVX-512; 64 x 128 floats of K or V are 32 KB: L1
constexpr int64_t kTileRows = 128;  // rows of Q and O for head_dim 128 and the scores: 160 KB, a part of any L2

constexpr int64_t padded(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }
constexpr int64_t tile_queries(int64_t group) { return group < kTileRows ? kTileRows / group : 1; }

// Queries first .. first + queries against keys begin .. end. Query first + i sees keys below first_end + i, at most
// `window` of them (window 0: all). Tensors are those of the head group: q, k, v, o point at its first head of row 0.
struct AttentionTile {
  Float type;
  const void *q, *k, *v;
  void* o;
  float* lse;                                      // of the group's first head; the next head is lse_stride on
  int64_t q_stride, k_stride, v_stride, o_stride;  // elements from one token to the next
  int64_t lse_stride, group, head_dim, value_dim;
  int64_t first, queries, begin, end, first_end, window;
  float scale, softcap;
  const float* sinks;  // [group], or null
  float* scratch;      // attention_scratch floats, 64-byte aligned
};
constexpr int64_t attention_scratch(int64_t group, int64_t head_dim, int64_t value_dim) {
  const int64_t rows = tile_queries(group) * group, dim = padded(head_dim), wide = padded(value_dim);
  return rows * (dim + wide + kTileKeys + 32) + kTileKeys * (dim + (dim > wide ? dim : wide));
}

// The gradient of keys begin .. end of one document, whose queries are first .. first + queries. dk and dv of those
// keys are written; dq of query t goes to row t - dq_first of dq: [rows, group, padded(head_dim)] f32 without `scale`,
// which must be zero before and gets the sums over these keys only.
struct AttentionGradTile {
  Float type;
  const void *q, *k, *v, *dout;
  const float *lse, *delta;
  void *dk, *dv;
  float* dq;
  int64_t q_stride, k_stride, v_stride, dout_stride, lse_stride, group, head_dim, value_dim;
  int64_t first, queries, begin, end, first_end, window, dq_first;
  float scale, softcap;
  float* scratch;  // attention_grad_scratch floats, 64-byte aligned
};
constexpr int64_t attention_grad_scratch(int64_t group, int64_t head_dim, int64_t value_dim) {
  const int64_t rows = tile_queries(group) * group, dim = padded(head_dim), wide = padded(value_dim);
  return rows * (dim + wide + 2 * kTileKeys + 32) + kTileKeys * (3 * dim + 2 * wide);
}

}  // namespace qeng::isa
