#include "engine/packets/byte_source.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kernels/error.h"

namespace qeng {
namespace {

class Descriptor : public ByteSource {
 public:
  Descriptor(std::string name, int fd, bool owned) : name_(std::move(name)), fd_(fd), owned_(owned) {}
  ~Descriptor() override {
    if (owned_) ::close(fd_);
  }
  size_t read(uint8_t* into, size_t bytes) override {
    while (true) {
      const ssize_t got = ::read(fd_, into, bytes);
      if (got >= 0) return static_cast<size_t>(got);
      if (errno != EINTR) fail("io", name_, ": cannot read: ", std::strerror(errno));
    }
  }

 private:
  std::string name_;
  int fd_;
  bool owned_;
};

}  // namespace

std::unique_ptr<ByteSource> ByteSource::open(const std::string& path) {
  if (path == "-") return std::make_unique<Descriptor>("standard input", STDIN_FILENO, false);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail("io", path, ": cannot open for reading: ", std::strerror(errno));
  return std::make_unique<Descriptor>(path, fd, true);
}

}  // namespace qeng
