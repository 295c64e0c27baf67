#include "engine/packets/packer.h"

#include <algorithm>

#include "kernels/error.h"

namespace qeng {

Packer::Packer(const PacketFile& file, Sampler::Order order, uint64_t documents, uint32_t row_tokens, uint32_t pieces,
               int lookahead, LongDocuments policy)
    : file_(file),
      order_(order),
      documents_(documents),
      row_tokens_(row_tokens),
      max_pieces_(pieces),
      lookahead_(lookahead),
      policy_(policy),
      window_(kLookahead) {
  look_ahead();
}

void Packer::restore(const PackState& state) {
  state_ = state;
  seen_ = std::min(state.cursor, documents_);
  look_ahead();
  bool good = state.cursor <= documents_ && !state.gone[0];
  for (int i = 0; i < kLookahead && good; ++i)
    if (state.gone[static_cast<size_t>(i)])
      good = i < lookahead_ && state.cursor + static_cast<uint64_t>(i) < documents_;
  if (good && state.placed > 0) good = !done() && state.placed < waiting(0).tokens && state.placed % row_tokens_ == 0;
  if (!good)
    fail("value", file_.path(), ": the saved position (document ", state.cursor, " of ", documents_,
         ") is not one of this data set with these packing options: resume with the data and options of the saved run");
}

void Packer::look_ahead() {
  const uint64_t end = std::min(documents_, state_.cursor + static_cast<uint64_t>(lookahead_));
  for (; seen_ < end; ++seen_) {
    const uint64_t record = order_(seen_);
    window_[seen_ % kLookahead] = {record, file_.info(record).tokens};
  }
}

// Document `cursor` is gone: on to the oldest that still waits.
void Packer::retire() {
  state_.gone[0] = true, state_.placed = 0;
  while (state_.gone[0]) state_.gone >>= 1, ++state_.cursor;
  look_ahead();
}

void Packer::drop_long(PackCounts& counts) {
  while (policy_ == LongDocuments::drop && !done() && waiting(0).tokens > row_tokens_) {
    counts.dropped += 1, counts.dropped_tokens += waiting(0).tokens;
    retire();
  }
}

void Packer::next_row(std::vector<Piece>& row, PackCounts& counts) {
  row.clear();
  uint32_t room = row_tokens_;
  drop_long(counts);
  if (!done()) {
    const Waiting oldest = waiting(0);
    const uint32_t left = oldest.tokens - state_.placed;
    if (oldest.tokens > row_tokens_ && policy_ == LongDocuments::error)
      fail("value", file_.path(), ": record ", oldest.record, " has ", oldest.tokens, " tokens, a row ", row_tokens_,
           ": raise row_tokens, or choose long = \"split\" or \"drop\"");
    row.push_back({oldest.record, state_.placed, std::min(left, row_tokens_)});
    room -= row.back().tokens;
    counts.documents += state_.placed == 0, counts.split += state_.placed == 0 && left > row_tokens_;
    if (left > row_tokens_) {
      state_.placed += row_tokens_;
    } else {
      retire();
    }
  }
  // Best fit. A split document's rest waits for the next row: it is the oldest and this row is full.
  while (room > 0 && !done() && row.size() < max_pieces_) {
    const int end = static_cast<int>(seen_ - state_.cursor);
    int best = -1;
    for (int i = 0; i < end; ++i) {
      const uint32_t tokens = waiting(i).tokens;
      if (tokens <= room && !state_.gone[static_cast<size_t>(i)] && (best < 0 || tokens > waiting(best).tokens))
        best = i;
    }
    if (best < 0) break;
    row.push_back({waiting(best).record, 0, waiting(best).tokens});
    room -= row.back().tokens;
    counts.documents += 1;
    if (best == 0) {
      retire();
    } else {
      state_.gone[static_cast<size_t>(best)] = true;
    }
  }
  counts.pieces += row.size(), counts.real_tokens += row.empty() ? 0 : row_tokens_ - room;
}

}  // namespace qeng
