// Elements and their places. T: what an element is copied as; X: element type; TABLE, Y: those of embedding
#include "kernels/math/packets.h"
#include "kernels/math/sort_key.h"
#ifndef T
#define T uint
#endif
#ifndef X
#define X f32
#endif
#ifndef TABLE
#define TABLE f32
#define Y f32
#endif

typedef struct {
  long size[4], from[4], to[4], first_from, first_to;
} Places;

static inline void find_places(const Places* places, long i, long* from, long* to) {
  *from = places->first_from, *to = places->first_to;
  for (int d = 3; d >= 0; --d) {
    const long index = i % places->size[d];
    *from += index * places->from[d], *to += index * places->to[d];
    i /= places->size[d];
  }
}
__kernel void rearrange(__global const T* x, __global T* y, Places places, long count) {
  FOR_ITEM(i, count);
  long from, to;
  find_places(&places, i, &from, &to);
  y[to] = x[from];
}
__kernel void rearrange_add(__global const void* x, __global void* y, Places places, long count) {
  FOR_ITEM(i, count);
  long from, to;
  find_places(&places, i, &from, &to);
  store(X, y, to, load(X, y, to) + load(X, x, from));
}

// What is gathered or scattered: [outer, m, inner], by indices below n. of_outer, of_row and of_inner: strides of them.
typedef struct {
  long outer, m, inner, n, of_outer, of_row, of_inner;
} Indexed;

// The index for (o, j, i), or -1 with a report.
static inline long index_at(__global const int* index, const Indexed* s, long o, long j, long i,
                            __global Fault* fault) {
  const long at = o * s->of_outer + j * s->of_row + i * s->of_inner, row = index[at];
  if (row >= 0 && row < s->n) return row;
  report(fault, FaultKind_index, at, row, s->n);
  return -1;
}
__kernel void gather(__global const T* x, __global const int* index, __global T* y, Indexed s, __global Fault* fault) {
  FOR_ITEM(item, s.outer * s.m * s.inner);
  const long i = item % s.inner, j = item / s.inner % s.m, o = item / s.inner / s.m;
  const long row = index_at(index, &s, o, j, i, fault);
  y[item] = row < 0 ? 0 : x[(o * s.n + row) * s.inner + i];
}
__kernel void scatter_add(__global const void* x, __global const int* index, __global float* y, Indexed s,
                          __global Fault* fault) {
  FOR_ITEM(item, s.outer * s.inner);
  const long i = item % s.inner, o = item / s.inner;
  for (long j = 0; j < s.m; ++j) {
    const long row = index_at(index, &s, o, j, i, fault);
    if (row >= 0) y[(o * s.n + row) * s.inner + i] += load(X, x, (o * s.m + j) * s.inner + i);
  }
}

// A group for each row finds the least word that is above the last one, k times: no two are equal.
#ifdef OF_INTEGERS
#define KEY_AT(i) sort_key(((__global const int*)x)[i])
#else
#define KEY_AT(i) sort_key(load(X, x, i))
#endif
__kernel void sort(__global const void* x, __global void* y, __global int* index, long n, long k, int descending) {
  __local ulong exchange[LANES];
  const long row = get_group_id(0);
  ulong last = 0;
  for (long j = 0; j < k; ++j) {
    ulong least = ULONG_MAX;
    for (long i = get_local_id(0); i < n; i += LANES) {
      const ulong word = sort_word(KEY_AT(row * n + i), i, descending);
      if ((j == 0 || word > last) && word < least) least = word;
    }
    last = least_of_lanes(least, exchange);
    const int column = sort_column(last);
    if (get_local_id(0) == 0) {
      index[row * k + j] = column;
      ((__global T*)y)[row * k + j] = ((__global const T*)x)[row * n + column];
    }
  }
}

__kernel void cumulative_sum(__global const void* x, __global void* y, long n, int reverse, long rows) {
  FOR_ITEM(row, rows);
  float sum = 0;
  for (long j = 0; j < n; ++j) {
    const long at = row * n + (reverse ? n - 1 - j : j);
    sum += load(X, x, at);
    store(X, y, at, sum);
  }
}

__kernel void embedding(__global const int* tokens, __global const void* table, __global void* y, long hidden,
                        long vocab, long count, __global Fault* fault) {
  FOR_ITEM(i, count);
  const long t = i / hidden, token = tokens[t];
  const bool inside = token >= 0 && token < vocab;
  if (!inside) report(fault, FaultKind_token, t, token, vocab);
  store(Y, y, i, inside ? load(TABLE, table, token * hidden + i % hidden) : 0.0f);
}
// An item for each column, so that each place gets its tokens in their order.
__kernel void embedding_grad(__global const int* tokens, __global const void* dy, __global float* dtable, long rows,
                             long vocab, long hidden, __global Fault* fault) {
  FOR_ITEM(i, hidden);
  for (long t = 0; t < rows; ++t) {
    const long token = tokens[t];
    if (token >= 0 && token < vocab)
      dtable[token * hidden + i] += load(X, dy, t * hidden + i);
    else
      report(fault, FaultKind_token, t, token, vocab);
  }
}

// An item for each slot: it looks for the last piece that starts at or before it.
__kernel void decode_packets(__global const uchar* frames, long bytes, __global const PacketPiece* pieces, long count,
                             __global int* tokens, __global int* targets, __global int* positions, long slots, int pad,
                             __global Fault* fault) {
  FOR_ITEM(t, slots);
  long low = 0, high = count;
  while (low < high) {
    const long middle = (low + high) / 2;
    if (pieces[middle].slot <= t)
      low = middle + 1;
    else
      high = middle;
  }
  PacketSlot slot = {pad, -1, 0};
  if (low > 0) {
    const PacketPiece piece = pieces[low - 1];
    if (!packet_piece_fits(piece, slots, bytes))
      report(fault, FaultKind_piece, low - 1, 0, 0);
    else if (t - piece.slot < piece.tokens)
      slot = packet_slot(piece, frames, t - piece.slot);
  }
  tokens[t] = slot.token, targets[t] = slot.target, positions[t] = slot.position;
}
