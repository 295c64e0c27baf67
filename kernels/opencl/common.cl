// In front of every source: types by the names that shared headers use, arrays of any element type as f32, sums.
#pragma OPENCL FP_CONTRACT OFF  // a product and a sum are rounded apart, unless fma() says otherwise

typedef uchar uint8_t;
typedef ushort uint16_t;
typedef uint uint32_t;
typedef ulong uint64_t;
typedef char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
#define QENG_HD static inline __attribute__((overloadable))
#define __builtin_sqrtf sqrt
#define __builtin_lrintf(x) convert_int_rte(x)

#include "kernels/fault.h"
#include "kernels/math/bf16.h"

#define JOIN_NAMES(a, b) a##b
#define JOIN(a, b) JOIN_NAMES(a, b)
#define load(T, p, i) JOIN(load_, T)(p, i)
#define store(T, p, i, x) JOIN(store_, T)(p, i, x)

#define PLAIN_LOAD(T, type, value) \
  static inline float load_##T(__global const void* p, long i) { \
    const type x = ((__global const type*)p)[i];                  \
    return value;                                                 \
  }
#define PLAIN_STORE(T, type, value) \
  static inline void store_##T(__global void* p, long i, float x) { ((__global type*)p)[i] = value; }
PLAIN_LOAD(f32, float, x)
PLAIN_LOAD(bf16, bf16, to_f32(x))
PLAIN_LOAD(f16, f16, to_f32(x))
PLAIN_LOAD(i32, int, (float)x)
PLAIN_LOAD(i64, long, (float)x)
PLAIN_LOAD(u8, uchar, (float)x)
PLAIN_STORE(f32, float, x)
PLAIN_STORE(bf16, bf16, to_bf16(x))
PLAIN_STORE(f16, f16, to_f16(x))
PLAIN_STORE(u8, uchar, x != 0)
// f32 that counts as bf16: rows of x beside weights of bf16.
static inline float load_rounded(__global const void* p, long i) { return to_f32(to_bf16(load_f32(p, i))); }

// The RUN elements from i on, of which there are `count`, with zeros after them, to `to` in steps of `pitch`. Of a
// block format a run begins at a multiple of RUN, and is of one group.
#define RUN 16
#define take(T, p, i, count, to, pitch) JOIN(take_, T)(p, i, count, to, pitch)
#define PLAIN_TAKE(T)                                                                                              \
  static inline void take_##T(__global const void* p, long i, long count, __local float* to, int pitch) {          \
    for (int u = 0; u < RUN; ++u) to[u * pitch] = u < count ? load_##T(p, i + u) : 0.0f;                           \
  }
PLAIN_TAKE(f32)
PLAIN_TAKE(bf16)
PLAIN_TAKE(f16)
PLAIN_TAKE(rounded)

// Nothing, where a view is absent.
static inline float load_absent(__global const void* p, long i) { return 0; }

static inline void report(__global Fault* fault, FaultKind kind, long place, long value, long limit) {
  if (atomic_cmpxchg((volatile __global int*)&fault->kind, 0, kind) != 0) return;
  fault->place = place, fault->value = value, fault->limit = limit;
}

// A sum kept in two floats, for 48 bits of it. (Dekker 1971; Knuth's sum, and products by fma.)
typedef struct {
  float high, low;
} Twofold;
static inline Twofold add_twofold(Twofold a, float x, float rest) {
  const float sum = a.high + x, part = sum - a.high;
  a.low += (a.high - (sum - part)) + (x - part) + rest;
  a.high = sum;
  return a;
}
static inline Twofold add_product(Twofold a, float x, float y) {
  const float product = x * y;
  return add_twofold(a, product, fma(x, y, -product));
}

// Groups of LANES items that work on a row: sums and maxima over them by a fixed tree, the same in all.
// exchange: [LANES], of local memory
#define LANES 64
#define TREE(name, type, combined)                                   \
  static inline type name(type mine, __local type* exchange) {       \
    const int lane = get_local_id(0);                                \
    barrier(CLK_LOCAL_MEM_FENCE);                                    \
    exchange[lane] = mine;                                           \
    for (int other = LANES / 2; other > 0; other /= 2) {             \
      barrier(CLK_LOCAL_MEM_FENCE);                                  \
      if (lane < other) {                                            \
        const type a = exchange[lane], b = exchange[lane + other];   \
        exchange[lane] = combined;                                   \
      }                                                              \
    }                                                                \
    barrier(CLK_LOCAL_MEM_FENCE);                                    \
    return exchange[0];                                              \
  }
TREE(sum_of_lanes, float, a + b)
TREE(max_of_lanes, float, a > b || a != a ? a : b)
TREE(min_of_lanes, float, a < b || a != a ? a : b)
TREE(least_of_lanes, ulong, a < b ? a : b)
TREE(twofold_of_lanes, Twofold, add_twofold(a, b.high, b.low))

// Item i of work that has `count`, one to a work item.
#define FOR_ITEM(i, count)              \
  const long i = get_global_id(0);      \
  if (i >= count) return
