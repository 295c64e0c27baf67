// Writes a .qubgpu dataset, one document after another. Frames go to a temporary file as they come (memory: 24 bytes a
// document); finish() adds index, block hashes and meta data and renames it, so that a reader sees a whole file or
// none. Dropped without finish(), the writer leaves nothing behind.
#pragma once
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/packets/container.h"

namespace qeng {

class AtomicFile;
class PacketFile;

class PacketWriter {
 public:
  // meta: an object, kept as it is: tokenizer name and hash, template hash, vocabulary size, sources. finish() adds
  // "counts".
  explicit PacketWriter(const std::string& path, nlohmann::json meta = nlohmann::json::object(),
                        CrcVariant variant = CrcVariant::ccitt_false);
  ~PacketWriter();

  // mask: one byte a token, nonzero where that token is a target; empty: every token is. Error("value") as
  // append_record.
  void add(std::span<const int32_t> tokens, std::span<const uint8_t> mask = {},
           uint8_t src = packet_source::text_corpus, uint8_t dst = packet_destination::all);
  // A record that holds no tokens (engine/packets/payload.h). Error("value") as append_payload.
  void payload(FrameType type, std::span<const uint8_t> bytes, uint8_t src = packet_source::text_corpus,
               uint8_t dst = packet_destination::all);
  // A record of another file: its frames as stored, checked first, with new sums where the CRC variant differs. False,
  // counted in file.errors(), where it is damaged: nothing is then added.
  bool copy(const PacketFile& file, uint64_t record);
  void finish();   // afterwards the writer is closed
  void abandon();  // removes the temporary file

  uint64_t records() const { return header_.records; }
  uint64_t tokens() const { return header_.tokens; }
  uint64_t loss_tokens() const { return header_.loss_tokens; }

 private:
  struct SourceCount {
    uint64_t records = 0, tokens = 0, loss_tokens = 0;
  };
  void count(size_t before, size_t tokens, size_t trained, size_t frames, uint8_t src, uint8_t dst);
  void flush(size_t bytes);  // writes the first `bytes` of pending_
  void require_open() const;

  std::string path_;
  nlohmann::json meta_;
  std::unique_ptr<AtomicFile> file_;
  ContainerHeader header_;
  std::vector<uint8_t> pending_;  // frames not yet written; begins at a block's boundary
  std::vector<IndexEntry> index_;
  std::vector<uint64_t> hashes_;
  std::map<uint8_t, SourceCount> by_source_;
};

}  // namespace qeng
