// Products of matrices by tiles in local memory. A, B, BIAS, C: element types (A may be `rounded`: f32 that counts
// as bf16). A group has ROWS_OF x COLUMNS_OF items; an item has the sums of EACH_ROWS rows and WIDE neighbouring
// columns of c, as vectors, all over k in order, so that the bits of c do not depend on the tile.
#ifndef A
#define A f32
#define B f32
#define BIAS absent
#define C f32
#define ROWS_OF 8
#define COLUMNS_OF 8
#define EACH_ROWS 8
#define WIDE 8
#endif
#ifndef X
#define X f32
#endif
#define STEP RUN  // of k
#define TILE_ROWS (ROWS_OF * EACH_ROWS)
#define TILE_COLUMNS (COLUMNS_OF * WIDE)
#define ITEMS (ROWS_OF * COLUMNS_OF)
#define VECTOR JOIN(float, WIDE)
#define LOAD_VECTOR JOIN(vload, WIDE)
#define STORE_VECTOR JOIN(vstore, WIDE)

// Strides in elements: of op(a) [m, k], op(b) [k, n], c. Matrices of a batch: first ones and strides of its dimensions.
typedef struct {
  long m, n, k, a_row, a_column, b_row, b_column, c_row;
  long size[4], a_first, b_first, c_first, of_a[4], of_b[4], of_c[4];
  float alpha;
  int acc, scaled;
} Shape;

// A tile of `lines` x STEP elements, line r and step l of it to tile[l * pitch + r], 0 outside of [many, k]. Each item
// takes runs of elements that are neighbours in memory, along k or across it.
#define TAKE_TILE(T, tile, pitch, p, begin, line, step, lines, many, first_line, first)                               \
  for (int turn = 0; turn < (lines + ITEMS - 1) / ITEMS; ++turn) {                                                    \
    const int run = turn * ITEMS + item;                                                                              \
    if (run >= lines) continue;                                                                                       \
    const bool along = step == 1;                                                                                     \
    const int r = along ? run : run % (lines / RUN) * RUN, l = along ? 0 : run / (lines / RUN);                       \
    const bool inside = first_line + r < many && first + l < s.k;                                                     \
    const long left = !inside ? 0 : along ? s.k - first : many - first_line - r;                                      \
    take(T, p, begin + (first_line + r) * line + (first + l) * step, left, tile + l * pitch + r, along ? pitch : 1); \
  }

__kernel __attribute__((reqd_work_group_size(COLUMNS_OF, ROWS_OF, 1))) void multiply(
    __global const void* a, __global const void* b, __global const float* factors, __global const void* bias,
    __global void* c, Shape s) {
  __local float tile_a[STEP * TILE_ROWS], tile_b[STEP * TILE_COLUMNS];
  const int column = get_local_id(0), row = get_local_id(1), item = row * COLUMNS_OF + column;
  const long first_row = get_group_id(1) * TILE_ROWS, first_column = get_group_id(0) * TILE_COLUMNS;
  long begin_a = s.a_first, begin_b = s.b_first, begin_c = s.c_first, rest = get_group_id(2);
  for (int d = 3; d >= 0; --d) {
    const long index = rest % s.size[d];
    begin_a += index * s.of_a[d], begin_b += index * s.of_b[d], begin_c += index * s.of_c[d];
    rest /= s.size[d];
  }
  VECTOR sum[EACH_ROWS];
  for (int i = 0; i < EACH_ROWS; ++i) sum[i] = 0;
  for (long first = 0; first < s.k; first += STEP) {
    TAKE_TILE(A, tile_a, TILE_ROWS, a, begin_a, s.a_row, s.a_column, TILE_ROWS, s.m, first_row, first)
    TAKE_TILE(B, tile_b, TILE_COLUMNS, b, begin_b, s.b_column, s.b_row, TILE_COLUMNS, s.n, first_column, first)
    barrier(CLK_LOCAL_MEM_FENCE);
    VECTOR part[EACH_ROWS];
    for (int i = 0; i < EACH_ROWS; ++i) part[i] = sum[i];
    for (int l = 0; l < STEP; ++l) {
      const VECTOR of_b = LOAD_VECTOR(column, tile_b + l * TILE_COLUMNS);
      for (int i = 0; i < EACH_ROWS; ++i)
        part[i] = fma((VECTOR)(tile_a[l * TILE_ROWS + row * EACH_ROWS + i]), of_b, part[i]);
    }
    for (int i = 0; i < EACH_ROWS; ++i) sum[i] = part[i];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  for (int i = 0; i < EACH_ROWS; ++i) {
    const long r = first_row + row * EACH_ROWS + i;
    float sums[WIDE];
    STORE_VECTOR(sum[i], 0, sums);
    for (int j = 0; j < WIDE; ++j) {
      const long at = first_column + column * WIDE + j;
      if (r >= s.m || at >= s.n) continue;
      const float value = s.alpha * (s.scaled ? factors[at] * sums[j] : sums[j]) + load(BIAS, bias, at);
      const long place = begin_c + r * s.c_row + at;
      store(C, c, place, s.acc ? load(C, c, place) + value : value);
    }
  }
}

// db[j] (+)= sum of dy[i, j], in order.
__kernel void bias_grad(__global const void* dy, __global float* db, long rows, long n, int acc) {
  FOR_ITEM(j, n);
  float sum = 0;
  for (long i = 0; i < rows; ++i) sum += load(X, dy, i * n + j);
  db[j] = acc ? db[j] + sum : sum;
}
