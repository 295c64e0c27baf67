#include "engine/packets/packer.h"

#include <algorithm>

#include "kernels/error.h"

namespace qeng {
namespace {

constexpr int32_t kGone = INT32_MAX;  // no row is so long, so nothing waits here for best_fit

}  // namespace

Packer::Packer(const PacketFile& file, std::unique_ptr<DocumentOrder> documents, uint64_t count, uint32_t row_tokens,
               uint32_t pieces, int lookahead, LongDocuments policy, bool route, const PackState& state)
    : file_(file),
      documents_(std::move(documents)),
      count_(count),
      row_tokens_(row_tokens),
      max_pieces_(pieces),
      lookahead_(lookahead),
      policy_(policy),
      route_(route),
      state_(state),
      seen_(std::min(state.cursor, count)) {
  bool good = state.cursor <= count && !state.gone[0];
  for (size_t i = 0; i < kLookahead && good; ++i)
    if (state.gone[i]) good = i < static_cast<size_t>(lookahead_) && i < count - state.cursor;
  if (good) advance();
  if (good && state.placed > 0)
    good = state_.cursor == state.cursor && !done() && splits(file_.info(records_[place(state.cursor)])) &&
           state.placed % row_tokens_ == 0 && state.placed < file_.info(records_[place(state.cursor)]).tokens;
  if (!good)
    fail("value", file_.path(), ": the saved position (document ", state.cursor, " of ", count,
         ") is not one of this data set with these packing options: resume with the data and options of the saved run");
}

bool Packer::splits(const RecordInfo& info) const {
  return policy_ == LongDocuments::split || (policy_ == LongDocuments::automatic && !trained_in_part(info));
}

bool Packer::leaves_out(uint64_t record, const RecordInfo& info) const {
  if (!long_document(info)) return false;
  switch (policy_) {
    case LongDocuments::automatic: return trained_in_part(info);
    case LongDocuments::truncate: return file_.trained_tokens(record, row_tokens_) == 0;
    case LongDocuments::drop: return true;
    default: return false;
  }
}

void Packer::look_ahead() {
  if (seen_ == state_.cursor) lengths_.fill(kGone);
  const uint64_t end = std::min(count_, state_.cursor + static_cast<uint64_t>(lookahead_));
  for (; seen_ < end; ++seen_) {
    const Document document = documents_->draw(seen_);
    const RecordInfo info = file_.info(document.record);
    file_.expect(document.record);
    const size_t at = place(seen_), ahead = seen_ - state_.cursor;
    records_[at] = document.record, sources_[at] = document.source;
    destinations_[at] = route_ ? info.dst : 0;
    if (!state_.gone[ahead] && document.dropped) {
      state_.gone[ahead] = true, ++crc_dropped_;
    } else if (!state_.gone[ahead] && leaves_out(document.record, info)) {
      state_.gone[ahead] = true, ++dropped_, dropped_tokens_ += info.tokens;
    }
    const uint32_t most = policy_ == LongDocuments::truncate ? row_tokens_ : uint32_t{kGone};
    lengths_[at] = state_.gone[ahead] ? kGone : static_cast<int32_t>(std::min(info.tokens, most));
  }
}

// On to the oldest document that waits, with a full lookahead behind it.
void Packer::advance() {
  look_ahead();
  while (state_.gone[0]) {
    while (state_.gone[0]) state_.gone >>= 1, ++state_.cursor;
    look_ahead();
  }
}

// Document `cursor` is gone.
void Packer::retire() {
  state_.gone[0] = true, state_.placed = 0;
  lengths_[place(state_.cursor)] = kGone;
  advance();
}

std::vector<uint8_t> Packer::window() const {
  std::vector<uint8_t> sources;
  for (uint64_t i = state_.cursor; i < seen_; ++i) sources.push_back(sources_[place(i)]);
  return sources;
}

// How far behind the cursor the longest document of at most `room` tokens stands, the oldest of equals; -1: there is
// none.
int Packer::best_fit(uint32_t room, int32_t destination) const {
  int32_t longest = 0;
  const auto limit = static_cast<int32_t>(room);
  if (!route_) {
    for (int32_t length : lengths_) longest = std::max(longest, length <= limit ? length : 0);  // vectorized
  } else {
    for (size_t i = 0; i < kLookahead; ++i) {
      const bool fits = lengths_[i] <= limit && destinations_[i] == destination;
      longest = std::max(longest, fits ? lengths_[i] : 0);
    }
  }
  if (longest == 0) return -1;
  for (int ahead = 0;; ++ahead) {
    const size_t at = place(state_.cursor + static_cast<uint64_t>(ahead));
    if (lengths_[at] == longest && destinations_[at] == destination) return ahead;
  }
}

void Packer::next_row(std::vector<Piece>& row, PackCounts& counts, std::optional<uint8_t> destination) {
  row.clear();
  uint32_t room = row_tokens_;
  const auto add = [&](const Piece& piece) {
    row.push_back(piece);
    room -= piece.tokens;
    counts.documents += piece.begin == 0;
    counts.truncated += policy_ == LongDocuments::truncate && long_document(file_.info(piece.record));
  };
  const int32_t oldest = done() ? 0 : destinations_[place(state_.cursor)];
  const int32_t wanted = route_ && destination ? *destination : oldest;
  if (!done() && oldest == wanted) {
    const uint64_t record = records_[place(state_.cursor)];
    const uint32_t tokens = static_cast<uint32_t>(lengths_[place(state_.cursor)]), left = tokens - state_.placed;
    if (tokens > row_tokens_ && policy_ == LongDocuments::error)
      fail("value", file_.path(), ": record ", record, " has ", tokens, " tokens, a row ", row_tokens_,
           ": raise row_tokens, or choose long = \"split\", \"truncate\" or \"drop\"");
    add({record, state_.placed, std::min(left, row_tokens_)});
    counts.split += state_.placed == 0 && left > row_tokens_;
    if (left > row_tokens_) {
      state_.placed += row_tokens_;
    } else {
      retire();
    }
  }
  // Best fit. The rest of a document that was just split waits for the next row: this one is full.
  while (room > 0 && row.size() < max_pieces_) {
    const int ahead = best_fit(room, wanted);
    if (ahead < 0) break;
    const size_t at = place(state_.cursor + static_cast<uint64_t>(ahead));
    add({records_[at], 0, static_cast<uint32_t>(lengths_[at])});
    if (ahead == 0) {
      retire();
    } else {
      state_.gone[static_cast<size_t>(ahead)] = true;
      lengths_[at] = kGone;
    }
  }
  counts.pieces += row.size(), counts.real_tokens += row_tokens_ - room;
  counts.crc_dropped += crc_dropped_, counts.dropped += dropped_, counts.dropped_tokens += dropped_tokens_;
  crc_dropped_ = dropped_ = dropped_tokens_ = 0;
}

}  // namespace qeng
