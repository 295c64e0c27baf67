// What the kernels that pointwise.cpp writes begin with. RANK: dimensions of the space
#ifndef Y
#define Y f32
#endif
typedef struct {
  long shape[4], columns, rows, inner, summed, blocks;
} Space;
typedef struct {
  long of[4];
} Strides;

// Where element (row, column) of the space lies; row: digits of the dimensions but the last.
static inline long place(Strides strides, const Space* s, long row, long column) {
  long at = column * strides.of[RANK - 1];
  for (int d = RANK - 2; d >= 0; --d) {
    at += row % s->shape[d] * strides.of[d];
    row /= s->shape[d];
  }
  return at;
}

// Row s of the sum that leaves `kept`.
static inline long summed_row(const Space* space, long kept, long s) {
  return kept / space->inner * space->summed * space->inner + s * space->inner + kept % space->inner;
}

// out[k, j] (+)= sum over b of partial[k, b, j]
__kernel void add_partial(__global const float* partial, __global void* y, long blocks, long columns, int acc,
                          long count) {
  FOR_ITEM(i, count);
  float sum = 0;
  for (long b = 0; b < blocks; ++b) sum += partial[(i / columns * blocks + b) * columns + i % columns];
  store(Y, y, i, acc ? load(Y, y, i) + sum : sum);
}
