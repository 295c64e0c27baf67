#include "engine/stream/spilled_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "engine/stream/pages.h"
#include "kernels/error.h"

namespace qeng {

SpilledFile::SpilledFile(size_t bytes, const std::string& what) : bytes_(std::max<size_t>(bytes, 1)) {
  const char* given = std::getenv("TMPDIR");
  const std::string folder = given && *given ? given : "/var/tmp";
  std::string name = folder + "/qeng-XXXXXX";
  const int file = ::mkostemp(name.data(), O_CLOEXEC);
  int error = file < 0 ? errno : 0;
  if (file >= 0) {
    ::unlink(name.c_str());
    // Room is asked for now: a page that finds none when it is written ends the process.
    error = ::posix_fallocate(file, 0, static_cast<off_t>(bytes_));
    if (!error) data_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (!error && data_ == MAP_FAILED) error = errno;
    ::close(file);
  }
  if (error)
    fail("io", what, ": no file of ", bytes_, " bytes for it in ", folder, ": ", std::strerror(error),
         "; set TMPDIR to a folder of a disk that has room");
}

SpilledFile::~SpilledFile() {
  if (data_) ::munmap(data_, bytes_);
}

TensorPtr make_spilled(Device& device, const Shape& shape, DType dtype, const std::string& account,
                       const std::string& name) {
  View view;
  view.dtype = dtype;
  for (const int64_t size : shape) view.shape[view.rank++] = size;
  if (device.backend().reads_host_memory()) {
    const auto file = std::make_shared<SpilledFile>(view.bytes(), name);
    const TensorPtr tensor = adopt_tensor(device, file->data(), shape, dtype, account, file);
    tensor->buffer->spilled = true;
    return tensor;
  }
  const auto memory = std::make_shared<std::vector<uint64_t>>(view.bytes() / sizeof(uint64_t) + 1);
  TensorPtr tensor = adopt_tensor(device, memory->data(), shape, dtype, "weights in the host's memory", memory);
  tensor->buffer->home = memory->data();
  return tensor;
}

void drop_spilled(const Tensor& tensor) {
  if (tensor.buffer->spilled) drop_pages(tensor.view.data, tensor.view.bytes());
}

}  // namespace qeng
