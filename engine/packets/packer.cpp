#include "engine/packets/packer.h"

#include <algorithm>

#include "kernels/error.h"

namespace qeng {
namespace {

constexpr int32_t kGone = INT32_MAX;  // no row is so long, so nothing waits here for best_fit

}  // namespace

Packer::Packer(const PacketFile& file, Sampler::Order order, uint64_t documents, uint32_t row_tokens, uint32_t pieces,
               int lookahead, LongDocuments policy)
    : file_(file),
      order_(order),
      documents_(documents),
      row_tokens_(row_tokens),
      max_pieces_(pieces),
      lookahead_(lookahead),
      policy_(policy) {
  look_ahead();
}

void Packer::restore(const PackState& state) {
  state_ = state;
  seen_ = std::min(state.cursor, documents_);
  bool good = state.cursor <= documents_ && !state.gone[0];
  for (size_t i = 0; i < kLookahead && good; ++i)
    if (state.gone[i]) good = i < static_cast<size_t>(lookahead_) && i < documents_ - state.cursor;
  if (good) look_ahead();
  if (good && state.placed > 0)
    good = !done() && policy_ == LongDocuments::split && state.placed % row_tokens_ == 0 &&
           state.placed < file_.info(records_[place(state.cursor)]).tokens;
  if (!good)
    fail("value", file_.path(), ": the saved position (document ", state.cursor, " of ", documents_,
         ") is not one of this data set with these packing options: resume with the data and options of the saved run");
}

void Packer::look_ahead() {
  if (seen_ == state_.cursor) lengths_.fill(kGone);
  const uint64_t end = std::min(documents_, state_.cursor + static_cast<uint64_t>(lookahead_));
  for (; seen_ < end; ++seen_) {
    const uint64_t record = order_(seen_);
    records_[place(seen_)] = record;
    const bool gone = state_.gone[seen_ - state_.cursor];
    lengths_[place(seen_)] = gone ? kGone : static_cast<int32_t>(std::min<uint32_t>(file_.info(record).tokens, kGone));
  }
}

// Document `cursor` is gone: on to the oldest that still waits.
void Packer::retire() {
  state_.gone[0] = true, state_.placed = 0;
  lengths_[place(state_.cursor)] = kGone;
  while (state_.gone[0]) state_.gone >>= 1, ++state_.cursor;
  look_ahead();
}

// How far behind the cursor the longest document of at most `room` tokens stands, the oldest of equals; -1: there is
// none.
int Packer::best_fit(uint32_t room) const {
  int32_t longest = 0;
  const auto limit = static_cast<int32_t>(room);
  for (int32_t length : lengths_) longest = std::max(longest, length <= limit ? length : 0);  // vectorized
  if (longest == 0) return -1;
  int ahead = 0;
  while (lengths_[place(state_.cursor + static_cast<uint64_t>(ahead))] != longest) ++ahead;
  return ahead;
}

void Packer::drop_long(PackCounts& counts) {
  while (policy_ == LongDocuments::drop && !done()) {
    const uint32_t tokens = file_.info(records_[place(state_.cursor)]).tokens;
    if (tokens <= row_tokens_) return;
    counts.dropped += 1, counts.dropped_tokens += tokens;
    retire();
  }
}

void Packer::next_row(std::vector<Piece>& row, PackCounts& counts) {
  row.clear();
  uint32_t room = row_tokens_;
  drop_long(counts);
  if (!done()) {
    const uint64_t record = records_[place(state_.cursor)];
    const uint32_t tokens = file_.info(record).tokens, left = tokens - state_.placed;
    if (tokens > row_tokens_ && policy_ == LongDocuments::error)
      fail("value", file_.path(), ": record ", record, " has ", tokens, " tokens, a row ", row_tokens_,
           ": raise row_tokens, or choose long = \"split\" or \"drop\"");
    row.push_back({record, state_.placed, std::min(left, row_tokens_)});
    room -= row.back().tokens;
    counts.documents += state_.placed == 0, counts.split += state_.placed == 0 && left > row_tokens_;
    if (left > row_tokens_) {
      state_.placed += row_tokens_;
    } else {
      retire();
    }
  }
  // Best fit. The rest of a document that was just split waits for the next row: this one is full.
  while (room > 0 && !row.empty() && row.size() < max_pieces_) {
    const int ahead = best_fit(room);
    if (ahead < 0) break;
    const size_t at = place(state_.cursor + static_cast<uint64_t>(ahead));
    row.push_back({records_[at], 0, static_cast<uint32_t>(lengths_[at])});
    room -= row.back().tokens;
    counts.documents += 1;
    if (ahead == 0) {
      retire();
    } else {
      state_.gone[static_cast<size_t>(ahead)] = true;
      lengths_[at] = kGone;
    }
  }
  counts.pieces += row.size(), counts.real_tokens += row.empty() ? 0 : row_tokens_ - room;
}

}  // namespace qeng
