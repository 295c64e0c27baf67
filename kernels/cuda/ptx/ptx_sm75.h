// What products of ptx_int8.h are made of before sm_80, whose tensor cores have smaller shapes of them. The emulator runs
// the same source for a device of 7.5; the twins of the instructions are in tests/emulator/ptx_sm75_emulated.h.
//
// Fragments (g = lane / 4, t = lane % 4):
//   mma_int8_m8: a: row g, k 4t..4t+3   b: the same of column g   c0, c1: row g, columns 2t, 2t + 1
//   mma_xor_m8: the same of bits, 32 of them to a register: a: row g, k 32t..; counts those that differ
#pragma once
#include "kernels/cuda/device.h"

#ifdef QENG_EMULATED
#include "ptx_sm75_emulated.h"
#else

namespace qeng {
namespace ptx {

__device__ inline void mma_int8_m8(int& c0, int& c1, uint32_t a, uint32_t b) {
  asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
               : "+r"(c0), "+r"(c1)
               : "r"(a), "r"(b));
}
__device__ inline void mma_xor_m8(int& c0, int& c1, uint32_t a, uint32_t b) {
  asm volatile("mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32.xor.popc {%0, %1}, {%2}, {%3}, {%0, %1};"
               : "+r"(c0), "+r"(c1)
               : "r"(a), "r"(b));
}

}  // namespace ptx
}  // namespace qeng
#endif

namespace qeng {
namespace ptx {

template <int kRegisters>  // of b: 16 k each
__device__ inline void mma_int8_of_m8(int (&c)[4], const uint32_t* a, const uint32_t (&b)[kRegisters]) {
  for (int i = 0; i < kRegisters; ++i) {
    mma_int8_m8(c[0], c[1], a[2 * i], b[i]);
    mma_int8_m8(c[2], c[3], a[2 * i + 1], b[i]);
  }
}
// Bits that both have are half of those set in a, and in b, less those that differ.
__device__ inline void mma_bits_of_m8(int (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  int set[4] = {}, differ[4] = {};
  for (int i = 0; i < 4; ++i) {  // rows g, g + 8 of the first 128 bits, then of the others
    int &set0 = set[i % 2 * 2], &set1 = set[i % 2 * 2 + 1];
    mma_xor_m8(set0, set1, a[i], 0);
    mma_xor_m8(set0, set1, 0, b[i / 2]);
    mma_xor_m8(differ[i % 2 * 2], differ[i % 2 * 2 + 1], a[i], b[i / 2]);
  }
  for (int i = 0; i < 4; ++i) c[i] += (set[i] - differ[i]) / 2;
}

}  // namespace ptx
}  // namespace qeng
