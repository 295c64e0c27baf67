// The products of int8 matrices by a warp, exact in int32. As in ptx.h; the twins are in
// tests/emulator/ptx_int8_emulated.h.
//
// Fragments (g = lane / 4, t = lane % 4; four codes to a register, the lowest index in the lowest byte):
//   a[0]: row g, k 4t..4t+3   a[1]: row g + 8      and for k = 32  a[2], a[3]: the same at k 4t + 16..
//   b[0]: k 4t..4t+3, column g                      and for k = 32  b[1]: k 4t + 16..
//   c[0], c[1]: row g, columns 2t, 2t + 1           c[2], c[3]: row g + 8
// Of bits: k = 256, 32 of them to a register: a[0], b[0]: k 32t..; a[1]: row g + 8; a[2], a[3], b[1]: the same at 32t + 128..
#pragma once
#include "kernels/cuda/ptx/ptx.h"

#ifdef QENG_EMULATED
#include "ptx_int8_emulated.h"
#else
#include "kernels/cuda/ptx/ptx_sm75.h"

namespace qeng {
namespace ptx {

// c += a b, a: 16 x 32, b: 32 x 8.
__device__ inline void mma_int8(int (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ < 800
  mma_int8_of_m8(c, a, b);
#else
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}
// The same for a: 16 x 16, b: 16 x 8.
__device__ inline void mma_int8(int (&c)[4], const uint32_t (&a)[2], const uint32_t (&b)[1]) {
#if __CUDA_ARCH__ < 800
  mma_int8_of_m8(c, a, b);
#else
  asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(b[0]));
#endif
}

// The same for bits, of which both are set: a: 16 x 256, b: 256 x 8.
__device__ inline void mma_bits(int (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ < 800
  mma_bits_of_m8(c, a, b);
#else
  asm volatile(
      "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}
// sum plus four products of the bytes of a, which have no sign, and those of b, which have one.
__device__ inline int dp4a_unsigned(uint32_t a, int b, int sum) {
  int result;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(sum));
  return result;
}

}  // namespace ptx
}  // namespace qeng
#endif
