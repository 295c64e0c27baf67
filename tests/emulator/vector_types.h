// CUDA's words in front of functions, and its small vectors, with CUDA's alignment.
#pragma once
#include <cstdint>

#define __host__
#define __device__
#define __global__
#define __constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))

#define QENG_EMULATOR_VECTORS(name, T, align2, align4)               \
  struct __align__(align2) name##2 {                                 \
    T x, y;                                                          \
  };                                                                 \
  struct name##3 {                                                   \
    T x, y, z;                                                       \
  };                                                                 \
  struct __align__(align4) name##4 {                                 \
    T x, y, z, w;                                                    \
  };                                                                 \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }         \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; } \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
QENG_EMULATOR_VECTORS(char, signed char, 2, 4)
QENG_EMULATOR_VECTORS(uchar, unsigned char, 2, 4)
QENG_EMULATOR_VECTORS(short, short, 4, 8)
QENG_EMULATOR_VECTORS(ushort, unsigned short, 4, 8)
QENG_EMULATOR_VECTORS(int, int, 8, 16)
QENG_EMULATOR_VECTORS(uint, unsigned, 8, 16)
QENG_EMULATOR_VECTORS(float, float, 8, 16)
QENG_EMULATOR_VECTORS(longlong, long long, 16, 16)
QENG_EMULATOR_VECTORS(ulonglong, unsigned long long, 16, 16)
QENG_EMULATOR_VECTORS(double, double, 16, 16)
#undef QENG_EMULATOR_VECTORS

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

// Of the thread that runs now.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;
