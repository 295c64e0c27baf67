// A set of 64-bit hashes that are random already (XXH3): linear probing in one array, 11 to 21 bytes a hash.
#pragma once
#include <cstdint>
#include <vector>

namespace qeng {

class HashSet {
 public:
  // False if it was there.
  bool insert(uint64_t hash) {
    if ((count_ + 1) * 4 > slots_.size() * 3) grow();
    hash += hash == 0;  // 0 marks a free place
    if (!place(slots_, hash)) return false;
    ++count_;
    return true;
  }
  uint64_t size() const { return count_; }

 private:
  static bool place(std::vector<uint64_t>& table, uint64_t hash) {
    const size_t mask = table.size() - 1;
    size_t at = hash & mask;
    for (; table[at] != 0; at = (at + 1) & mask)
      if (table[at] == hash) return false;
    table[at] = hash;
    return true;
  }
  void grow() {
    std::vector<uint64_t> larger(slots_.empty() ? 1024 : slots_.size() * 2);
    for (const uint64_t hash : slots_)
      if (hash) place(larger, hash);
    slots_ = std::move(larger);
  }
  std::vector<uint64_t> slots_;  // a power of two of them
  uint64_t count_ = 0;
};

}  // namespace qeng
