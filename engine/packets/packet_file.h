// A .qubgpu dataset, mapped and read at random: a record is one document, or a payload (engine/packets/payload.h).
// Opening checks the header, the sizes, the index and its checksum; reading a record checks its frames. A truncated,
// foreign or lying file is Error("format"), one that shrinks while it is open Error("io").
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/packets/container.h"
#include "engine/packets/frame.h"
#include "engine/packets/piece.h"

namespace qeng {

class MappedFile;

// What verify() found. ok(): every block hash and every record agrees.
struct PacketReport {
  struct Damage {
    uint64_t record;
    uint64_t offset;  // in the file, of the first frame that is wrong
    uint8_t src;
  };
  uint64_t records = 0, bad_records = 0;
  uint64_t blocks = 0, bad_blocks = 0;
  std::vector<Damage> damage;         // the first kNamed bad records
  std::vector<uint64_t> bad_offsets;  // in the file, of the first kNamed bad blocks of 1 MiB
  FrameErrors errors;
  bool ok() const { return bad_records == 0 && bad_blocks == 0; }
  static constexpr size_t kNamed = 1000;  // a list that a person may still read
};

// Reading is const and safe from several threads; the file must not be changed while it is open.
class PacketFile {
 public:
  // arrival: of a file that is still coming; then whatever reads a record waits until it is here.
  static std::shared_ptr<const PacketFile> open(const std::string& path, std::shared_ptr<Arrival> arrival = nullptr);
  ~PacketFile();

  const std::string& path() const { return path_; }
  uint64_t records() const { return header_.records; }
  uint64_t payloads() const { return payloads_; }  // records that are no documents
  uint64_t frames() const { return header_.frames; }
  uint64_t tokens() const { return header_.tokens; }
  uint64_t loss_tokens() const { return header_.loss_tokens; }
  CrcVariant variant() const { return header_.variant(); }
  const nlohmann::json& meta() const { return meta_; }

  RecordInfo info(uint64_t record) const;  // Error("value") past the end

  // token_ids, or the type of a payload as its first frame shows it, unchecked; none where that is no type.
  std::optional<FrameType> type(uint64_t record) const;

  // The document into `tokens` and its mask into `mask` (empty: every token is a target). False, with the frame counted
  // under its source in errors(), where a frame is damaged; the vectors then hold nothing of use. A payload:
  // Error("value").
  bool read(uint64_t record, std::vector<int32_t>& tokens, std::vector<uint8_t>& mask) const;

  // The same for a payload: its type and its bytes as unpack_values() takes them. A document: Error("value").
  bool read_payload(uint64_t record, FrameType& type, std::vector<uint8_t>& bytes) const;

  // Whether every frame of the record is whole and what the index says, damage counted as by read(). stored() is then
  // safe to decode (piece.h); require_whole() afterwards says that the file was there all the time.
  bool check(uint64_t record) const;
  std::span<const uint8_t> stored(uint64_t record) const;  // the record's frames, unchecked
  uint64_t bytes(uint64_t record) const;                   // of its frames
  void prefetch(uint64_t record) const;                    // its first lines, for a check() soon
  // It will be read, after those that were expected before, or next: of use where the file is still coming.
  void expect(uint64_t record, bool next = false) const;
  // Targets among the first `tokens` tokens of a document, by its mask as it is stored, unchecked.
  uint32_t trained_tokens(uint64_t record, uint32_t tokens) const;
  void require_whole() const;  // Error("io") where the file has shrunk

  FrameErrors errors() const;  // of all reads so far
  // Reads `count` blocks from block `first` on, by default the whole file, on all cores; does not count into errors().
  // A record belongs to the block that it begins in. progress, if any, is called on this thread now and then with the
  // bytes done so far.
  PacketReport verify(const std::function<void(uint64_t)>& progress = {}, uint64_t first = 0,
                      uint64_t count = UINT64_MAX) const;
  uint64_t frames_bytes() const { return header_.frames_bytes; }

 private:
  PacketFile(const std::string& path, std::shared_ptr<Arrival> arrival);
  void await(uint64_t record) const;
  void check_index();
  const IndexEntry& entry(uint64_t record) const;
  uint64_t end(uint64_t record) const;  // of its frames; inside them whatever became of the file
  uint64_t damaged_at(uint64_t record) const;
  uint64_t damaged_document(const IndexEntry& e) const;
  uint64_t damaged_payload(uint64_t record) const;
  void verify_block(uint64_t block, PacketReport& report) const;

  std::string path_;
  std::shared_ptr<const MappedFile> file_;
  std::shared_ptr<Arrival> arrival_;
  ContainerHeader header_;
  std::span<const uint8_t> frames_;
  const IndexEntry* index_ = nullptr;
  const uint64_t* hashes_ = nullptr;
  uint64_t payloads_ = 0;
  nlohmann::json meta_;
  mutable std::array<std::atomic<uint64_t>, 256> bad_by_source_{};
};

}  // namespace qeng
