// The bytes of an input file, decompressed on the way: plain, gzip, zstd, bzip2 or xz, told by the file's first bytes;
// of a Parquet file its rows as JSON lines (engine/parquet/parquet_source.h). "-" is standard input. Reads front to
// back with a small buffer, so memory does not grow with the file.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace qeng {

class InputSource {
 public:
  // Error("io") for what cannot be opened, Error("format") for an Arrow file or a packet dataset, with what to do.
  static std::unique_ptr<InputSource> open(const std::string& path);
  virtual ~InputSource() = default;
  InputSource() = default;
  InputSource(const InputSource&) = delete;

  // Up to `bytes` bytes; 0 only at the end. Compressed data that are cut off or damaged are Error("format").
  virtual size_t read(char* to, size_t bytes) = 0;
  virtual void skip(uint64_t bytes);      // the next bytes as decompressed
  virtual uint64_t consumed() const = 0;  // bytes of the file itself read so far, for progress
};

// What a journal keeps of an input, to refuse another one: its size and the XXH3-64 of its first bytes.
struct InputIdentity {
  uint64_t bytes = 0, head_hash = 0;
  bool operator==(const InputIdentity&) const = default;
};
InputIdentity identify_input(const std::string& path);
bool readable_twice(const std::string& path);  // false for standard input and pipes

}  // namespace qeng
