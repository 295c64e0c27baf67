#include "engine/formats/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "kernels/error.h"

namespace qeng {
namespace {

// The nearest parent that exists tells whether the name or the folder is wrong.
std::string missing_hint(const std::string& path) {
  std::filesystem::path parent = std::filesystem::path(path).parent_path();
  std::error_code ignored;
  if (parent.empty() || std::filesystem::exists(parent, ignored)) return "no such file; check the name";
  return "no such file: the folder " + parent.string() + " does not exist either";
}

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path) {
  Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) {
    if (errno == ENOENT || errno == ENOTDIR) fail("io", path, ": ", missing_hint(path));
    fail("io", path, ": cannot open for reading: ", std::strerror(errno));
  }
  struct stat status {};
  if (::fstat(file.fd, &status) != 0) fail("io", path, ": cannot read its size: ", std::strerror(errno));
  if (S_ISDIR(status.st_mode)) fail("io", path, ": is a folder, expected a file");
  if (!S_ISREG(status.st_mode)) fail("io", path, ": is not a regular file, so it cannot be mapped");
  size_t size = static_cast<size_t>(status.st_size);
  void* memory = nullptr;
  if (size > 0) {
    memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.fd, 0);
    if (memory == MAP_FAILED) fail("io", path, ": cannot map ", size, " bytes: ", std::strerror(errno));
  }
  return std::shared_ptr<const MappedFile>(new MappedFile(path, static_cast<const std::byte*>(memory), size));
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace qeng
