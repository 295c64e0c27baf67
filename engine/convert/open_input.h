// The bytes of an input file, decompressed on the way: plain, gzip, zstd, bzip2 or xz, told by the file's first bytes;
// of a SourceFormat (Parquet) its records as JSON lines. "-" is standard input. Reads front to back with a small buffer,
// so memory does not grow with the file.
#pragma once
#include <cstdint>

#include "engine/formats/input_source.h"

namespace qeng {

// Error("io") for what cannot be opened, Error("format") for an Arrow file or a packet dataset, with what to do.
std::unique_ptr<InputSource> open_input(const std::string& path);

// What a journal keeps of an input, to refuse another one: its size and the XXH3-64 of its first bytes.
struct InputIdentity {
  uint64_t bytes = 0, head_hash = 0;
  bool operator==(const InputIdentity&) const = default;
};
InputIdentity identify_input(const std::string& path);
bool readable_twice(const std::string& path);  // false for standard input and pipes

}  // namespace qeng
