// The twins of kernels/cuda/ptx/ptx_int8.h.
#pragma once
#include "kernels/cuda/ptx/ptx_sm75.h"
#include "tests/emulator/ptx_emulated.h"

namespace emulator {

struct CodesMultiply {
  int* c;
  const uint32_t *a, *b;
};
template <int kDepth>
void multiply_codes(CodesMultiply& slot, Site site) {
  meet_warp(
      "mma.s8", ~0u, slot,
      [](CodesMultiply* const* slots) {
        const auto code = [](uint32_t word, int i) { return static_cast<int8_t>(word >> (8 * i)); };
        int8_t a[16][kDepth], b[8][kDepth];
        for (int lane = 0; lane < 32; ++lane)
          for (int half = 0; half < kDepth / 16; ++half)
            for (int i = 0; i < 4; ++i) {
              const int k = 16 * half + lane % 4 * 4 + i;
              a[lane / 4][k] = code(slots[lane]->a[2 * half], i);
              a[lane / 4 + 8][k] = code(slots[lane]->a[2 * half + 1], i);
              b[lane / 4][k] = code(slots[lane]->b[half], i);
            }
        for (int lane = 0; lane < 32; ++lane)
          for (int i = 0; i < 4; ++i) {
            const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            for (int k = 0; k < kDepth; ++k) slots[lane]->c[i] += a[row][k] * b[column][k];
          }
      },
      site);
}

inline void multiply_bits(CodesMultiply& slot, Site site) {
  meet_warp(
      "mma.b1", ~0u, slot,
      [](CodesMultiply* const* slots) {
        for (int lane = 0; lane < 32; ++lane)
          for (int i = 0; i < 4; ++i) {
            const int row = lane / 4, column = lane % 4 * 2 + i % 2;
            for (int word = 0; word < 8; ++word) {
              const uint32_t a = slots[4 * row + word % 4]->a[word / 4 * 2 + i / 2];
              slots[lane]->c[i] += __builtin_popcount(a & slots[4 * column + word % 4]->b[word / 4]);
            }
          }
      },
      site);
}

}  // namespace emulator

namespace qeng {
namespace ptx {

inline void mma_int8(int (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                     emulator::Site site = emulator::Site::current()) {
  if (emulator::capability() < 80) return mma_int8_of_m8(c, a, b);
  emulator::CodesMultiply slot{c, a, b};
  emulator::multiply_codes<32>(slot, site);
}
inline void mma_int8(int (&c)[4], const uint32_t (&a)[2], const uint32_t (&b)[1],
                     emulator::Site site = emulator::Site::current()) {
  if (emulator::capability() < 80) return mma_int8_of_m8(c, a, b);
  emulator::CodesMultiply slot{c, a, b};
  emulator::multiply_codes<16>(slot, site);
}

inline void mma_bits(int (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                     emulator::Site site = emulator::Site::current()) {
  if (emulator::capability() < 80) return mma_bits_of_m8(c, a, b);
  emulator::CodesMultiply slot{c, a, b};
  emulator::multiply_bits(slot, site);
}
inline int dp4a_unsigned(uint32_t a, int b, int sum) {
  for (int i = 0; i < 4; ++i) sum += static_cast<uint8_t>(a >> (8 * i)) * static_cast<int8_t>(b >> (8 * i));
  return sum;
}

}  // namespace ptx
}  // namespace qeng
