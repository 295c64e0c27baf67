// Writes bare frames: a .ndp file, which appears whole or not at all, or standard output, which gets records as they
// come. No index, no hashes: for pipes and sockets, and for files that grow by appending.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "engine/packets/frame.h"

namespace qeng {

class AtomicFile;
class PacketFile;

class FrameWriter {
 public:
  explicit FrameWriter(const std::string& path, CrcVariant variant = CrcVariant::ccitt_false);  // "-": standard output
  ~FrameWriter();
  void add(std::span<const int32_t> tokens, std::span<const uint8_t> mask, uint8_t src, uint8_t dst);
  void payload(FrameType type, std::span<const uint8_t> bytes, uint8_t src, uint8_t dst);
  bool copy(const PacketFile& file, uint64_t record);  // as PacketWriter::copy
  void finish();
  void abandon();

 private:
  void require_open() const;
  void flush();
  std::string path_;
  CrcVariant variant_;
  bool open_ = true;
  std::unique_ptr<AtomicFile> file_;  // none: standard output
  std::vector<uint8_t> pending_;
};

// Appends the record's frames to `out`, with the CRC of `variant`, after checking them. False, counted in
// file.errors(), where it is damaged: nothing is then appended.
bool append_stored(std::vector<uint8_t>& out, const PacketFile& file, uint64_t record, CrcVariant variant);

}  // namespace qeng
