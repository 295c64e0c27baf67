// Dropout: 16 Philox counters at a time, which draw for 64 elements.
#include "kernels/cpu/isa/simd.h"
#include "kernels/math/philox.h"

namespace qeng::isa::QENG_ISA {
namespace {

constexpr int kCounters = 16, kDrawn = 4 * kCounters;

// factor[j] = the factor of element first + j: 0 or scale. philox4x32 with the rounds outside, so that counters
// vectorize.
void draw(uint64_t seed, uint64_t step, uint32_t stream, uint64_t first, float p, float scale, float* factor) {
  uint32_t word[4][kCounters];
  for (int j = 0; j < kCounters; ++j) {
    const Philox counter = philox_counter(step, stream, first + 4 * static_cast<uint64_t>(j));
    for (int w = 0; w < 4; ++w) word[w][j] = counter.word[w];
  }
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    for (int j = 0; j < kCounters; ++j) {
      const uint64_t p0 = uint64_t{kPhiloxM0} * word[0][j], p1 = uint64_t{kPhiloxM1} * word[2][j];
      word[0][j] = static_cast<uint32_t>(p1 >> 32) ^ word[1][j] ^ key0;
      word[1][j] = static_cast<uint32_t>(p1);
      word[2][j] = static_cast<uint32_t>(p0 >> 32) ^ word[3][j] ^ key1;
      word[3][j] = static_cast<uint32_t>(p0);
    }
    key0 += kPhiloxW0, key1 += kPhiloxW1;
  }
  for (int j = 0; j < kCounters; ++j)
    for (int w = 0; w < 4; ++w) factor[4 * j + w] = uniform_of(word[w][j]) >= p ? scale : 0.0f;
}

void dropout(Float type, const void* x, void* y, int64_t first, int64_t n, uint64_t seed, uint64_t step,
             uint32_t stream, float p) {
  for_type(type, [=](auto tag) {
    using T = decltype(tag);
    float factor[kDrawn];
    for (int64_t block = 0; block < n; block += kDrawn) {
      draw(seed, step, stream, static_cast<uint64_t>(first + block), p, 1.0f / (1.0f - p), factor);
      const T* in = static_cast<const T*>(x) + block;
      T* out = static_cast<T*>(y) + block;
      const int64_t count = n - block < kDrawn ? n - block : kDrawn;
      for_lanes(count, [&](int64_t i, int64_t lanes) {
        const Vec keep = load(factor + i);
        store(out + i, load(in + i, lanes) * keep, lanes);
      });
    }
  });
}

}  // namespace

void fill_dropout(Table& table) { table.dropout = dropout; }

}  // namespace qeng::isa::QENG_ISA
