// Philox4x32-10, written from its paper (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
#pragma once
#include <cstdint>
#include <vector>

namespace qeng::conformance {

struct PhiloxBlock {
  uint32_t word[4];
};

inline PhiloxBlock philox_block(PhiloxBlock counter, uint64_t key) {
  uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t left = uint64_t{0xD2511F53} * counter.word[0], right = uint64_t{0xCD9E8D57} * counter.word[2];
    counter = {{static_cast<uint32_t>(right >> 32) ^ counter.word[1] ^ key0, static_cast<uint32_t>(right),
                static_cast<uint32_t>(left >> 32) ^ counter.word[3] ^ key1, static_cast<uint32_t>(left)}};
    key0 += 0x9E3779B9, key1 += 0xBB67AE85;
  }
  return counter;
}

// The uniform number of element i, as kernels/math/philox.h lays out the counter: blocks of four elements in 64 bits,
// with the step's high word mixed into theirs, then the subsequence, then the step's low word. The key is the seed.
inline double philox_uniform(const std::vector<int64_t>& rng, uint32_t subsequence, int64_t element) {
  const auto seed = static_cast<uint64_t>(rng[0]), step = static_cast<uint64_t>(rng[1]);
  const auto i = static_cast<uint64_t>(element), block = i / 4;
  const PhiloxBlock words = philox_block(
      {{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32) ^ static_cast<uint32_t>(step >> 32),
        subsequence, static_cast<uint32_t>(step)}},
      seed);
  return (words.word[i % 4] >> 8) * 0x1p-24;
}

}  // namespace qeng::conformance
