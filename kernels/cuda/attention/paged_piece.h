// How paged attention by tensor cores takes a row's keys (paged_mma.cu, paged_sm90.cu): 64 at a time, from a multiple
// of 64 on, with the totals of each 16 apart. Who computes a row does the same operations in the same order, each
// rounded as written here, so its bits are the same. Of a product an element is a chain of instructions of 16, and
// those of mma.sync and wgmma give one result: the models of both that Xie et al. 2025 (arXiv 2511.10909) compared with
// the device bit by bit are the same for bf16 on Hopper. tests/gpu/part.sh (bits) compares them where there is one.
#pragma once
#include "kernels/cuda/attention/attention_mma.h"
#include "kernels/cuda/attention/paged_sides.h"

namespace qeng {

constexpr int kStepKeys = 64, kStepParts = kStepKeys / 16;
static_assert(kPieceKeys % kStepKeys == 0);

// Keys that some row of an item sees, `begin` being a whole number of steps.
struct ItemKeys {
  int lowest, begin, end;
};
__device__ inline ItemKeys keys_of(const PagedShape& shape, const PagedItem& item) {
  const int lowest = shape.window > 0 ? max(0, item.seen - shape.window) : 0;
  return {lowest, max(item.piece * kPieceKeys, lowest / kStepKeys * kStepKeys),
          min((item.piece + item.pieces) * kPieceKeys, item.seen + item.queries - 1)};
}

// The heads that the rows of an item in a column take in turn: `count` from `first` on, of one key head.
struct ItemHeads {
  int kv_head, first, count;
};
__device__ inline ItemHeads heads_of(const PagedShape& shape, int column) {
  const int kv_head = column / shape.head_blocks, within = column % shape.head_blocks * shape.tile_heads;
  return {kv_head, kv_head * shape.group + within, min(shape.tile_heads, shape.group - within)};
}

// A row's sums of a piece, as far as a lane of the row's four has them.
template <int parts>
struct RowPiece {
  float top, total[parts];

  __device__ __forceinline__ void clear() {
    top = kMasked;
#pragma unroll
    for (float& x : total) x = 0;
  }
  // Scores of a step, to base 2, become probabilities: score(i), the lane's four of each part. highest: of the row's.
  // Returns the factor for what was summed before.
  template <class Score>
  __device__ __forceinline__ float raise(float highest, Score score) {
    SoftmaxRow row{top, 0};
    const float factor = row.raise(highest, 1), offset = row.offset(1);
    top = row.top;
#pragma unroll
    for (int part = 0; part < parts; ++part) {
      total[part] = __fmul_rn(total[part], factor);
#pragma unroll
      for (int i = 4 * part; i < 4 * part + 4; ++i) {
        score(i) = SoftmaxRow::probability(score(i), 1, offset);
        total[part] = __fadd_rn(total[part], score(i));
      }
    }
    return factor;
  }
  // The row's total, by all lanes of a warp.
  __device__ __forceinline__ float whole() const {
    float sum = quad_sum(total[0]);
#pragma unroll
    for (int part = 1; part < parts; ++part) sum += quad_sum(total[part]);
    return sum;
  }
};

}  // namespace qeng
