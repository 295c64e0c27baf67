// GroupedMatmul of rows apart, by the kernels of RowLinear.
#pragma once
#include "kernels/cuda/linear/experts.h"
#include "kernels/cuda/linear/row_linear.h"

namespace qeng {

// One weight, of the first expert; that of the next lies expert_bytes behind.
struct GroupedProducts {
  RowProducts p;
  Experts experts;
  int64_t expert_bytes;
};

__device__ inline RowWeight weight_of(const GroupedProducts& g, int expert) {
  RowWeight weight = g.p.weight[0];
  weight.w = static_cast<const char*>(weight.w) + expert * g.expert_bytes;
  const int bytes = weight.bias_f32 || g.p.x_f32 ? 4 : 2;
  if (weight.bias) weight.bias = static_cast<const char*>(weight.bias) + expert * weight.n * bytes;
  return weight;
}

// Column j of rows of no expert.
__device__ inline void clear_rows(const GroupedProducts& g, const ExpertRows& of, int64_t j) {
  const RowWeight& weight = g.p.weight[0];
  for (int r = 0; r < of.rows && !g.p.acc; ++r) {
    const int64_t i = (of.first + r) * weight.n + j;
    if (weight.y_f32)
      static_cast<float*>(weight.y)[i] = 0.0f;
    else
      put(static_cast<bf16*>(weight.y) + i, 0.0f);
  }
}

__host__ __device__ inline const RowProducts& products_of(const RowProducts& p) { return p; }
__host__ __device__ inline const RowProducts& products_of(const GroupedProducts& g) { return g.p; }

// Whether there are so few rows that most of them are alone with their expert.
inline bool mostly_single(const Experts& x) { return x.rows <= x.count; }
// Rows of an expert where all have as many.
inline int64_t rows_of_expert(const Experts& x) { return ceil_div(x.rows, x.count); }

void grouped_rows(const GroupedMatmul& op, const Experts& experts, CudaContext& context);
// Its kernels, for weights of `dtype`: floats (row_dense.cu), block formats (row_blocks.cu).
void grouped_dense(const char* name, const GroupedProducts& g, DType dtype, CudaContext& context);
void grouped_blocks(const char* name, const GroupedProducts& g, DType dtype, CudaContext& context);
// The second for more than a few rows of an expert, with the same bits (row_tiles.cu).
void block_tiles(const char* name, const GroupedProducts& g, DType dtype, CudaContext& context);

// One thread block to kRowWarps rows of each expert's weight and the rows of x of a slot.
template <int kRows>
dim3 grouped_grid(const char* name, const GroupedProducts& g) {
  return dim3(static_cast<unsigned>(ceil_div(g.p.weight[0].n, kRowWarps)), expert_slots<kRows>(name, g.experts));
}

}  // namespace qeng
