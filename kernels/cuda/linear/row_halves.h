// Products with f16 weights by mma.m16n8k8 in TF32, which holds an f16 or a bf16 as it is, and an f32 as the sum of
// two. Tensor cores cut off what they add: so their sums are of 64 k each, and multiprocessors add those and round. All
// kernels that cut k so give the same bits (row_mma.cu, row_few.cu).
#pragma once
#include "kernels/cuda/linear/row_tensor.h"

namespace qeng {

// A fragment of 16 rows of a weight and 16 k as two of mma_tf32: of the first and of the last 8 k. Of those the even
// elements come first, so that none moves. row: as ldmatrix wants it.
__device__ __forceinline__ void load_halves(float (&a)[2][4], const char* row) {
  uint32_t pairs[4];
  ptx::ldmatrix_x4(pairs, row);
#pragma unroll
  for (int e = 0; e < 4; ++e) ptx::unpack_f16(pairs[e], a[e / 2][e % 2], a[e / 2][e % 2 + 2]);
}

// The same of 8 rows of x, in pieces that TF32 holds and that add up to x. One of bf16. Of f32 two, the smaller first:
// of 11 bits each and a sign, so at most the last bit of x is lost. Of an infinity the smaller one is not a number.
template <class X>
constexpr int kPieces = std::is_same_v<X, float> ? 2 : 1;
template <class X>
struct Right {
  float b[kPieces<X>][2][2];
  // The lane's two elements of the first 8 k (half: 0) or of the last.
  __device__ __forceinline__ void take(int half, const Pack<X, 2>& pair) {
    constexpr uint32_t kKept = 0xffffe000u, kUp = 0x1000u;
    float x[2];
    unpack(pair, x);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (kPieces<X> == 2) {
        const float high = __uint_as_float((__float_as_uint(x[i]) + kUp) & kKept);
        b[0][half][i] = __uint_as_float(__float_as_uint(__fsub_rn(x[i], high)) & kKept);
        x[i] = high;
      }
      b[kPieces<X> - 1][half][i] = x[i];
    }
  }
};

// Adds products of 16 kHigh rows of a weight, for which sums(i) has 16 each, and 8 rows of x, 16 k of each.
template <class X, int kHigh, class OfSums>
__device__ __forceinline__ void add_halves(const float (&left)[kHigh][2][4], const Right<X>& right, OfSums sums) {
#pragma unroll
  for (int piece = 0; piece < kPieces<X>; ++piece)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < kHigh; ++i)
        ptx::mma_tf32(sums(i), left[i][half], right.b[piece][half][0], right.b[piece][half][1]);
}

// By at most kFewRows rows of x, or so many of an expert.
constexpr int kFewRows = 16;
void row_few(const char* name, const RowProducts& p, CudaContext& context);
void row_few(const char* name, const GroupedProducts& g, CudaContext& context);

}  // namespace qeng
