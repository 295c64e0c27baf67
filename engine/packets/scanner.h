// Bare frames, without a container: a received buffer, a .ndp file, a pipe.
#pragma once
#include <memory>

#include "engine/packets/byte_source.h"
#include "engine/packets/frame.h"

namespace qeng {

// How far behind damage the next frame is looked for along the lengths that damaged headers show: sixty full frames.
constexpr size_t kResyncBytes = size_t{4} << 20;

// Frames in order. After damage it goes on at the next frame that verifies: first along the lengths of the damaged
// headers, then byte by byte. Bytes in memory must outlive their scanner; a source is read as far as needed, in memory
// of twice kResyncBytes.
class FrameScanner {
 public:
  explicit FrameScanner(std::span<const uint8_t> bytes, CrcVariant variant = CrcVariant::ccitt_false)
      : bytes_(bytes), variant_(variant) {}
  explicit FrameScanner(std::unique_ptr<ByteSource> source, CrcVariant variant = CrcVariant::ccitt_false)
      : source_(std::move(source)), variant_(variant) {}

  bool next(Frame& frame);  // false at the end; the payload is valid until the next call
  const FrameErrors& errors() const { return errors_; }
  uint64_t skipped_bytes() const { return skipped_; }
  uint64_t position() const { return base_ + at_; }  // behind the last frame
  // The first bytes that the last next() skipped: where, and the type that their header shows.
  uint64_t damage_position() const { return damage_position_; }
  uint8_t damage_type() const { return damage_type_; }

 private:
  void need(size_t bytes);               // from at_ on, unless they end before
  size_t frame_bytes(size_t at) const {  // as the header there says
    return static_cast<size_t>(bytes_[at + 4] << 8 | bytes_[at + 5]) + kFrameOverhead;
  }
  void resynchronise();
  bool along_lengths();
  void byte_by_byte();

  std::unique_ptr<ByteSource> source_;  // none, or at its end: bytes_ is all there is
  std::vector<uint8_t> buffer_;
  std::span<const uint8_t> bytes_;
  CrcVariant variant_;
  size_t at_ = 0;
  uint64_t base_ = 0;  // of bytes_'s first, of all that were read
  uint64_t skipped_ = 0;
  uint64_t damage_position_ = 0;
  uint8_t damage_type_ = 0;
  FrameErrors errors_;
};

struct Record {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> mask;  // one byte a token, or empty: every token is a target
  uint8_t src = 0, dst = 0;
  FrameType type = FrameType::token_ids;  // otherwise a payload, and no tokens
  std::vector<uint8_t> payload;
};

// Records in order. One with a damaged frame is left out; lost() counts those of which at least one frame was whole.
// After damage inside a document of several frames its remaining frames are left out too, and so is a
// document whose mask may be what was damaged behind it.
class RecordScanner {
 public:
  explicit RecordScanner(std::span<const uint8_t> bytes, CrcVariant variant = CrcVariant::ccitt_false)
      : frames_(bytes, variant) {}
  explicit RecordScanner(std::unique_ptr<ByteSource> source, CrcVariant variant = CrcVariant::ccitt_false)
      : frames_(std::move(source), variant) {}
  bool next(Record& record);
  const FrameErrors& errors() const { return frames_.errors(); }
  uint64_t skipped_bytes() const { return frames_.skipped_bytes(); }
  uint64_t lost() const { return lost_; }

 private:
  void advance();  // to the next frame
  bool take(Record& record);
  bool take_payload(Record& record);
  FrameScanner frames_;
  Frame frame_;
  bool started_ = false, have_ = false;
  bool gap_ = false, mask_gap_ = false;  // something, or something that may be a mask, was damaged just before frame_
  uint64_t lost_ = 0;
};

}  // namespace qeng
