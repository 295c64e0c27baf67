// What a dataset holds, from one pass over all its records with all cores: lengths, trained shares, answers,
// duplicates. Records that hold no tokens are in no figure (PacketFile::payloads counts them). The result
// does not depend on how many threads took part. Memory: 16 bytes a record, for finding
// duplicates.
#pragma once
#include <map>
#include <vector>

#include "engine/packets/packet_file.h"

namespace qeng {

struct StatisticsOptions {
  std::vector<int32_t> ends;  // tokens that end an answer (<|im_end|>, <|endoftext|>); empty: answers are not judged
  int threads = 0;            // 0: the cores there are
};

// An answer is a run of tokens that are targets; a document without a mask is one answer.
struct SourceStatistics {
  uint64_t records = 0, damaged = 0;        // damaged ones are counted nowhere else
  uint64_t tokens = 0, trained = 0;         // trained: targets, as the index counts them
  uint64_t untrained = 0;                   // records without a single target
  uint64_t answers = 0, empty_answers = 0;  // empty: nothing but tokens of `ends`
  uint64_t truncated = 0;                   // records whose last target is none of `ends`
  uint64_t duplicates = 0;                  // records whose tokens stand in an earlier record too
  uint64_t duplicate_tokens = 0;
  uint32_t shortest = UINT32_MAX, longest = 0;
  void add(const SourceStatistics& other);
};

struct DuplicateGroup {
  uint64_t records = 0, first = 0;  // how many are the same; the number of the first
  uint32_t tokens = 0;
};

struct PacketStatistics {
  SourceStatistics total;
  std::map<int, SourceStatistics> sources;       // by SRC
  std::map<uint32_t, uint64_t> lengths;          // tokens of a record -> records
  std::map<uint32_t, uint64_t> trained_lengths;  // targets of a record -> records
  std::vector<DuplicateGroup> groups;            // the largest, at most 16
  int32_t highest_token = -1;
};

PacketStatistics packet_statistics(const PacketFile& file, const StatisticsOptions& options = {});

}  // namespace qeng
