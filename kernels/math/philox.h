// Philox4x32-10, a counter-based random generator (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"):
// the number for a place is a function of that place, so that any device draws the same ones in any order.
#pragma once
#include <cstdint>

#include "kernels/math/host_device.h"

namespace qeng {

constexpr uint32_t kPhiloxM0 = 0xD2511F53u, kPhiloxM1 = 0xCD9E8D57u;  // multipliers of the paper
constexpr uint32_t kPhiloxW0 = 0x9E3779B9u, kPhiloxW1 = 0xBB67AE85u;  // key increments: golden ratio, sqrt(3) - 1
constexpr int kPhiloxRounds = 10;

struct Philox {
  uint32_t word[4];
};

// The upper 32 bits of the product.
QENG_HD uint32_t multiply_high(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
  return __umulhi(a, b);  // of two halves nvcc makes one instruction, of a 64-bit product two
#else
  return static_cast<uint32_t>(uint64_t{a} * b >> 32);
#endif
}

QENG_HD Philox philox4x32(Philox counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint32_t a = counter.word[0], b = counter.word[2];
    counter = {{multiply_high(kPhiloxM1, b) ^ counter.word[1] ^ key0, kPhiloxM1 * b,
                multiply_high(kPhiloxM0, a) ^ counter.word[3] ^ key1, kPhiloxM0 * a}};
    key0 += kPhiloxW0, key1 += kPhiloxW1;
  }
  return counter;
}

// Where element i of subsequence draws at a step: the seed is the key, and four neighbouring elements share a counter.
QENG_HD Philox philox_counter(uint64_t step, uint32_t subsequence, uint64_t i) {
  const uint64_t group = i / 4;
  return {{static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32) ^ static_cast<uint32_t>(step >> 32),
           subsequence, static_cast<uint32_t>(step)}};
}

// A word as a number of [0, 1), a multiple of 2^-24.
QENG_HD float uniform_of(uint32_t word) { return static_cast<float>(word >> 8) * 5.9604644775390625e-08f; }

// The number for element i of a subsequence at a step.
QENG_HD float philox_uniform(uint64_t seed, uint64_t step, uint32_t subsequence, uint64_t i) {
  const Philox drawn =
      philox4x32(philox_counter(step, subsequence, i), static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  return uniform_of(drawn.word[i % 4]);
}

}  // namespace qeng
