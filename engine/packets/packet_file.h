// A .qubgpu dataset, mapped and read at random: a record is one document. Opening checks the header, the sizes, the
// index and its checksum; reading a record checks its frames. A truncated, foreign or lying file is Error("format").
#pragma once
#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/packets/container.h"
#include "engine/packets/frame.h"

namespace qeng {

class MappedFile;

struct RecordInfo {
  uint32_t tokens = 0, loss_tokens = 0;
  uint16_t frames = 0;
  uint8_t src = 0, dst = 0;
  bool masked = false;  // has a loss mask; otherwise every token is a target
};

// What verify() found. ok(): every block hash and every record agrees.
struct PacketReport {
  uint64_t records = 0, bad_records = 0;
  uint64_t blocks = 0, bad_blocks = 0;
  std::vector<uint64_t> first_bad_records;  // at most 16
  FrameErrors errors;
  bool ok() const { return bad_records == 0 && bad_blocks == 0; }
};

// Reading is const and safe from several threads; the file must not be changed while it is open.
class PacketFile {
 public:
  static std::shared_ptr<const PacketFile> open(const std::string& path);
  ~PacketFile();

  const std::string& path() const { return path_; }
  uint64_t records() const { return header_.records; }
  uint64_t frames() const { return header_.frames; }
  uint64_t tokens() const { return header_.tokens; }
  uint64_t loss_tokens() const { return header_.loss_tokens; }
  const nlohmann::json& meta() const { return meta_; }

  RecordInfo info(uint64_t record) const;  // Error("value") past the end

  // The document into `tokens` and its mask into `mask` (empty: every token is a target). False, with the frame counted
  // under its source in errors(), where a frame is damaged; the vectors then hold nothing of use.
  bool read(uint64_t record, std::vector<int32_t>& tokens, std::vector<uint8_t>& mask) const;

  // The record's frames as stored, unchecked: of use after a read() that was true.
  std::span<const uint8_t> stored(uint64_t record) const;

  FrameErrors errors() const;   // of all reads so far
  PacketReport verify() const;  // reads the whole file; does not count into errors()

 private:
  PacketFile(const std::string& path);
  void check_index() const;
  const IndexEntry& entry(uint64_t record) const;
  bool parse(uint64_t record, std::vector<int32_t>& tokens, std::vector<uint8_t>& mask) const;

  std::string path_;
  std::shared_ptr<const MappedFile> file_;
  ContainerHeader header_;
  std::span<const uint8_t> frames_;
  const IndexEntry* index_ = nullptr;
  nlohmann::json meta_;
  mutable std::array<std::atomic<uint64_t>, 256> bad_by_source_{};
};

}  // namespace qeng
