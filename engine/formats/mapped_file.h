// A private mapping of a whole file: the pages are shared with every process that maps it and are dropped, not swapped,
// when memory is short. Whoever points into the mapping keeps the shared_ptr; the last one to let go unmaps it.
// A tensor may be such memory, and a recipe may write to it: that copies the page for this process alone, and the file
// stays as it is.
//
// A file that somebody truncates while it is mapped (files are replaced, engine/formats/atomic_file.h, never rewritten
// in place; but disks and networks fail too) raises SIGBUS where it is read. What is there to be read cannot be given
// back, so by default the process ends with status 1 and a line that names the file. With OnShrink::zeros the pages
// read as zeros instead, and require_whole() is an Error("io") from then on: for readers that ask after they have
// read. Other SIGBUS go to the handler that was there before.
#pragma once
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace qeng {

enum class OnShrink : uint8_t { exit, zeros };

class MappedFile {
 public:
  // Error("io"): no such file, a folder, no permission; the message names the path and what to check.
  static std::shared_ptr<const MappedFile> open(const std::string& path, OnShrink on_shrink = OnShrink::exit);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }  // page-aligned; nullptr for an empty file
  size_t size() const { return size_; }
  const std::string& path() const { return path_; }
  void require_whole() const;  // of use with OnShrink::zeros
  // Puts memory of this process alone in place of the mapping, at the same addresses and in large pages: a processor
  // that reads through weights loses a third of its bandwidth to the tables of small ones. Before anything is written
  // there. Error("io") if the file cannot be read whole; it is mapped as before then. Spans of `without`, in ascending
  // order, are not read: they are zeros then, and take no memory.
  struct Span {
    size_t begin, end;
  };
  void load(const std::vector<Span>& without = {}) const;
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  struct Watch;  // what the handler of SIGBUS knows of a mapping
  MappedFile(std::string path, const std::byte* data, size_t size, uint64_t device, uint64_t inode)
      : path_(std::move(path)), data_(data), size_(size), device_(device), inode_(inode) {}
  void watch(OnShrink on_shrink);
  static void on_bus_error(int signal, siginfo_t* info, void* context);
  std::string path_;
  const std::byte* data_;
  size_t size_;
  uint64_t device_, inode_;
  Watch* watch_ = nullptr;
};

// load() for each file, without[i] of the i-th. With if_room only where the system has twice their bytes to spare, within
// the limit of its control group; returns whether it was done.
bool load_files(const std::vector<std::shared_ptr<const MappedFile>>& files, bool if_room,
                const std::vector<std::vector<MappedFile::Span>>& without = {});
size_t bytes_without(const MappedFile& file, const std::vector<MappedFile::Span>& without);

}  // namespace qeng
