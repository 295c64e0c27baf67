#include "engine/packets/packet_file.h"

#include <algorithm>
#include <bit>

#include "engine/formats/arrival.h"
#include "engine/formats/json_depth.h"
#include "engine/formats/mapped_file.h"
#include "engine/packets/payload.h"
#include "kernels/error.h"

namespace qeng {
namespace {

constexpr uint64_t kGood = UINT64_MAX;  // no frame is there

}  // namespace

std::shared_ptr<const PacketFile> PacketFile::open(const std::string& path, std::shared_ptr<Arrival> arrival) {
  return std::shared_ptr<const PacketFile>(new PacketFile(path, std::move(arrival)));
}
PacketFile::~PacketFile() = default;

PacketFile::PacketFile(const std::string& path, std::shared_ptr<Arrival> arrival)
    : path_(path), file_(MappedFile::open(path, OnShrink::zeros)), arrival_(std::move(arrival)) {
  const auto* data = reinterpret_cast<const uint8_t*>(file_->data());
  header_ = parse_header({data, file_->size()}, path, arrival_.get());
  frames_ = {data + header_.frames_offset, header_.frames_bytes};
  index_ =
      reinterpret_cast<const IndexEntry*>(data + header_.index_offset);  // a multiple of 8 in a page-aligned mapping
  hashes_ = reinterpret_cast<const uint64_t*>(data + header_.hashes_offset);
  check_index();
  const char* text = reinterpret_cast<const char*>(data + header_.meta_offset);
  check_json_depth(path + ": the meta data", {text, header_.meta_bytes}, kRecordDepth);
  meta_ = nlohmann::json::parse(text, text + header_.meta_bytes, nullptr, false);
  require_whole();
  if (!meta_.is_object())
    fail("format", path, ": the meta data is not a JSON object: the file is damaged, convert it again");
}

void PacketFile::require_whole() const { file_->require_whole(); }

void PacketFile::await(uint64_t record) const {
  if (arrival_) arrival_->wait(header_.frames_offset + entry(record).offset, header_.frames_offset + end(record));
}

void PacketFile::expect(uint64_t record, bool next) const {
  if (arrival_)
    arrival_->expect(header_.frames_offset + entry(record).offset, header_.frames_offset + end(record), next);
}

// Records lie back to back. A document is exactly as long as its token count says; a payload, whose type only its
// frames know, has room for what so many frames of some type hold. So no read leaves the frames.
void PacketFile::check_index() {
  uint64_t offset = 0, frames = 0, tokens = 0, loss_tokens = 0;
  for (uint64_t i = 0; i < header_.records; ++i) {
    const IndexEntry& e = index_[i];
    const size_t plain = token_frames(e.tokens), masked = plain + mask_frames(e.tokens);
    bool fits = e.offset == offset && e.zero == 0;
    uint64_t bytes = 0;
    if (e.tokens > 0) {
      fits = fits && (e.frames == plain || e.frames == masked) && e.loss_tokens < e.tokens;
      bytes = record_bytes(e.tokens, e.frames == masked);
    } else if (fits) {
      fits = e.frames > 0 && e.loss_tokens == 0 && end(i) >= offset;
      bytes = end(i) - offset;
      const uint64_t overhead = e.frames * kFrameOverhead, least = (e.frames - uint64_t{1}) * kLeastFullPayload;
      fits = fits && bytes >= overhead + least && bytes < overhead + e.frames * uint64_t{kMaxPayload};
      ++payloads_;
    }
    if (!fits || bytes > header_.frames_bytes - offset)
      fail("format", path_, ": index entry ", i, " (offset ", e.offset, ", ", e.tokens, " tokens, ", e.loss_tokens,
           " trained, ", e.frames, " frames) does not fit the frames: the file is damaged, convert it again");
    offset += bytes, frames += e.frames, tokens += e.tokens, loss_tokens += e.loss_tokens;
  }
  if (offset != header_.frames_bytes || frames != header_.frames || tokens != header_.tokens ||
      loss_tokens != header_.loss_tokens)
    fail("format", path_, ": the index adds up to ", tokens, " tokens in ", frames, " frames, the header says ",
         header_.tokens, " in ", header_.frames, ": the file is damaged, convert it again");
}

const IndexEntry& PacketFile::entry(uint64_t record) const {
  if (record >= header_.records)
    fail("value", path_, ": record ", record, " of ", header_.records, " (they count from 0)");
  return index_[record];
}

uint64_t PacketFile::end(uint64_t record) const {
  const uint64_t next = record + 1 < header_.records ? index_[record + 1].offset : frames_.size();
  const uint64_t begin = std::min<uint64_t>(index_[record].offset, frames_.size());
  return std::clamp<uint64_t>(next, begin, frames_.size());
}

RecordInfo PacketFile::info(uint64_t record) const {
  const IndexEntry e = entry(record);
  require_whole();  // the index of a file that has shrunk reads as zeros
  return {e.tokens, e.loss_tokens, e.frames, e.src, e.dst, e.tokens > 0 && e.frames > token_frames(e.tokens)};
}

std::optional<FrameType> PacketFile::type(uint64_t record) const {
  const IndexEntry& e = entry(record);
  if (e.tokens > 0) return FrameType::token_ids;
  await(record);
  const auto type = static_cast<FrameType>(frames_[e.offset + 3]);
  require_whole();
  return is_payload(type) ? std::optional(type) : std::nullopt;
}

// The index says what each frame must be; a frame that is whole but something else counts as damaged too.
uint64_t PacketFile::damaged_document(const IndexEntry& e) const {
  const size_t token_frame_count = token_frames(e.tokens);
  uint64_t at = e.offset;
  size_t tokens_left = e.tokens, mask_left = mask_bytes(e.tokens), trained = 0;
  Frame frame;
  for (size_t i = 0; i < e.frames; ++i, at += frame.bytes()) {
    if (!parse_frame(frames_.subspan(at), header_.variant(), frame) || frame.src != e.src || frame.dst != e.dst)
      return at;
    const auto payload = frame.payload;
    if (i < token_frame_count) {
      const size_t expected = std::min(kFrameTokens, tokens_left);
      if (frame.type != FrameType::token_ids || payload.size() != expected * 4) return at;
      tokens_left -= expected;
      continue;
    }
    if (frame.type != FrameType::loss_mask || payload.size() != std::min(kMaxPayload, mask_left)) return at;
    const size_t first = mask_left == mask_bytes(e.tokens);  // the first token of a document is no target
    mask_left -= payload.size();
    trained += count_bits(payload.data(), first, payload.size() * 8 - first);
    if (mask_left == 0 && e.tokens % 8 != 0)
      trained -= static_cast<size_t>(std::popcount(payload.back() >> e.tokens % 8 & 255u));
  }
  const bool masked = e.frames > token_frame_count;
  return (masked ? trained : e.tokens - 1) == e.loss_tokens ? kGood : e.offset;
}

uint64_t PacketFile::damaged_payload(uint64_t record) const {
  const IndexEntry& e = index_[record];
  const uint64_t end_at = std::max(end(record), e.offset);
  const auto type = static_cast<FrameType>(frames_[e.offset + 3]);
  std::vector<uint8_t> bytes;
  uint64_t at = e.offset;
  Frame frame;
  for (size_t i = 0; i < e.frames; ++i, at += frame.bytes()) {
    if (!parse_frame(frames_.subspan(at, end_at - at), header_.variant(), frame) || frame.src != e.src ||
        frame.dst != e.dst || frame.type != type || !is_payload(type))
      return at;
    if ((frame.payload.size() == full_payload(type)) != (i + 1u < e.frames)) return at;
    bytes.insert(bytes.end(), frame.payload.begin(), frame.payload.end());
  }
  return at == end_at && payload_problem(type, bytes).empty() ? kGood : e.offset;
}

uint64_t PacketFile::damaged_at(uint64_t record) const {
  const IndexEntry& e = entry(record);
  return e.tokens > 0 ? damaged_document(e) : damaged_payload(record);
}

bool PacketFile::check(uint64_t record) const {
  await(record);
  const bool good = damaged_at(record) == kGood;
  require_whole();
  if (!good) bad_by_source_[index_[record].src].fetch_add(1, std::memory_order_relaxed);
  return good;
}

bool PacketFile::read(uint64_t record, std::vector<int32_t>& tokens, std::vector<uint8_t>& mask) const {
  const RecordInfo known = info(record);
  if (known.tokens == 0)
    fail("value", path_, ": record ", record, " is a payload and holds no tokens: read it with payload()");
  if (!check(record)) return false;
  decode_document(stored(record), known, tokens, mask);
  require_whole();
  return true;
}

bool PacketFile::read_payload(uint64_t record, FrameType& type, std::vector<uint8_t>& bytes) const {
  const IndexEntry& e = entry(record);
  if (e.tokens > 0)
    fail("value", path_, ": record ", record, " is a document of ", e.tokens,
         " tokens, no payload: read it with read()");
  bytes.clear();
  if (!check(record)) return false;
  type = static_cast<FrameType>(frames_[e.offset + 3]);
  const auto frames = stored(record);
  for (size_t at = 0; at < frames.size();) {
    const size_t payload = static_cast<size_t>(frames[at + 4] << 8 | frames[at + 5]);
    const auto part = frames.subspan(at + kFrameHeader, payload);
    bytes.insert(bytes.end(), part.begin(), part.end());
    at += payload + kFrameOverhead;
  }
  require_whole();
  return true;
}

uint64_t PacketFile::bytes(uint64_t record) const {
  return end(record) - std::min<uint64_t>(entry(record).offset, frames_.size());
}

std::span<const uint8_t> PacketFile::stored(uint64_t record) const {
  await(record);
  require_whole();
  return frames_.subspan(end(record) - bytes(record), bytes(record));
}

void PacketFile::prefetch(uint64_t record) const {
  constexpr size_t kLine = 64, kLines = 4;  // then the processor has seen the pattern
  const uint64_t at = entry(record).offset;
  for (size_t i = 0; i < kLines && at + i * kLine < frames_.size(); ++i) __builtin_prefetch(&frames_[at + i * kLine]);
}

uint32_t PacketFile::trained_tokens(uint64_t record, uint32_t tokens) const {
  const RecordInfo known = info(record);
  if (tokens >= known.tokens) return known.loss_tokens;
  const auto bytes = stored(record);
  uint32_t trained = 0;
  for (uint32_t t = 1; t < tokens; ++t) trained += is_target(bytes, known, t);  // the first is none
  require_whole();
  return trained;
}

FrameErrors PacketFile::errors() const {
  FrameErrors errors;
  for (size_t src = 0; src < 256; ++src)
    errors.total += errors.by_source[src] = bad_by_source_[src].load(std::memory_order_relaxed);
  return errors;
}

}  // namespace qeng
