// Which tokens may come next: a bit for each id, packed. The sampler takes one; a grammar's matcher makes them.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace qeng {

struct TokenMask {
  int64_t vocab = 0;
  std::vector<uint64_t> words;  // bit id % 64 of words[id / 64]: token id may come next; no bits at and after vocab

  explicit TokenMask(int64_t ids) : vocab(ids), words(static_cast<size_t>((ids + 63) / 64)) {}
  // An id outside the vocabulary may not: logits often have more columns than the tokenizer has ids.
  bool allows(int64_t id) const {
    return id >= 0 && id < vocab && (words[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0;
  }
  void allow(int64_t id) { words[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64); }
  void forbid(int64_t id) { words[static_cast<size_t>(id) / 64] &= ~(uint64_t{1} << (id % 64)); }
  int64_t count() const {
    int64_t n = 0;
    for (const uint64_t word : words) n += std::popcount(word);
    return n;
  }
};

}  // namespace qeng
