// Where paged attention leaves its results, and the arithmetic by which rows of f32 get there: a warp has a row, a lane
// columns of it, in fours.
#pragma once
#include "kernels/cuda/attention/paged_attention.h"
#include "kernels/cuda/linear/row_round.h"
#include "kernels/cuda/vector.h"

namespace qeng {

struct PagedOutput {
  void* o;
  bool q_f32;          // and o; else bf16
  const float* sinks;  // [heads], or null
  float* partial;      // of a divided plan: [items, columns, kTileRows, partial_row]
  PagedShape shape;
  PagedPlan* plan;
  RoundedRows rounded;  // o of a divided plan, for the product after it (rounds_merged); or no codes
};

// What a row has summed; columns 4 * lane + 128 u + i are the lane's.
template <int kColumns>
struct RowSums {
  float top = kMasked, total = 0;  // the total of a piece is spread over the lanes until the piece ends
  float o[kColumns][4] = {};
};

__host__ __device__ inline int fours_of(int dim) { return (dim + 3) / 4; }
// Floats of a row in shared memory: a bank apart from its neighbours, in fours.
__host__ __device__ inline int pitch_of(int dim) { return 4 * fours_of(dim) + 4; }

__device__ inline void read_four(float (&x)[4], const float* from) {
  const float4 four = *reinterpret_cast<const float4*>(from);
  x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
}

// The factor for a row's sums, of which a sink (null: none) is a last piece that has no value; a row that saw no key is
// 0.
__device__ inline float finish_row(float top, float total, const float* sink) {
  SoftmaxRow softmax{top, total};
  float before = 1;
  if (sink && softmax.total > 0) before = merge_pieces(softmax.top, softmax.total, *sink * kLog2e, 1).before;
  return before * softmax.inverse();
}

// out: a PagedOutput, or what has its o and q_f32.
template <class Out>
__device__ void put_output(const Out& out, int64_t at, float x) {
  out.q_f32 ? put(static_cast<float*>(out.o) + at, x) : put(static_cast<bf16*>(out.o) + at, x);
}

// The row's output. at: the row's first column; lane: the thread's, of those that share the row.
template <class Out, int kColumns>
__device__ void write_row(const Out& out, int64_t at, int value_dim, const float* sink, const RowSums<kColumns>& row,
                          int lane) {
  const float factor = finish_row(row.top, row.total, sink);
#pragma unroll
  for (int u = 0; u < kColumns; ++u)
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int d = 4 * (lane + u * kWarp) + c;
      if (d < value_dim) put_output(out, at + d, row.o[u][c] * factor);
    }
}

// A row's sums of a piece into those of the pieces before it, or where partial is given, there, behind the item's
// earlier rows.
template <int kColumns>
__device__ void end_piece(RowSums<kColumns>& all, const RowSums<kColumns>& sums, int fours, float* partial) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float total = warp_sum(sums.total);
  if (partial) {
#pragma unroll
    for (int u = 0; u < kColumns; ++u)
      if (lane + u * kWarp < fours)
        *reinterpret_cast<float4*>(partial + 4 * (lane + u * kWarp)) =
            make_float4(sums.o[u][0], sums.o[u][1], sums.o[u][2], sums.o[u][3]);
    if (lane == 0) partial[4 * fours] = sums.top, partial[4 * fours + 1] = total;
  } else {
    const MergeFactors factors = merge_pieces(all.top, all.total, sums.top, total);
#pragma unroll
    for (int u = 0; u < kColumns; ++u)
      for (int c = 0; c < 4; ++c) all.o[u][c] = merged(all.o[u][c], sums.o[u][c], factors);
  }
}

// Queues the kernels of PagedAttention but the plan's, which is left as it was.
void attend(const PagedAttention& op, const PagedShape& shape, PagedPlan* plan, const RoundedRows& rounded,
            CudaContext& context);
// Whether its last kernel can round o, in groups that divide the columns of a key head's queries.
bool rounds_merged(const PagedShape& shape);
// By tensor cores, for q in bf16 over pools of bf16 or f16.
bool suits_paged_mma(const PagedAttention& op, const CudaContext& context);
void paged_by_mma(const PagedAttention& op, const PagedOutput& out, CudaContext& context);
// By Hopper's, for pools of bf16 and tiles of kWideTileRows; with the bits of paged_by_mma, which suits what this does.
bool suits_paged_sm90(const PagedAttention& op, const CudaContext& context);
void paged_by_wgmma(const PagedAttention& op, const PagedOutput& out, CudaContext& context);
// Queues the merging of a divided plan's pieces.
void merge_partials(const PagedOutput& out, CudaContext& context);

}  // namespace qeng
