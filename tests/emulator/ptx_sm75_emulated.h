// The twins of the instructions of kernels/cuda/ptx/ptx_sm75.h.
#pragma once
#include <bit>

#include "tests/emulator/ptx_emulated.h"

namespace emulator {

struct SmallMultiply {
  int *c0, *c1;
  uint32_t a, b;
};
// add: what two registers, of a and of b, add to the lane's element. (Lanes 4g + t have row g of a, column g of b.)
template <class Add>
void multiply_small(const char* what, SmallMultiply& slot, Add, Site site) {
  meet_warp(
      what, ~0u, slot,
      [](SmallMultiply* const* slots) {
        for (int lane = 0; lane < 32; ++lane)
          for (int i = 0; i < 2; ++i)
            for (int t = 0; t < 4; ++t)
              *(i ? slots[lane]->c1 : slots[lane]->c0) +=
                  Add{}(slots[lane / 4 * 4 + t]->a, slots[4 * (lane % 4 * 2 + i) + t]->b);
      },
      site);
}

}  // namespace emulator

namespace qeng {
namespace ptx {

inline void mma_int8_m8(int& c0, int& c1, uint32_t a, uint32_t b, emulator::Site site = emulator::Site::current()) {
  emulator::SmallMultiply slot{&c0, &c1, a, b};
  const auto add = [](uint32_t x, uint32_t y) {
    int sum = 0;
    for (int i = 0; i < 32; i += 8) sum += static_cast<int8_t>(x >> i) * static_cast<int8_t>(y >> i);
    return sum;
  };
  emulator::multiply_small("mma.s8", slot, add, site);
}
inline void mma_xor_m8(int& c0, int& c1, uint32_t a, uint32_t b, emulator::Site site = emulator::Site::current()) {
  emulator::SmallMultiply slot{&c0, &c1, a, b};
  emulator::multiply_small(
      "mma.b1.xor", slot, [](uint32_t x, uint32_t y) { return std::popcount(x ^ y); }, site);
}

}  // namespace ptx
}  // namespace qeng
