// Where bytes come from: a file, a pipe, standard input.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace qeng {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Up to `bytes` more into `into`, waiting for the first; 0: the end. Error("io") names the source.
  virtual size_t read(uint8_t* into, size_t bytes) = 0;

  static std::unique_ptr<ByteSource> open(const std::string& path);  // "-": standard input
};

}  // namespace qeng
