// A file that is being received, block by block and in any order. In FOLDER, by the file's hash:
//   HASH.part    its bytes, sparse and as long as the whole from the start: what is there can be used
//   HASH.noted   which blocks are verified and on the disk
// A block is noted only after its bytes were synced, many at a time. So a process that is killed loses the last few
// blocks, and never believes one that is not there. One object at a time has the two files, of all processes.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/blocks/manifest.h"

namespace qeng {

// The blocks that HASH.noted says to be here; none where it is damaged, or is being written.
std::vector<bool> read_notes(int fd, uint64_t blocks);

class PartialFile {
 public:
  // Goes on with what a former process received. verify: also reads its blocks and lets go of those that are not right,
  // which else is done only where HASH.noted is damaged. Error("busy"): another receives it; "io": the disk's.
  PartialFile(const std::string& folder, Manifest manifest, bool verify = false, const BlockWatch& watch = {});
  ~PartialFile();  // notes what is here, if it can
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  // Writes a block; false: it was here already. Error("format"), and nothing is written, where the bytes are not its.
  // Error("io") where the disk is full or fails: what was here before stays.
  bool put(uint64_t index, std::string_view bytes);
  bool has(uint64_t index) const { return index < have_.size() && have_[index]; }
  // The blocks that bytes first .. last lie in and that are not here, in order.
  std::vector<uint64_t> missing(uint64_t first, uint64_t last) const;
  uint64_t here() const { return here_; }  // blocks
  bool complete() const { return here_ == have_.size(); }

  void sync();   // notes all that is here
  void close();  // the same, and lets others go on with it; then only path() is of use
  // Puts the whole file there, on the same file system; then only path() is of use. Error("value") where something is
  // there: what has come stays.
  void finish(const std::string& path);
  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }

 private:
  void open_noted();
  void read_noted(bool verify, const BlockWatch& watch);
  void note();
  void release();
  [[noreturn]] void refuse(const char* what, int reason) const;

  const Manifest manifest_;
  std::string path_, noted_path_;
  int fd_ = -1, noted_fd_ = -1;
  std::vector<bool> have_, noted_;
  uint64_t here_ = 0, unsynced_ = 0;
  double unsynced_since_ = 0;  // the first of them
};

}  // namespace qeng
