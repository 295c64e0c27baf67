// RowLinear with weights of a block format W: x as int8 codes, sums exact within a group (kernels/math/blocks).
#include "kernels/math/blocks/activations.h"
#ifndef X
#define X f32
#define Y f32
#define BIAS absent
#endif

// An item rounds a group of a row: codes [rows, k], scales [rows, groups].
__kernel void round_rows(__global const void* x, __global char* codes, __global float* scales, long k, int group,
                         long groups, long count) {
  FOR_ITEM(i, count);
  const long first = i / groups * k + i % groups * group, end = min(first + group, (i / groups + 1) * k);
  float largest = 0;
  for (long l = first; l < end; ++l) {
    const float size = fabs(load(X, x, l));
    if (size > largest || size != size) largest = size;
  }
  const ActivationGroup made = activation_group(largest);
  ActivationFit fit = {{0}, {0}};
  for (long l = first; l < end; ++l) add_to_fit(&fit, activation_count(load(X, x, l), made.inverse));
  const ActivationStep best = best_step(fit);
  for (long l = first; l < end; ++l)
    codes[l] = (char)activation_code(activation_count(load(X, x, l), made.inverse), best.index);
  scales[i] = activation_scale(made, best, group);
}

#ifdef W
// Elements of a run share a scale of w, and are of one group of x.
#define TOGETHER (OF(W, GROUP) < 32 ? OF(W, GROUP) : 32)
typedef struct {
  long rows, n, k, groups;
  int group;
  float alpha;
  int acc, scaled;
} Shape;

// An item has a column of y in ROWS of its rows: it decodes a row of w once for them.
__kernel void multiply_codes(__global const char* codes, __global const float* scales, __global const void* w,
                             __global const float* factors, __global const void* bias, __global void* y, Shape s) {
  FOR_ITEM(column, s.n);
  const long first_row = get_global_id(1) * ROWS, begin = column * s.k;
  float sum[ROWS];
  Twofold dot[ROWS], less[ROWS];
  const Twofold zero = {0, 0};
  for (int r = 0; r < ROWS; ++r) sum[r] = 0, dot[r] = zero, less[r] = zero;
  for (long first = 0; first < s.k; first += TOGETHER) {
    int products[ROWS], all[ROWS];
    for (int r = 0; r < ROWS; ++r) products[r] = 0, all[r] = 0;
    char of_w[TOGETHER];
    for (int l = 0; l < TOGETHER; ++l) of_w[l] = (char)code_of(W, w, begin + first + l);
    for (int r = 0; r < ROWS; ++r) {
      __global const char* of_x = codes + min(first_row + r, s.rows - 1) * s.k + first;
      for (int l = 0; l < TOGETHER; ++l) products[r] += of_w[l] * of_x[l], all[r] += of_x[l];
    }
    const float scale = scale_of(W, w, begin + first), least = min_of(W, w, begin + first);
    const bool ends = (first + TOGETHER) % s.group == 0 || first + TOGETHER == s.k;
    for (int r = 0; r < ROWS; ++r) {
      dot[r] = add_product(dot[r], scale, (float)products[r]);
      if (OF(W, HAS_MIN)) less[r] = add_product(less[r], least, (float)all[r]);
      if (!ends) continue;
      const float of_group = scales[min(first_row + r, s.rows - 1) * s.groups + first / s.group];
      sum[r] += (dot[r].high + dot[r].low) * of_group;
      if (OF(W, HAS_MIN)) sum[r] -= (less[r].high + less[r].low) * of_group;
      dot[r] = zero, less[r] = zero;
    }
  }
  for (int r = 0; r < ROWS && first_row + r < s.rows; ++r) {
    const long at = (first_row + r) * s.n + column;
    const float value = s.alpha * (s.scaled ? factors[column] * sum[r] : sum[r]) + load(BIAS, bias, column);
    store(Y, y, at, s.acc ? load(Y, y, at) + value : value);
  }
}
#endif
