#include "engine/packets/scanner.h"

#include <algorithm>

#include "engine/packets/payload.h"

namespace qeng {
namespace {

constexpr size_t kMaxFrame = kMaxPayload + kFrameOverhead;

}  // namespace

void FrameScanner::need(size_t bytes) {
  if (!source_ || bytes_.size() - at_ >= bytes) return;
  const size_t kept = bytes_.size() - at_;
  std::copy(bytes_.begin() + static_cast<std::ptrdiff_t>(at_), bytes_.end(), buffer_.begin());
  base_ += at_, at_ = 0;
  buffer_.resize(std::max(buffer_.size(), 2 * kResyncBytes));
  size_t have = kept;
  while (source_ && have < bytes) {
    const size_t got = source_->read(buffer_.data() + have, buffer_.size() - have);
    if (got == 0) source_.reset();
    have += got;
  }
  bytes_ = {buffer_.data(), have};
}

bool FrameScanner::next(Frame& frame) {
  while (true) {
    need(kFrameOverhead);  // no more than this frame: a live pipe may hold nothing else yet
    if (at_ == bytes_.size()) return false;
    if (bytes_.size() - at_ >= kFrameOverhead) need(frame_bytes(at_));
    if (parse_frame(bytes_.subspan(at_), variant_, frame)) {
      at_ += frame.bytes();
      return true;
    }
    resynchronise();
  }
}

void FrameScanner::resynchronise() {
  need(kResyncBytes + kMaxFrame);
  damage_position_ = position();
  damage_type_ = at_ + 3 < bytes_.size() ? bytes_[at_ + 3] : 0;
  if (along_lengths()) return;
  errors_.count(at_ + 1 < bytes_.size() ? bytes_[at_ + 1] : 0);
  byte_by_byte();
}

// Right where payloads are damaged and headers are not, so that each damaged frame is counted.
bool FrameScanner::along_lengths() {
  Frame frame;
  FrameErrors passed;
  size_t at = at_;
  const auto whole = [&] { return parse_frame(bytes_.subspan(at), variant_, frame); };
  while (at - at_ < kResyncBytes && at + kFrameOverhead <= bytes_.size() && bytes_[at] == kFrameStart && !whole()) {
    passed.count(bytes_[at + 1]);
    at += frame_bytes(at);
  }
  if (at != bytes_.size() && !(at < bytes_.size() && whole())) return false;
  for (size_t src = 0; src < 256; ++src) errors_.by_source[src] += passed.by_source[src];
  errors_.total += passed.total;
  skipped_ += at - at_;
  at_ = at;
  return true;
}

void FrameScanner::byte_by_byte() {
  Frame frame;
  do {
    ++at_, ++skipped_;
    need(kMaxFrame);
  } while (at_ < bytes_.size() && !parse_frame(bytes_.subspan(at_), variant_, frame));
}

void RecordScanner::advance() {
  const uint64_t skipped = frames_.skipped_bytes();
  have_ = frames_.next(frame_);
  gap_ = frames_.skipped_bytes() != skipped;
  mask_gap_ = gap_ && frames_.damage_type() != static_cast<uint8_t>(FrameType::token_ids);
}

// Takes the frames of one document, from its first; false where one is missing or wrong.
bool RecordScanner::take(Record& record) {
  record = {std::move(record.tokens), std::move(record.mask), frame_.src, frame_.dst, frame_.type, {}};
  record.tokens.clear(), record.mask.clear();
  if (frame_.type != FrameType::token_ids) return take_payload(record);
  bool good = true, gap = false;
  for (bool more = true; more;) {
    if (!have_ || frame_.type != FrameType::token_ids) return false;
    good = append_tokens(record.tokens, frame_.payload) && good;
    more = frame_.payload.size() == kFrameTokens * 4;
    advance();
    gap = gap || (more && gap_);
  }
  if (gap || mask_gap_ || record.tokens.empty()) return false;
  const size_t tokens = record.tokens.size();
  while (have_ && frame_.type == FrameType::loss_mask && !gap_) {  // behind damage it is the mask of what was lost
    good = good && frame_.payload.size() <= mask_bytes(tokens - record.mask.size());
    if (good) append_mask(record.mask, frame_.payload, tokens);
    advance();
  }
  return good && (record.mask.empty() || record.mask.size() == tokens);
}

bool RecordScanner::take_payload(Record& record) {
  bool gap = false;
  for (bool more = true; more;) {
    if (!have_ || frame_.type != record.type || frame_.src != record.src || frame_.dst != record.dst) return false;
    record.payload.insert(record.payload.end(), frame_.payload.begin(), frame_.payload.end());
    more = frame_.payload.size() == full_payload(record.type);
    advance();
    gap = gap || (more && gap_);
  }
  return !gap && payload_problem(record.type, record.payload).empty();
}

bool RecordScanner::next(Record& record) {
  if (!started_) started_ = true, advance();
  while (have_) {
    if (frame_.type == FrameType::loss_mask) {
      advance();  // the mask of a record that was lost
    } else if (take(record)) {
      return true;
    } else {
      ++lost_;
    }
  }
  return false;
}

}  // namespace qeng
