// Files and folders that appear whole or not at all. Data goes to a temporary name beside the target; commit() flushes
// it to the disk and renames. A process killed at any moment leaves the old target, or the new one, and perhaps a stray
// NAME.tmp-PID-N, which remove_strays() deletes. An object destroyed without commit() removes what it wrote. Where the
// target is a symbolic link, what it points to is written, and the link stays.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace qeng {

// A file written once, front to back.   Error("io") names the path and the system's reason (disk full, no permission).
// A target that is there and no file (a folder, a device, a pipe) is refused.
class AtomicFile {
 public:
  // mode: of the file, less the process's umask.
  explicit AtomicFile(std::string path, unsigned mode = 0666);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  // Over bytes already written, such as a header whose counts are known at the end. Past position(): Error("value").
  void write_at(uint64_t offset, const void* data, size_t bytes);
  uint64_t position() const { return position_; }  // bytes written so far
  const std::string& path() const { return path_; }

  void sync();    // flush, fsync: what can fail for want of room has not
  void commit();  // sync, rename over the target, fsync the folder. No write may follow.

 private:
  void flush();
  void write_through(const char* data, size_t bytes);
  std::string path_, temporary_;
  int fd_ = -1;
  uint64_t position_ = 0;
  std::unique_ptr<char[]> buffer_;
  size_t buffered_ = 0;
};

void write_file_atomically(const std::string& path, std::string_view content);

// A folder of files that replaces `path` as one. Write into folder(), by any means, then commit().
class AtomicFolder {
 public:
  explicit AtomicFolder(std::string path);
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  const std::string& folder() const { return temporary_; }
  // Makes folder `from`, of the same file system, the new one: instead of writing into folder().
  void take(const std::string& from);
  std::string file(const std::string& name) const { return temporary_ + "/" + name; }

  // Flushes every file and folder to the disk and puts the folder at `path`. An existing folder there is exchanged in
  // one step of the file system and then deleted. Where the file system cannot exchange, the old folder is renamed to
  // PATH.tmp-replaced first, and a kill between the two renames is mended by recover_folder.
  void commit();

 private:
  void hold();
  std::string path_, temporary_;
  int lock_ = -1;  // says to remove_strays() of whatever process that this one is alive
  bool committed_ = false;
};

// Call before reading a folder that AtomicFolder writes: puts PATH.tmp-replaced back where PATH is missing, and
// otherwise does nothing.
void recover_folder(const std::string& path);

// Deletes what killed processes left among the entries of a folder: NAME.tmp-PID-N, file or folder, where this machine
// has no process PID and nobody holds the lock that a writer holds (it may be in another container, or on another
// machine). Where the file system has no locks nothing is deleted. Returns the names; a folder that is not there has
// none.
std::vector<std::string> remove_strays(const std::string& folder);

}  // namespace qeng
