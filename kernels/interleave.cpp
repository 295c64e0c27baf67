#include "kernels/interleave.h"

#include <cstring>
#include <vector>

#include "kernels/parallel.h"

namespace qeng {

namespace {

using blocks::Interleaved;
using blocks::Q6_K;
using blocks::TQ2_0;

constexpr uint32_t kTwoBits = 0x03030303, kFourBits = 0x0f0f0f0f;
uint32_t word_at(const uint8_t* p) {
  uint32_t word;
  std::memcpy(&word, p, 4);
  return word;
}
void put_word(uint8_t* p, uint32_t word) { std::memcpy(p, &word, 4); }

// Codes of a block without sign, in order. Loops are over neighbours in memory, for the compiler to make vectors of.
void codes_of(const TQ2_0& b, uint8_t* codes) {
  for (int half = 0; half < 2; ++half)
    for (int part = 0; part < 4; ++part)
      for (int j = 0; j < 32; ++j)
        codes[half * 128 + part * 32 + j] = static_cast<uint8_t>(b.qs[half * 32 + j] >> (2 * part) & 3);
}
void codes_of(const Q6_K& b, uint8_t* codes) {
  for (int half = 0; half < 2; ++half)
    for (int part = 0; part < 4; ++part)
      for (int j = 0; j < 32; ++j) {
        const int low = b.ql[half * 64 + part % 2 * 32 + j] >> (part / 2 * 4) & 15;
        const int high = b.qh[half * 32 + j] >> (2 * part) & 3;
        codes[half * 128 + part * 32 + j] = static_cast<uint8_t>(low | high << 4);
      }
}

using Codes = uint32_t[kInterleavedRows][64];  // a step's four in a word

// Block b of 32 rows of `count` blocks.
void join(const TQ2_0* rows, int64_t count, const Codes& codes, Interleaved<TQ2_0>& to) {
  for (int r = 0; r < kInterleavedRows; ++r) to.d[r] = rows[r * count].d;
  for (int s = 0; s < 64; ++s)
    for (int l = 0; l < 8; ++l) {
      const uint32_t word = codes[l][s] | codes[8 + l][s] << 2 | codes[16 + l][s] << 4 | codes[24 + l][s] << 6;
      put_word(to.steps[s][l], word);
    }
}
void join(const Q6_K* rows, int64_t count, const Codes& codes, Interleaved<Q6_K>& to) {
  for (int r = 0; r < kInterleavedRows; ++r) {
    to.d[r] = rows[r * count].d;
    for (int g = 0; g < 16; ++g) to.sixteens[g].scales[r] = rows[r * count].scales[g];
  }
  for (int s = 0; s < 64; ++s) {
    Interleaved<Q6_K>::Step& step = to.sixteens[s / 4].steps[s % 4];
    for (int l = 0; l < 8; ++l) {
      const uint32_t row[4] = {codes[l][s], codes[8 + l][s], codes[16 + l][s], codes[24 + l][s]};
      uint32_t high = 0;
      for (int p = 0; p < 4; ++p) high |= (row[p] >> 4 & kTwoBits) << (2 * p);
      for (int pair = 0; pair < 2; ++pair) {
        const uint32_t low = (row[2 * pair] & kFourBits) | (row[2 * pair + 1] & kFourBits) << 4;
        put_word(step.low[pair][l], low);
      }
      put_word(step.high[l], high);
    }
  }
}

template <class Block>
void interleave_group(Block* rows, int64_t count) {
  const std::vector<Block> plain(rows, rows + kInterleavedRows * count);
  auto* to = reinterpret_cast<Interleaved<Block>*>(rows);
  for (int64_t b = 0; b < count; ++b) {
    Codes codes;
    for (int r = 0; r < kInterleavedRows; ++r)
      codes_of(plain[static_cast<size_t>(r * count + b)], reinterpret_cast<uint8_t*>(codes[r]));
    join(plain.data() + b, count, codes, to[b]);
  }
}

// Row r's part of a block.
void take(const Interleaved<TQ2_0>& from, int r, TQ2_0& b) {
  uint8_t codes[256];
  for (int s = 0; s < 64; ++s) put_word(codes + 4 * s, word_at(from.steps[s][r % 8]) >> (r / 8 * 2) & kTwoBits);
  put_codes(codes, b);
  b.d = from.d[r];
}
void take(const Interleaved<Q6_K>& from, int r, Q6_K& b) {
  uint8_t codes[256];
  for (int s = 0; s < 64; ++s) {
    const Interleaved<Q6_K>::Step& step = from.sixteens[s / 4].steps[s % 4];
    const uint32_t low = word_at(step.low[r / 16][r % 8]), high = word_at(step.high[r % 8]);
    put_word(codes + 4 * s, (low >> (r / 8 % 2 * 4) & kFourBits) | (high >> (r / 8 * 2) & kTwoBits) << 4);
  }
  put_codes(codes, b);
  for (int g = 0; g < 16; ++g) b.scales[g] = from.sixteens[g].scales[r];
  b.d = from.d[r];
}

}  // namespace

View interleave(const View& w, int threads) {
  blocks::with_interleaved(w.dtype, [&](auto tag) {
    using Block = typename decltype(tag)::Plain;
    const int64_t count = w.columns() / Block::kElements;
    parallel_for(threads, w.rows() / kInterleavedRows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t group = begin; group < end; ++group)
        interleave_group(w.as<Block>() + group * kInterleavedRows * count, count);
    });
  });
  View result = w;
  result.interleaved = true;
  return result;
}

void restore_blocks(const View& w, int64_t r, int64_t first, int64_t count, void* blocks) {
  blocks::with_interleaved(w.dtype, [&](auto tag) {
    using Block = typename decltype(tag)::Plain;
    const auto* group = w.as<const decltype(tag)>() + r / kInterleavedRows * (w.columns() / Block::kElements) + first;
    for (int64_t b = 0; b < count; ++b)
      take(group[b], static_cast<int>(r % kInterleavedRows), static_cast<Block*>(blocks)[b]);
  });
}

View restore(const View& w, void* memory) {
  View plain = w;
  plain.data = memory, plain.interleaved = false;
  const int64_t count = w.columns() / dtype_info(w.dtype).elements;
  const size_t row_bytes = dtype_bytes(w.dtype, w.columns());
  for (int64_t r = 0; r < w.rows(); ++r)
    restore_blocks(w, r, 0, count, static_cast<char*>(memory) + static_cast<size_t>(r) * row_bytes);
  return plain;
}

}  // namespace qeng
