// Memory that lies in a file without a name, for weights that are streamed and are not read as a model's own file has
// them (another dtype, another order of rows): the system may drop its pages and read them again. The file is in
// $TMPDIR, by default /var/tmp, and is gone with the last user, or with the process.
//
// For a device that does not read the host's memory a spilled tensor lies there all the same: operations find it once it
// is streamed.
#pragma once
#include <cstddef>
#include <memory>
#include <string>

#include "engine/tensor/tensor.h"

namespace qeng {

class SpilledFile {
 public:
  // `bytes` of zeros; `what` is told in Error("io"), as is the folder that has no room.
  SpilledFile(size_t bytes, const std::string& what);
  ~SpilledFile();
  SpilledFile(const SpilledFile&) = delete;
  void* data() const { return data_; }  // page-aligned

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

// A tensor in such a file, uninitialised; `name` is told in errors.
TensorPtr make_spilled(Device& device, const Shape& shape, DType dtype, const std::string& account,
                       const std::string& name);
// drop_pages (pages.h) for a tensor of make_spilled, after all of it was read or written past its stream; nothing for
// others.
void drop_spilled(const Tensor& tensor);

}  // namespace qeng
