// Root mean square norms: a group of LANES items for each row. X: element type of all; dim: columns of a row; w has
// rows for `groups` of them.
#ifndef X
#define X f32
#endif

static inline float weight(__global const void* w, long at, int plus_one) {
  const float x = load(X, w, at);
  return plus_one ? x + 1.0f : x;
}

static inline void normalize(__global const void* x, __global const void* w, __global void* y, __global float* rstd,
                             long dim, long groups, float eps, int plus_one, __local float* exchange) {
  const long row = get_group_id(0), of_w = row % groups * dim;
  float squares = 0;
  for (long i = get_local_id(0); i < dim; i += LANES) {
    const float value = load(X, x, row * dim + i);
    squares += value * value;
  }
  const float r = 1.0f / sqrt(sum_of_lanes(squares, exchange) / (float)dim + eps);
  for (long i = get_local_id(0); i < dim; i += LANES)
    store(X, y, row * dim + i, load(X, x, row * dim + i) * r * weight(w, of_w + i, plus_one));
  if (get_local_id(0) == 0) rstd[row] = r;
}
__kernel void rmsnorm(__global const void* x, __global const void* w, __global void* y, __global float* rstd, long dim,
                      long groups, float eps, int plus_one) {
  __local float exchange[LANES];
  normalize(x, w, y, rstd, dim, groups, eps, plus_one, exchange);
}
__kernel void add_rmsnorm(__global const void* a, __global const void* b, __global const void* w, __global void* sum,
                          __global void* y, __global float* rstd, long dim, float eps, int plus_one) {
  __local float exchange[LANES];
  const long begin = get_group_id(0) * dim;
  for (long i = get_local_id(0); i < dim; i += LANES)
    store(X, sum, begin + i, load(X, a, begin + i) + load(X, b, begin + i));
  normalize(sum, w, y, rstd, dim, 1, eps, plus_one, exchange);  // an item reads the columns that it wrote
}

__kernel void rmsnorm_dx(__global const void* x, __global const void* w, __global const float* rstd,
                         __global const void* dy, __global const void* dresidual, __global void* dx, long dim,
                         long groups, int plus_one, int residual) {
  __local float exchange[LANES];
  const long row = get_group_id(0), of_w = row % groups * dim;
  const float r = rstd[row];
  float products = 0;
  for (long i = get_local_id(0); i < dim; i += LANES)
    products += load(X, dy, row * dim + i) * weight(w, of_w + i, plus_one) * (load(X, x, row * dim + i) * r);
  const float mean = sum_of_lanes(products, exchange) / (float)dim;
  for (long i = get_local_id(0); i < dim; i += LANES) {
    const long at = row * dim + i;
    const float g = load(X, dy, at) * weight(w, of_w + i, plus_one);
    const float value = r * (g - load(X, x, at) * r * mean);
    store(X, dx, at, residual ? load(X, dresidual, at) + value : value);
  }
}
// An item for each weight, over the rows in order.
__kernel void rmsnorm_dw(__global const void* x, __global const float* rstd, __global const void* dy,
                         __global float* dw, long rows, long dim, long groups, int acc) {
  FOR_ITEM(i, groups * dim);
  float sum = 0;
  for (long row = i / dim; row < rows; row += groups) {
    const long at = row * dim + i % dim;
    sum += load(X, dy, at) * (load(X, x, at) * rstd[row]);
  }
  dw[i] = acc ? dw[i] + sum : sum;
}
