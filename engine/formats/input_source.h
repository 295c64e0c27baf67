// Bytes that are read front to back, and the formats of files that are no text and give their records as JSON lines.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace qeng {

class InputSource {
 public:
  virtual ~InputSource() = default;
  InputSource() = default;
  InputSource(const InputSource&) = delete;

  // Up to `bytes` bytes; 0 only at the end. Compressed data that are cut off or damaged are Error("format").
  virtual size_t read(char* to, size_t bytes) = 0;
  virtual void skip(uint64_t bytes);      // the next bytes as decompressed
  virtual uint64_t consumed() const = 0;  // bytes of the file itself read so far, for progress
};

// A format that registers itself, from its definition at namespace scope on in a file NAME_format.cpp (as DataFormat of
// engine/convert/data_format.h does).
struct SourceFormat {
  using Open = std::unique_ptr<InputSource> (*)(const std::string& path);
  SourceFormat(const char* name, std::string magic, std::vector<std::string> endings, Open open);
  const char* name;                  // "Parquet"
  std::string magic;                 // the file's first bytes, at most 8
  std::vector<std::string> endings;  // of files' names, in lower case
  Open open;
};
const std::vector<const SourceFormat*>& source_formats();

}  // namespace qeng
