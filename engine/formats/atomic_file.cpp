#include "engine/formats/atomic_file.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "kernels/error.h"

namespace qeng {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBufferBytes = 1 << 20;  // large enough that a checkpoint is written at the disk's speed

constexpr std::string_view kTemporary = ".tmp-";
constexpr const char* kReplaced = ".tmp-replaced";  // no name that somebody gives a folder of his own

std::string temporary_name(const std::string& path) {
  static std::atomic<unsigned> counter{0};
  return path + std::string(kTemporary) + std::to_string(::getpid()) + "-" + std::to_string(counter++);
}

// The PID of NAME.tmp-PID-N; 0 for another name.
pid_t pid_of(const std::string& name) {
  const size_t at = name.rfind(kTemporary);
  if (at == std::string::npos || at == 0) return 0;
  const char *from = name.data() + at + kTemporary.size(), *end = name.data() + name.size();
  pid_t pid = 0;
  unsigned number = 0;
  const auto [dash, why] = std::from_chars(from, end, pid);
  if (why != std::errc() || dash == end || *dash != '-') return 0;
  const auto [last, wrong] = std::from_chars(dash + 1, end, number);
  return wrong == std::errc() && last == end && pid > 0 ? pid : 0;
}

bool lock_is_free(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return false;
  const bool locked = ::flock(fd, LOCK_EX | LOCK_NB) == 0;
  ::close(fd);
  return locked;
}

// "out/ckpt/" and "out/ckpt" are the same folder; the temporary must lie beside it, not inside.
std::string without_trailing_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

std::string parent_of(const std::string& path) {
  std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

// Where a chain of symbolic links ends, whether something is there or not: what is renamed to a link replaces the link.
std::string without_links(std::string path) {
  constexpr int kMost = 40;  // as the kernel follows
  for (int links = 0; fs::is_symlink(path); ++links) {
    if (links == kMost) fail("io", path, ": is one of over ", kMost, " symbolic links in a row");
    path = (fs::path(path).parent_path() / fs::read_symlink(path)).string();
  }
  return path;
}

void sync_path(const std::string& path, int flags) {
  int fd = ::open(path.c_str(), flags | O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail("io", path, ": cannot open to flush it to the disk: ", std::strerror(errno));
  int result = ::fsync(fd);
  int reason = errno;
  ::close(fd);
  // Some network file systems cannot sync a folder; the files in it are synced one by one all the same.
  if (result != 0 && !(flags & O_DIRECTORY && (reason == EINVAL || reason == ENOTSUP)))
    fail("io", path, ": cannot flush to the disk: ", std::strerror(reason));
}

void rename_or_fail(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    fail("io", "cannot rename ", from, " to ", to, ": ", std::strerror(errno));
}

void sync_tree(const std::string& folder) {
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_symlink()) continue;
    if (entry.is_directory()) sync_path(entry.path().string(), O_DIRECTORY);
    if (entry.is_regular_file()) sync_path(entry.path().string(), 0);
  }
  sync_path(folder, O_DIRECTORY);
}

}  // namespace

AtomicFile::AtomicFile(std::string path, unsigned mode)
    : path_(without_links(std::move(path))), temporary_(temporary_name(path_)), buffer_(new char[kBufferBytes]) {
  if (fs::is_directory(path_)) fail("io", path_, ": is a folder, cannot be written as a file");
  if (fs::exists(path_) && !fs::is_regular_file(path_))
    fail("io", path_, ": is a device, pipe or socket, which a file would replace; give the name of a file");
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (fd_ < 0) {
    if (errno == ENOENT) fail("io", path_, ": cannot create: the folder ", parent_of(path_), " does not exist");
    fail("io", path_, ": cannot create: ", std::strerror(errno));
  }
  ::flock(fd_, LOCK_EX | LOCK_NB);  // no writer depends on it; see remove_strays()
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::write(const void* data, size_t bytes) {
  if (fd_ < 0) fail("closed", path_, ": write after commit");
  position_ += bytes;
  if (buffered_ + bytes > kBufferBytes) flush();
  if (bytes > kBufferBytes) return write_through(static_cast<const char*>(data), bytes);
  if (bytes) std::memcpy(buffer_.get() + buffered_, data, bytes);
  buffered_ += bytes;
}

void AtomicFile::write_at(uint64_t offset, const void* data, size_t bytes) {
  if (fd_ < 0) fail("closed", path_, ": write after commit");
  if (offset > position_ || bytes > position_ - offset)
    fail("value", path_, ": write_at past the ", position_, " bytes written");
  flush();
  for (const char* p = static_cast<const char*>(data); bytes > 0;) {
    const ssize_t n = ::pwrite(fd_, p, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("io", path_, ": cannot write: ", std::strerror(errno));
    p += n, offset += static_cast<uint64_t>(n), bytes -= static_cast<size_t>(n);
  }
}

void AtomicFile::flush() {
  write_through(buffer_.get(), buffered_);
  buffered_ = 0;
}

void AtomicFile::write_through(const char* data, size_t bytes) {
  while (bytes > 0) {
    ssize_t written = ::write(fd_, data, bytes);
    if (written < 0) {
      if (errno == EINTR) continue;
      const int reason = errno;
      // Data of a mapped file that has shrunk: reading it ends the process with that file's name (mapped_file.h).
      if (reason == EFAULT) static_cast<void>(*static_cast<const volatile char*>(data));
      fail("io", path_, ": cannot write: ", std::strerror(reason));
    }
    data += written;
    bytes -= static_cast<size_t>(written);
  }
}

void AtomicFile::sync() {
  if (fd_ < 0) fail("closed", path_, ": committed twice");
  flush();
  if (::fsync(fd_) != 0) fail("io", path_, ": cannot flush to the disk: ", std::strerror(errno));
}

void AtomicFile::commit() {
  sync();
  rename_or_fail(temporary_, path_);
  ::close(fd_);
  fd_ = -1;
  sync_path(parent_of(path_), O_DIRECTORY);
}

void write_file_atomically(const std::string& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

AtomicFolder::AtomicFolder(std::string path)
    : path_(without_links(without_trailing_slash(std::move(path)))), temporary_(temporary_name(path_)) {
  recover_folder(path_);
  if (fs::exists(path_) && !fs::is_directory(path_)) fail("io", path_, ": exists and is not a folder");
  std::error_code reason;
  fs::create_directories(parent_of(path_), reason);
  if (!reason) fs::create_directory(temporary_, reason);
  if (reason) fail("io", temporary_, ": cannot create the folder: ", reason.message());
  hold();
}

void AtomicFolder::hold() {
  if (lock_ >= 0) ::close(lock_);
  lock_ = ::open(temporary_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock_ >= 0) ::flock(lock_, LOCK_EX | LOCK_NB);
}

void AtomicFolder::take(const std::string& from) {
  if (committed_) fail("closed", path_, ": take after commit");
  if (::rename(from.c_str(), temporary_.c_str()) != 0)  // over an empty folder
    fail("io", from, ": cannot be moved to ", temporary_, ": ", std::strerror(errno));
  hold();
}

AtomicFolder::~AtomicFolder() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(temporary_, ignored);
  if (lock_ >= 0) ::close(lock_);
}

void AtomicFolder::commit() {
  if (committed_) fail("closed", path_, ": committed twice");
  sync_tree(temporary_);
  std::string old;
  if (!fs::exists(path_)) {
    rename_or_fail(temporary_, path_);
  } else if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) == 0) {
    old = temporary_;
  } else {
    old = path_ + kReplaced;
    fs::remove_all(old);
    rename_or_fail(path_, old);
    rename_or_fail(temporary_, path_);
  }
  committed_ = true;
  sync_path(parent_of(path_), O_DIRECTORY);
  std::error_code ignored;  // the new folder is in place: what is left of the old one does no harm
  if (!old.empty()) fs::remove_all(old, ignored);
}

void recover_folder(const std::string& path) {
  std::string target = without_links(without_trailing_slash(path)), old = target + kReplaced;
  if (fs::exists(target) || !fs::is_directory(old)) return;
  rename_or_fail(old, target);
  sync_path(parent_of(target), O_DIRECTORY);
}

std::vector<std::string> remove_strays(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    const pid_t pid = pid_of(name);
    const bool gone = pid > 0 && ::kill(pid, 0) != 0 && errno == ESRCH;
    if (gone && lock_is_free(entry.path().string())) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    std::error_code reason;
    fs::remove_all(folder + "/" + name, reason);
    if (reason)
      fail("io", folder, "/", name, ": a killed process left it, and it cannot be deleted: ", reason.message());
  }
  return names;
}

}  // namespace qeng
