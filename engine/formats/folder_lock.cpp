#include "engine/formats/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include "kernels/error.h"

namespace qeng {
namespace {

// The lock files that this process holds, by device and inode: a second flock of its own would be refused too. Their
// descriptors stay open.
std::set<std::pair<dev_t, ino_t>> held;
std::mutex held_mutex;

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

std::string lock_path(const std::string& folder) { return folder + "/.lock"; }

std::pair<dev_t, ino_t> identity(int fd) {
  struct stat status {};
  ::fstat(fd, &status);
  return {status.st_dev, status.st_ino};
}

std::string who(int fd) {
  char text[256];
  const ssize_t size = ::pread(fd, text, sizeof(text), 0);
  const std::string line(text, size > 0 ? static_cast<size_t>(size) : 0);
  return line.empty() ? "another process" : line.substr(0, line.find('\n'));
}

}  // namespace

std::string folder_holder(const std::string& folder) {
  const std::lock_guard guard(held_mutex);
  const Descriptor file{::open(lock_path(folder).c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0 || held.count(identity(file.fd))) return "";
  return ::flock(file.fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK ? who(file.fd) : "";
}

bool hold_folder(const std::string& folder) {
  const std::lock_guard guard(held_mutex);
  const std::string path = lock_path(folder);
  Descriptor file{::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)};
  if (file.fd < 0) fail("io", path, ": cannot create: ", std::strerror(errno));
  if (held.count(identity(file.fd))) return true;
  if (::flock(file.fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) fail("busy", folder, " is in use by ", who(file.fd), ": wait until it has ended");
    return false;
  }
  char host[256] = "";
  ::gethostname(host, sizeof(host) - 1);
  const std::string text = "process " + std::to_string(::getpid()) + " on " + host + "\n";
  if (::ftruncate(file.fd, 0) != 0 || ::pwrite(file.fd, text.data(), text.size(), 0) < 0)
    fail("io", path, ": cannot write: ", std::strerror(errno));
  held.insert(identity(file.fd));
  file.fd = -1;  // stays open
  return true;
}

}  // namespace qeng
