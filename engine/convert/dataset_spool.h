// A .qubgpu dataset in the making that survives a kill. Frames go to PATH.partial and index entries to
// PATH.partial.index; checkpoint() brings both to the disk and says how far they are, and a spool made from that goes
// on there with the same result, bit for bit. finish() adds index, block hashes and meta data and renames PATH.partial
// to PATH. Memory does not grow with the dataset, but for 8 bytes a MiB of frames and, with duplicates looked for, 11
// to 21 bytes a record.
#pragma once
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "engine/convert/hash_set.h"
#include "engine/convert/running_hash.h"
#include "engine/packets/container.h"

namespace qeng {

// One record's frames, made by any thread; its place in the file is the spool's business.
struct SpooledRecord {
  uint32_t bytes = 0;  // of its frames
  uint32_t tokens = 0, loss_tokens = 0;
  uint16_t frames = 0;
  uint8_t src = 0, dst = 0;
  uint64_t hash = 0;  // equal for equal tokens and masks
};

class DatasetSpool {
 public:
  // Opens the files as they are. Error("io") if another process works on PATH.
  DatasetSpool(const std::string& path, bool dedupe);
  // One of these comes first. begin: over whatever is left of an earlier try; its journal has to be gone by then, or a
  // kill would leave the journal of one try beside the files of another. go_on: from where checkpoint() returned
  // `state`; Error("format") if the files are not what it says.
  void begin();
  void go_on(const nlohmann::json& state);
  ~DatasetSpool();  // closes the files, and leaves them
  DatasetSpool(const DatasetSpool&) = delete;

  // Appends the records whose frames are laid end to end in `frames`. Returns how many were left out as duplicates.
  size_t add(std::span<const uint8_t> frames, std::span<const SpooledRecord> records);

  nlohmann::json checkpoint();
  void finish(nlohmann::json meta);  // meta gets "counts" by source
  void remove();                     // what was written so far

  uint64_t records() const { return header_.records; }
  uint64_t tokens() const { return header_.tokens; }
  uint64_t loss_tokens() const { return header_.loss_tokens; }

  static bool exists(const std::string& path);  // is there a PATH.partial?
  static void remove(const std::string& path);  // PATH.partial and PATH.partial.index

 private:
  struct File;
  struct SourceCount {
    uint64_t records = 0, tokens = 0, loss_tokens = 0;
  };
  void write_frames(const uint8_t* data, size_t bytes);
  void hash_frames(const uint8_t* data, size_t bytes);

  std::string path_;
  bool dedupe_;
  std::unique_ptr<File> frames_, index_;
  ContainerHeader header_;
  std::vector<uint64_t> hashes_;  // of whole blocks
  RunningHash block_;             // of the block being filled
  RunningHash entries_;           // of all index entries so far
  size_t block_bytes_ = 0;
  std::map<uint8_t, SourceCount> by_source_;
  HashSet seen_;
};

}  // namespace qeng
