// Byte-pair merging of one piece: the neighbours whose pair has the lowest rank are joined, leftmost first, until no
// pair is left (Sennrich et al. 2016, arXiv 1508.07909). Immutable once built.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace qeng {

struct Merge {
  int32_t rank = INT32_MAX;  // INT32_MAX: the two do not merge
  int32_t id = -1;           // what they become
};

class Bpe {
 public:
  // byte_ids[b]: the token of byte b, -1 if there is none: encode gives it as it is. lookup: pieces that are a token as
  // a whole are that token, whatever merging would give.
  Bpe(const int32_t (&byte_ids)[256], size_t expected_merges);
  void add_merge(int32_t left, int32_t right, Merge merge);                   // a pair added twice keeps the lower rank
  void add_whole(const TokenBytes& bytes, int32_t id);                        // piece bytes[id] is token id
  void finish();                                                              // after the last add
  int32_t find_whole(std::string_view piece, const TokenBytes& bytes) const;  // -1 if none was added

  // Appends the ids of a non-empty piece. bytes: those that add_whole was given. O(n log n).
  void encode(std::string_view piece, const TokenBytes& bytes, std::vector<int32_t>& ids) const;
  void merge(std::vector<int32_t>& parts) const;  // the same of parts that are tokens; needs no finish(). O(n log n)
  uint64_t hash() const { return hash_; }
  bool takes_wholes() const { return wholes_ > 0; }
  bool lacks_bytes() const { return lacks_bytes_; }
  // {left, right} by rank; empty where two pairs have one rank (tiktoken's), so that no list says what is merged.
  std::vector<std::array<int32_t, 2>> merges() const;

 private:
  struct Entry {
    uint64_t pair;
    Merge merge;
  };
  Merge find(int32_t left, int32_t right) const;
  void encode_short(std::string_view piece, std::vector<int32_t>& ids) const;
  void grow();

  int32_t byte_ids_[256];
  bool lacks_bytes_ = false;
  std::vector<Merge> byte_merges_;  // [256 * 256], of pairs of single bytes
  std::vector<Entry> table_;        // open addressing, a power of two of them, at most half full
  size_t used_ = 0;
  int shift_ = 0;
  std::vector<int32_t> whole_table_;  // hash table of ids, -1 where empty
  size_t wholes_ = 0, longest_whole_ = 0;
  uint64_t hash_ = 0;
};

}  // namespace qeng
