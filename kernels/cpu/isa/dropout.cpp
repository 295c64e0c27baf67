// Dropout and noise: Philox for several counters side by side, each of which draws for four neighbouring elements.
#include "kernels/cpu/isa/simd/simd.h"
#include "kernels/math/philox.h"

namespace qeng::isa::QENG_ISA {
namespace {

constexpr int kDrawn = 64;  // elements at a time
constexpr int kGroups = kDrawn / 4 / kWords;

// word[i] = the random word of element first + i: philox4x32 with a counter in each lane.
void draw(uint64_t seed, uint64_t step, uint32_t subsequence, uint64_t first, uint32_t* word) {
  uint64_t counters[kDrawn / 4];
  Words w[kGroups][4];
  for (int j = 0; j < kDrawn / 4; ++j) counters[j] = first / 4 + static_cast<uint64_t>(j);
  for (int g = 0; g < kGroups; ++g) {
    w[g][0] = load_words(counters + g * kWords);
    w[g][1] = high_words(w[g][0]) ^ splat_words(step >> 32);
    w[g][2] = splat_words(subsequence);
    w[g][3] = splat_words(step);
  }
  const Words m0 = splat_words(kPhiloxM0), m1 = splat_words(kPhiloxM1);
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    for (int g = 0; g < kGroups; ++g) {
      const Words p0 = multiply_words(m0, w[g][0]), p1 = multiply_words(m1, w[g][2]);
      w[g][0] = high_words(p1) ^ w[g][1] ^ splat_words(key0);
      w[g][1] = p1;
      w[g][2] = high_words(p0) ^ w[g][3] ^ splat_words(key1);
      w[g][3] = p0;
    }
    key0 += kPhiloxW0, key1 += kPhiloxW1;
  }
  for (int g = 0; g < kGroups; ++g) {
    uint64_t even[kWords], odd[kWords];
    store_words(even, join_words(w[g][0], w[g][1]));
    store_words(odd, join_words(w[g][2], w[g][3]));
    for (int j = 0; j < kWords; ++j) {
      uint32_t* out = word + 4 * (g * kWords + j);
      out[0] = static_cast<uint32_t>(even[j]), out[1] = static_cast<uint32_t>(even[j] >> 32);
      out[2] = static_cast<uint32_t>(odd[j]), out[3] = static_cast<uint32_t>(odd[j] >> 32);
    }
  }
}

void dropout(Float type, const void* x, void* y, int64_t first, int64_t n, uint64_t seed, uint64_t step,
             uint32_t subsequence, float p) {
  // uniform_of(word) >= p, as integers: its 24 bits are at least p 2^24
  const uint32_t threshold = static_cast<uint32_t>(__builtin_ceil(static_cast<double>(p) * 16777216)) << 8;
  const float scale = 1.0f / (1.0f - p);
  for_type(type, [=](auto tag) {
    using T = decltype(tag);
    uint32_t word[kDrawn];
    float kept[kDrawn] = {};
    for (int64_t block = 0; block < n; block += kDrawn) {
      draw(seed, step, subsequence, static_cast<uint64_t>(first + block), word);
      const T* in = static_cast<const T*>(x) + block;
      T* out = static_cast<T*>(y) + block;
      const int64_t count = n - block < kDrawn ? n - block : kDrawn;
      for_lanes(count, [&](int64_t i, int64_t lanes) { store(kept + i, load(in + i, lanes) * splat(scale)); });
      for (int i = 0; i < kDrawn; ++i) kept[i] = word[i] >= threshold ? kept[i] : 0.0f;
      for_lanes(count, [&](int64_t i, int64_t lanes) { store(out + i, load(kept + i), lanes); });
    }
  });
}

void embedding_noise(Float type, const void* x, void* y, int64_t first, int64_t n, uint64_t seed, uint64_t step,
                     uint32_t subsequence, float strength) {
  for_type(type, [=](auto tag) {
    using T = decltype(tag);
    uint32_t word[kDrawn];
    float added[kDrawn];
    const int64_t skipped = first % 4;  // a row may start within a counter's four elements
    for (int64_t at = -skipped; at < n; at += kDrawn) {
      draw(seed, step, subsequence, static_cast<uint64_t>(first + at), word);
      for (int i = 0; i < kDrawn; ++i) added[i] = strength * (2 * uniform_of(word[i]) - 1);
      const int64_t from = at < 0 ? skipped : 0, count = (n - at < kDrawn ? n - at : kDrawn) - from;
      const T* in = static_cast<const T*>(x) + at + from;
      T* out = static_cast<T*>(y) + at + from;
      for_lanes(count, [&](int64_t i, int64_t lanes) {
        store(out + i, load(in + i, lanes) + load(added + from + i, lanes), lanes);
      });
    }
  });
}

}  // namespace

void fill_dropout(Table& table) { table.dropout = dropout, table.embedding_noise = embedding_noise; }

}  // namespace qeng::isa::QENG_ISA
