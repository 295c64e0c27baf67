// A keyed permutation of 0 .. size-1 that needs no memory: a balanced Feistel network over the next even number of
// bits, walked along its cycle until it falls inside (fewer than four steps on average). (Black & Rogaway 2002,
// "Ciphers with arbitrary finite domains".) This orders records; it is no protection against anybody.
#pragma once
#include <bit>
#include <cstdint>

namespace qeng {

// A 64-bit mix in which every input bit reaches every output bit (Steele, Lea & Flood 2014, SplitMix64's finalizer).
constexpr uint64_t mix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

class Permutation {
 public:
  // The same (seed, key, size) gives the same order everywhere.
  Permutation(uint64_t seed, uint64_t key, uint64_t size) : size_(size), key_(mix64(mix64(seed) ^ key)) {
    const int bits = size > 1 ? std::bit_width(size - 1) : 1;
    half_ = (bits + 1) / 2;
    mask_ = (uint64_t{1} << half_) - 1;
  }
  uint64_t size() const { return size_; }

  uint64_t operator()(uint64_t i) const {  // i < size
    do i = rounds(i);
    while (i >= size_);
    return i;
  }

 private:
  uint64_t rounds(uint64_t x) const {
    uint64_t left = x >> half_, right = x & mask_;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t next = left ^ (mix64(key_ + round * 0xD1342543DE82EF95 + right) & mask_);
      left = right, right = next;
    }
    return left << half_ | right;
  }
  static constexpr uint64_t kRounds = 6;  // four suffice for large domains; small ones mix visibly better with six
  uint64_t size_, key_, mask_;
  int half_;
};

}  // namespace qeng
