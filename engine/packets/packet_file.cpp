#include "engine/packets/packet_file.h"

#include <algorithm>

#include "engine/formats/mapped_file.h"
#include "kernels/error.h"

namespace qeng {

std::shared_ptr<const PacketFile> PacketFile::open(const std::string& path) {
  return std::shared_ptr<const PacketFile>(new PacketFile(path));
}
PacketFile::~PacketFile() = default;

PacketFile::PacketFile(const std::string& path) : path_(path), file_(MappedFile::open(path)) {
  const auto* data = reinterpret_cast<const uint8_t*>(file_->data());
  header_ = parse_header({data, file_->size()}, path);
  frames_ = {data + header_.frames_offset, header_.frames_bytes};
  index_ =
      reinterpret_cast<const IndexEntry*>(data + header_.index_offset);  // a multiple of 8 in a page-aligned mapping
  check_index();
  const char* text = reinterpret_cast<const char*>(data + header_.meta_offset);
  meta_ = nlohmann::json::parse(text, text + header_.meta_bytes, nullptr, false);
  if (!meta_.is_object())
    fail("format", path, ": the meta data is not a JSON object: the file is damaged, convert it again");
}

// Records lie back to back and each is exactly as long as its token count says, so no read leaves the frames.
void PacketFile::check_index() const {
  uint64_t offset = 0, frames = 0, tokens = 0, loss_tokens = 0;
  for (uint64_t i = 0; i < header_.records; ++i) {
    const IndexEntry& e = index_[i];
    const size_t plain = token_frames(e.tokens), masked = plain + mask_frames(e.tokens);
    const bool frames_fit = e.tokens > 0 && (e.frames == plain || e.frames == masked);
    const uint64_t bytes = record_bytes(e.tokens, e.frames == masked);
    if (!frames_fit || e.offset != offset || bytes > header_.frames_bytes - offset || e.loss_tokens >= e.tokens ||
        e.zero != 0)
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

RecordInfo PacketFile::info(uint64_t record) const {
  const IndexEntry& e = entry(record);
  return {e.tokens, e.loss_tokens, e.frames, e.src, e.dst, e.frames > token_frames(e.tokens)};
}

// The index says what each frame must be; a frame that is whole but something else counts as damaged too.
bool PacketFile::parse(uint64_t record, std::vector<int32_t>& tokens, std::vector<uint8_t>& mask) const {
  const IndexEntry& e = entry(record);
  tokens.clear(), mask.clear();
  uint64_t at = e.offset;
  for (size_t frames = token_frames(e.tokens), i = 0; i < e.frames; ++i) {
    Frame frame;
    if (!parse_frame(frames_.subspan(at), header_.variant(), frame) || frame.src != e.src || frame.dst != e.dst)
      return false;
    if (i < frames) {
      const size_t expected = std::min<size_t>(kFrameTokens, e.tokens - tokens.size());
      if (frame.type != FrameType::token_ids || frame.payload.size() != expected * 4) return false;
      append_tokens(tokens, frame.payload);
    } else {
      const size_t expected = std::min(kMaxPayload, mask_bytes(e.tokens - mask.size()));
      if (frame.type != FrameType::loss_mask || frame.payload.size() != expected) return false;
      append_mask(mask, frame.payload, e.tokens);
    }
    at += frame.bytes();
  }
  const auto trained = static_cast<size_t>(mask.empty() ? e.tokens - 1 : std::count(mask.begin() + 1, mask.end(), 1));
  return trained == e.loss_tokens;
}

bool PacketFile::read(uint64_t record, std::vector<int32_t>& tokens, std::vector<uint8_t>& mask) const {
  if (parse(record, tokens, mask)) return true;
  bad_by_source_[index_[record].src].fetch_add(1, std::memory_order_relaxed);
  return false;
}

std::span<const uint8_t> PacketFile::stored(uint64_t record) const {
  const IndexEntry& e = entry(record);
  return frames_.subspan(e.offset, record_bytes(e.tokens, info(record).masked));
}

FrameErrors PacketFile::errors() const {
  FrameErrors errors;
  for (size_t src = 0; src < 256; ++src)
    errors.total += errors.by_source[src] = bad_by_source_[src].load(std::memory_order_relaxed);
  return errors;
}

PacketReport PacketFile::verify() const {
  PacketReport report;
  report.records = header_.records, report.blocks = header_.blocks();
  const auto* hashes =
      reinterpret_cast<const uint64_t*>(frames_.data() - header_.frames_offset + header_.hashes_offset);
  for (uint64_t block = 0; block < report.blocks; ++block) {
    const uint64_t at = block * kBlockBytes;
    if (xxh3(frames_.data() + at, std::min(kBlockBytes, frames_.size() - at)) != hashes[block]) ++report.bad_blocks;
  }
  std::vector<int32_t> tokens;
  std::vector<uint8_t> mask;
  for (uint64_t record = 0; record < report.records; ++record) {
    if (parse(record, tokens, mask)) continue;
    ++report.bad_records;
    report.errors.count(index_[record].src);
    if (report.first_bad_records.size() < 16) report.first_bad_records.push_back(record);
  }
  return report;
}

}  // namespace qeng
