// The root-mean-square norm of a row in pieces, by a team of threads (row_team.h), for rmsnorm.cu, and for products whose
// last block norms what all of them made (linear/row_end.h): with the same bits.
#pragma once
#include "kernels/cuda/row_team.h"

namespace qeng {

// addend, sum: null, or of the rows sum = x + addend, which are written too.
template <class T>
struct NormRow {
  const T *x, *addend, *w;
  T *sum, *y;
  float* rstd;
  int dim;
  float eps, shift;  // shift: 1 where norms add one to their weights

  // What y gets for neighbouring elements of the sum, or of x.
  template <int n>
  __device__ Pack<T, n> scaled(const Pack<T, n>& in, float factor, int column) const {
    float values[n], weights[n];
    unpack(in, values);
    unpack(load<n>(w + column), weights);
    for (int i = 0; i < n; ++i) values[i] = values[i] * factor * (weights[i] + shift);
    return pack<T>(values);
  }
  __device__ float factor(float squares) const { return 1.0f / sqrtf(squares / static_cast<float>(dim) + eps); }
};
template <class T, int n>
__device__ Pack<T, n> added(const Pack<T, n>& left, const Pack<T, n>& right) {
  float a[n], b[n];
  unpack(left, a);
  unpack(right, b);
  for (int i = 0; i < n; ++i) a[i] += b[i];
  return pack<T>(a);
}
template <class T, int n>
__device__ float add_squares(const Pack<T, n>& pack, float squares) {
  float values[n];
  unpack(pack, values);
#pragma unroll
  for (int i = 0; i < n; ++i) squares = fmaf(values[i], values[i], squares);
  return squares;
}

}  // namespace qeng
