#include "engine/packets/packet_writer.h"

#include <algorithm>
#include <cstdio>

#include "engine/formats/atomic_file.h"
#include "engine/packets/frame_writer.h"
#include "engine/packets/packet_file.h"
#include "engine/packets/payload.h"
#include "kernels/error.h"

namespace qeng {

PacketWriter::PacketWriter(const std::string& path, nlohmann::json meta, CrcVariant variant)
    : path_(path), meta_(std::move(meta)), file_(std::make_unique<AtomicFile>(path)) {
  if (!meta_.is_object())
    fail("value", path, ": the meta data of a packet file is a JSON object, this is ", meta_.type_name());
  header_.flags = variant == CrcVariant::xmodem ? kFlagXmodem : 0;
  const std::string room(kHeaderBytes, '\0');
  file_->write(room.data(), room.size());
}
PacketWriter::~PacketWriter() = default;

void PacketWriter::require_open() const {
  if (!file_) fail("closed", path_, ": this packet writer is finished");
}

void PacketWriter::add(std::span<const int32_t> tokens, std::span<const uint8_t> mask, uint8_t src, uint8_t dst) {
  require_open();
  const size_t before = pending_.size();
  append_record(pending_, tokens, mask, src, dst, header_.variant());

  const auto zeros = mask.empty() ? 0 : std::count(mask.begin() + 1, mask.end(), 0);
  const size_t frames = token_frames(tokens.size()) + (mask.empty() ? 0 : mask_frames(tokens.size()));
  count(before, tokens.size(), tokens.size() - 1 - static_cast<size_t>(zeros), frames, src, dst);
}

void PacketWriter::payload(FrameType type, std::span<const uint8_t> bytes, uint8_t src, uint8_t dst) {
  require_open();
  const size_t before = pending_.size();
  append_payload(pending_, type, bytes, src, dst, header_.variant());
  count(before, 0, 0, payload_frames(type, bytes.size()), src, dst);
}

bool PacketWriter::copy(const PacketFile& file, uint64_t record) {
  require_open();
  const size_t before = pending_.size();
  if (!append_stored(pending_, file, record, header_.variant())) return false;
  const RecordInfo info = file.info(record);
  count(before, info.tokens, info.loss_tokens, info.frames, info.src, info.dst);
  return true;
}

// A record whose frames stand in pending_ from `before` on.
void PacketWriter::count(size_t before, size_t tokens, size_t trained, size_t frames, uint8_t src, uint8_t dst) {
  index_.push_back({header_.frames_bytes, static_cast<uint32_t>(tokens), static_cast<uint32_t>(trained),
                    static_cast<uint16_t>(frames), src, dst, 0});
  header_.records += 1, header_.frames += frames, header_.frames_bytes += pending_.size() - before;
  header_.tokens += tokens, header_.loss_tokens += trained;
  SourceCount& count = by_source_[src];
  count.records += 1, count.tokens += tokens, count.loss_tokens += trained;
  if (pending_.size() >= 4 * kBlockBytes) flush(pending_.size() / kBlockBytes * kBlockBytes);
}

void PacketWriter::flush(size_t bytes) {
  for (size_t at = 0; at < bytes; at += kBlockBytes)
    hashes_.push_back(xxh3(&pending_[at], std::min(kBlockBytes, bytes - at)));
  file_->write(pending_.data(), bytes);
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(bytes));
}

void PacketWriter::finish() {
  require_open();
  flush(pending_.size());
  for (const auto& [src, count] : by_source_) {
    char name[8];
    std::snprintf(name, sizeof name, "0x%02X", unsigned{src});
    meta_["counts"][name] = {{"records", count.records}, {"tokens", count.tokens}, {"loss_tokens", count.loss_tokens}};
  }
  const std::string meta = meta_.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (meta.size() > kMaxMetaBytes)
    fail("value", path_, ": the meta data of ", meta.size(), " bytes is over ", kMaxMetaBytes);

  const uint64_t end = kHeaderBytes + header_.frames_bytes;
  header_.index_offset = (end + 7) / 8 * 8;
  header_.hashes_offset = header_.index_offset + index_.size() * sizeof(IndexEntry);
  header_.meta_offset = header_.hashes_offset + hashes_.size() * 8;
  header_.meta_bytes = meta.size();
  std::string tail;
  tail.append(reinterpret_cast<const char*>(index_.data()), index_.size() * sizeof(IndexEntry));
  tail.append(reinterpret_cast<const char*>(hashes_.data()), hashes_.size() * 8);
  tail += meta;
  header_.tail_hash = xxh3(tail.data(), tail.size());

  const std::string gap(header_.index_offset - end, '\0'), head = header_bytes(header_);
  file_->write(gap.data(), gap.size());
  file_->write(tail.data(), tail.size());
  file_->write_at(0, head.data(), head.size());
  file_->commit();
  file_.reset();
}

void PacketWriter::abandon() {
  require_open();
  file_.reset();
}

}  // namespace qeng
