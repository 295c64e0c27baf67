// A private mapping of a whole file: the pages are shared with every process that maps it and are dropped, not swapped,
// when memory is short. Whoever points into the mapping keeps the shared_ptr; the last one to let go unmaps it.
// A tensor may be such memory, and a recipe may write to it: that copies the page for this process alone, and the file stays
// as it is. A file that somebody truncates while it is mapped raises SIGBUS on access, as with any mapping: files are
// replaced (engine/formats/atomic_file.h), never rewritten in place.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace qeng {

class MappedFile {
 public:
  // Error("io"): no such file, a folder, no permission; the message names the path and what to check.
  static std::shared_ptr<const MappedFile> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }  // page-aligned; nullptr for an empty file
  size_t size() const { return size_; }
  const std::string& path() const { return path_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  MappedFile(std::string path, const std::byte* data, size_t size) : path_(std::move(path)), data_(data), size_(size) {}
  std::string path_;
  const std::byte* data_;
  size_t size_;
};

}  // namespace qeng
