// What lies around attention: rotated heads, and rows of the paged cache. X: element type, POOL: of a pool
#include "kernels/math/blocks/q8_0.h"
#ifndef X
#define X f32
#define POOL f32
#endif

// An item for each pair, and for each element of a head that is copied.
__kernel void rope(__global const void* x, __global const int* positions, __global const float* inv_freq,
                   __global void* y, long heads, long dim, long half_rotary, float scale, int inverse, int interleaved,
                   long count) {
  FOR_ITEM(item, count);
  const long of_head = dim - half_rotary, i = item % of_head, begin = item / of_head * dim;
  if (i >= half_rotary) {
    const long at = begin + half_rotary + i;
    store(X, y, at, load(X, x, at));
    return;
  }
  const long a = begin + (interleaved ? 2 * i : i), b = interleaved ? a + 1 : a + half_rotary;
  const float angle = (float)positions[item / of_head / heads] * inv_freq[i];
  const float c = scale * cos(angle), s = scale * (inverse ? -sin(angle) : sin(angle));
  const float left = load(X, x, a), right = load(X, x, b);
  store(X, y, a, c * left - s * right);
  store(X, y, b, s * left + c * right);
}

// The slot of row t, or -1: nowhere, perhaps with a report.
static inline long slot_of(__global const int* slots, long t, long all, __global Fault* fault) {
  const long slot = slots[t];
  if (slot >= -1 && slot < all) return slot;
  report(fault, FaultKind_slot, t, slot, all);
  return -1;
}
__kernel void store_rows(__global const void* x, __global const int* slots, __global void* pool, long width, long all,
                         long count, __global Fault* fault) {
  FOR_ITEM(i, count);
  const long slot = slot_of(slots, i / width, all, fault);
  if (slot >= 0) store(POOL, pool, slot * width + i % width, load(X, x, i));
}
// An item for each block. width: blocks of a row
__kernel void store_blocks(__global const void* x, __global const int* slots, __global Q8_0* pool, long width, long all,
                           long count, __global Fault* fault) {
  FOR_ITEM(i, count);
  const long slot = slot_of(slots, i / width, all, fault);
  if (slot < 0) return;
  float values[32];
  for (int k = 0; k < 32; ++k) values[k] = load(X, x, i * 32 + k);
  encode(values, values, pool + slot * width + i % width);
}

__kernel void copy_pages(__global uchar* pool, __global const int* pairs, long page_bytes, long pages, long count,
                         __global Fault* fault) {
  FOR_ITEM(i, count);
  const long pair = i / page_bytes, from = pairs[2 * pair], to = pairs[2 * pair + 1];
  const bool good_from = from >= 0 && from < pages;
  if (good_from && to >= 0 && to < pages)
    pool[to * page_bytes + i % page_bytes] = pool[from * page_bytes + i % page_bytes];
  else
    report(fault, FaultKind_pair, pair, good_from ? to : from, pages);
}
