// A product of f32 matrices that one thread makes by itself.
#pragma once
#include <cstdint>

namespace qeng {

// c = alpha * op(a) op(b) + (acc ? c : 0), row-major; ld: elements between stored rows.
//   op(a): [m, k], stored as [k, m] with trans_a   op(b): [k, n], stored as [n, k] with trans_b   c: [m, n]
struct Tile {
  const float *a = nullptr, *b = nullptr;
  float* c = nullptr;
  int64_t m = 0, n = 0, k = 0, lda = 0, ldb = 0, ldc = 0;
  bool trans_a = false, trans_b = false, acc = false;
  float alpha = 1;
};

}  // namespace qeng
