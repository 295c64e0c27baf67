// Lays documents end to end in rows of row_tokens, from their lengths alone: which documents, or pieces of long ones,
// make the next row. Each row takes the oldest document that waits, then again and again the longest that still fits
// among the next kLookahead of the epoch's order (best fit). So nothing waits longer than the lookahead, every document
// is placed once an epoch, and what a row holds depends neither on how many rows make a batch nor on what the documents
// contain.
//
// With `route`, a row holds documents of one destination (DST) only: that of the oldest that waits, or the one asked
// for.
//
// A document longer than a row is treated by LongDocuments; what is left out is counted. Lengths alone say what a row
// holds, but for `truncate`, which reads the masks of long documents.
#pragma once
#include <array>
#include <bitset>
#include <memory>
#include <optional>
#include <vector>

#include "engine/packets/document_order.h"
#include "engine/packets/packet_file.h"

namespace qeng {

// What becomes of a document that is longer than a row. automatic: one of which all is trained (plain text) is split,
// one that is trained in part (a conversation) is left out, for its later pieces would train answers without their
// questions. split: whole rows first; the rest is then packed like any document. truncate: its first row_tokens tokens
// are kept, unless none of them is trained. drop: it is left out. error: Error("value").
enum class LongDocuments : uint8_t { automatic, split, truncate, drop, error };

constexpr int kLookahead =
    256;  // leaves 1.6 % padding in rows of 512 where 64 leave 2.4 % (log-normal lengths, median 250)

struct Piece {
  uint64_t record;
  uint32_t begin, tokens;  // tokens [begin, begin + tokens) of the document
};

// Where an epoch's packing stands: the oldest waiting document, how much of it is placed, and which documents of the
// lookahead behind it are already gone.
struct PackState {
  uint64_t cursor = 0;
  uint32_t placed = 0;           // tokens of document `cursor` in earlier rows
  std::bitset<kLookahead> gone;  // gone[i]: document cursor + i is placed or dropped
  bool operator==(const PackState&) const = default;
};

struct PackCounts {
  uint64_t documents = 0;  // first pieces placed
  uint64_t pieces = 0;     // segments placed; more than documents where some were split
  uint64_t split = 0;      // documents that were split
  uint64_t truncated = 0;  // documents of which only the beginning was placed
  uint64_t dropped = 0;    // documents longer than a row, left out
  uint64_t dropped_tokens = 0;
  uint64_t crc_dropped = 0;  // documents that CrcDrop left out
  uint64_t real_tokens = 0;  // tokens placed, padding not counted
};

class Packer {
 public:
  // documents: of the epoch, drawn here as the lookahead reaches them. pieces: the most a row may hold. lookahead: 1
  // (in order) to kLookahead. Goes on from `state`; Error("value") where that is not one of these documents and
  // options.
  Packer(const PacketFile& file, std::unique_ptr<DocumentOrder> documents, uint64_t count, uint32_t row_tokens,
         uint32_t pieces, int lookahead, LongDocuments policy, bool route, const PackState& state = {});

  // The next row's pieces, in the order they lie; empty at the end of the epoch. Adds to counts. destination: what a
  // routed row has to be of; where nothing of it waits that fits, the row is empty before the end.
  void next_row(std::vector<Piece>& row, PackCounts& counts, std::optional<uint8_t> destination = {});
  bool done() const { return state_.cursor >= count_; }
  const PackState& state() const { return state_; }
  std::vector<uint8_t> window() const;  // Document::source of those drawn, from the oldest that waits

 private:
  static size_t place(uint64_t document) { return document % kLookahead; }  // in the rings below
  int best_fit(uint32_t room, int32_t destination) const;
  bool long_document(const RecordInfo& info) const { return info.tokens > row_tokens_; }
  bool splits(const RecordInfo& info) const;
  bool leaves_out(uint64_t record, const RecordInfo& info) const;
  void look_ahead();
  void advance();
  void retire();

  const PacketFile& file_;
  std::unique_ptr<DocumentOrder> documents_;
  uint64_t count_;
  uint32_t row_tokens_, max_pieces_;
  int lookahead_;
  LongDocuments policy_;
  bool route_;
  PackState state_;
  uint64_t crc_dropped_ = 0, dropped_ = 0, dropped_tokens_ = 0;  // since the last row
  uint64_t seen_ = 0;                                            // documents cursor .. seen_ - 1 are in the rings
  std::array<uint64_t, kLookahead> records_{};
  std::array<int32_t, kLookahead> lengths_{};       // to be placed; kGone where no document waits
  std::array<int32_t, kLookahead> destinations_{};  // all 0 where rows are not routed
  std::array<uint8_t, kLookahead> sources_{};
};

}  // namespace qeng
