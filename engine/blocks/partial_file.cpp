#include "engine/blocks/partial_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "kernels/clock.h"
#include "kernels/error.h"

namespace qeng {
namespace {

namespace fs = std::filesystem;

// HASH.noted: kMagic, the SHA-256 of the bits, a bit for each block, lowest first.
constexpr std::string_view kMagic = "qpart 1\n";
// Blocks a sync, or what comes in so many seconds: a kill loses no more.
constexpr uint64_t kGroup = 64;
constexpr double kLongest = 2;

bool write_at(int fd, uint64_t offset, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    offset += static_cast<uint64_t>(n), bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

// False with EEXIST where something has that name. A file system that cannot rename so (NFS) replaces what appears
// between the two calls.
bool rename_to_new(const std::string& from, const std::string& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return true;
  if (errno != EINVAL && errno != ENOSYS) return false;
  struct stat info {};
  if (::lstat(to.c_str(), &info) == 0) errno = EEXIST;
  return errno != EEXIST && ::rename(from.c_str(), to.c_str()) == 0;
}

}  // namespace

PartialFile::PartialFile(const std::string& folder, Manifest manifest, bool verify, const BlockWatch& watch)
    : manifest_(std::move(manifest)),
      path_(folder + "/" + manifest_.hash + ".part"),
      noted_path_(folder + "/" + manifest_.hash + ".noted"),
      have_(manifest_.blocks.size()) {
  try {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) fail("io", folder, ": cannot be created: ", error.message());
    open_noted();
    fd_ = ::open(path_.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    struct stat info {};
    if (fd_ >= 0 &&
        (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode) || static_cast<uint64_t>(info.st_size) != manifest_.size)) {
      ::close(fd_);
      fd_ = -1;
    }
    if (fd_ < 0) {  // nothing may be noted of a file that is not there
      if (::ftruncate(noted_fd_, 0) != 0 || ::fsync(noted_fd_) != 0) refuse("its notes cannot be emptied", errno);
      fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
      if (fd_ < 0) refuse("cannot be created", errno);
      if (::ftruncate(fd_, static_cast<off_t>(manifest_.size)) != 0) refuse("cannot be made as long as it is", errno);
    }
    read_noted(verify, watch);
  } catch (...) {
    release();
    throw;
  }
}

PartialFile::~PartialFile() {
  try {
    sync();
  } catch (const Error&) {  // those blocks come again
  }
  release();
}

void PartialFile::close() {
  sync();
  release();
}

void PartialFile::release() {
  for (int* fd : {&fd_, &noted_fd_}) {
    if (*fd >= 0) ::close(*fd);
    *fd = -1;
  }
}

void PartialFile::refuse(const char* what, int reason) const {
  if (reason == ENOSPC || reason == EDQUOT)
    fail("io", path_, ": ", what,
         ": the disk is full; what has come is kept, and it goes on from there when there is room");
  fail("io", path_, ": ", what, ": ", std::strerror(reason));
}

// The lock is on the notes. Whoever finished the file has deleted them, perhaps between our two calls.
void PartialFile::open_noted() {
  for (;;) {
    noted_fd_ = ::open(noted_path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (noted_fd_ < 0) fail("io", noted_path_, ": cannot be created: ", std::strerror(errno));
    if (::flock(noted_fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
      fail("busy", path_, ": another process is receiving it; wait until it has ended");
    struct stat info {};
    if (::fstat(noted_fd_, &info) == 0 && info.st_nlink > 0) return;
    ::close(noted_fd_);
  }
}

std::vector<bool> read_notes(int fd, uint64_t blocks) {
  std::string head(kMagic.size() + sizeof(Sha256), '\0'), bits((blocks + 7) / 8, '\0');
  if (!read_at(fd, 0, head.data(), head.size()) || !read_at(fd, head.size(), bits.data(), bits.size()) ||
      !head.starts_with(kMagic) || std::memcmp(head.data() + kMagic.size(), sha256(bits).data(), sizeof(Sha256)) != 0)
    return {};
  std::vector<bool> noted(blocks);
  for (uint64_t i = 0; i < blocks; ++i) noted[i] = bits[i / 8] >> (i % 8) & 1;
  return noted;
}

void PartialFile::read_noted(bool verify, const BlockWatch& watch) {
  struct stat info {};
  if (::fstat(noted_fd_, &info) != 0) refuse("its notes cannot be read", errno);
  const std::vector<bool> noted = read_notes(noted_fd_, have_.size());
  if (info.st_size > 0 && (verify || noted.empty())) {
    const std::vector<Sha256> found = hash_blocks(fd_, path_, manifest_.size, watch);
    for (uint64_t i = 0; i < have_.size(); ++i)
      have_[i] = (noted.empty() || noted[i]) && found[i] == manifest_.blocks[i];
    ++unsynced_;
  } else if (!noted.empty()) {
    have_ = noted;
  }
  here_ = static_cast<uint64_t>(std::count(have_.begin(), have_.end(), true));
  noted_ = have_;
  if (info.st_size == 0) note();  // takes their room while there is some: on a full disk they are written over
  sync();
}

bool PartialFile::put(uint64_t index, std::string_view bytes) {
  if (fd_ < 0) fail("closed", path_, ": put after finish or close");
  if (index >= have_.size()) fail("format", path_, ": block ", index, " of ", have_.size());
  if (bytes.size() != manifest_.bytes(index))
    fail("format", path_, ": block ", index, " has ", bytes.size(), " bytes, expected ", manifest_.bytes(index));
  if (have_[index]) return false;
  if (sha256(bytes) != manifest_.blocks[index])
    fail("format", path_, ": block ", index, " is not what the manifest says: damaged, or of another file");
  const uint64_t at = index * kFileBlock;
  if (!write_at(fd_, at, bytes)) refuse("cannot be written", errno);
  // Begins to write it to the disk, so that the sync of the group has little left to wait for.
  static_cast<void>(
      ::sync_file_range(fd_, static_cast<off_t>(at), static_cast<off_t>(bytes.size()), SYNC_FILE_RANGE_WRITE));
  have_[index] = true;
  ++here_;
  if (unsynced_++ == 0) unsynced_since_ = seconds_now();
  if (unsynced_ >= kGroup || seconds_now() - unsynced_since_ >= kLongest) sync();
  return true;
}

std::vector<uint64_t> PartialFile::missing(uint64_t first, uint64_t last) const {
  std::vector<uint64_t> list;
  if (first > last) return list;
  for (uint64_t i = first / kFileBlock; i < have_.size() && i <= last / kFileBlock; ++i)
    if (!have_[i]) list.push_back(i);
  return list;
}

void PartialFile::sync() {
  if (fd_ < 0 || unsynced_ == 0) return;
  if (::fdatasync(fd_) != 0) {
    const int reason = errno;  // nobody knows which of the blocks since the last sync are on the disk
    have_ = noted_;
    here_ = static_cast<uint64_t>(std::count(have_.begin(), have_.end(), true));
    unsynced_ = 0;
    refuse("cannot be flushed to the disk", reason);
  }
  note();
  unsynced_ = 0;
}

void PartialFile::note() {
  std::string bits((have_.size() + 7) / 8, '\0');
  for (uint64_t i = 0; i < have_.size(); ++i)
    if (have_[i]) bits[i / 8] = static_cast<char>(bits[i / 8] | 1 << (i % 8));
  const Sha256 sum = sha256(bits);
  if (!write_at(noted_fd_, 0, std::string(kMagic) + std::string(sum.begin(), sum.end()) + bits))
    refuse("its notes cannot be written", errno);
  noted_ = have_;
}

void PartialFile::finish(const std::string& path) {
  if (fd_ < 0) fail("closed", path_, ": finish after finish or close");
  if (!complete())
    fail("value", path_, ": ", have_.size() - here_, " of its ", have_.size(), " blocks are missing still");
  if (::fsync(fd_) != 0) refuse("cannot be flushed to the disk", errno);
  if (!rename_to_new(path_, path)) {
    if (errno == EEXIST)
      fail("value", path, ": is there by now, and nothing is replaced: move it away; what has come is kept");
    fail("io", path_, ": cannot be moved to ", path, ": ", std::strerror(errno));
  }
  ::unlink(noted_path_.c_str());
  release();
  path_ = path;
  const std::string parent = fs::path(path).parent_path().string();
  const int folder = ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) ::fsync(folder), ::close(folder);  // some network file systems cannot
}

}  // namespace qeng
