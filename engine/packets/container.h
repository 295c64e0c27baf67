// The layout of a .qubgpu file, version 3 (numbers little-endian outside frames):
//   header 4096 B | frames, back to back | zeros to a multiple of 8 | index | block hashes | meta (JSON), to the end of
//   file
// index: one IndexEntry a record, in file order. A payload record (engine/packets/payload.h) has 0 tokens; it reaches
// to the next record, or to the end of the frames. Block hashes: XXH3-64 of each 1 MiB of the frames, the last one
// shorter.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "engine/packets/frame.h"

namespace qeng {

class Arrival;

static_assert(std::endian::native == std::endian::little, "the container's numbers are read in place");

constexpr uint64_t kHeaderBytes = 4096;
constexpr uint64_t kBlockBytes = uint64_t{1} << 20;
constexpr uint64_t kMaxMetaBytes = uint64_t{64} << 20;
constexpr uint32_t kFlagXmodem = 1;

struct ContainerHeader {
  uint8_t magic[8] = {'Q', 'U', 'B', 'G', 'P', 'U', 0, 3};
  uint32_t header_bytes = kHeaderBytes;
  uint32_t flags = 0;
  uint64_t records = 0, frames = 0, tokens = 0, loss_tokens = 0;
  uint64_t frames_offset = kHeaderBytes, frames_bytes = 0;
  uint64_t index_offset = 0;
  uint64_t hashes_offset = 0;
  uint64_t meta_offset = 0, meta_bytes = 0;
  uint64_t header_hash = 0;  // XXH3-64 of the 4096 bytes with this field 0
  uint64_t tail_hash = 0;    // XXH3-64 of everything from index_offset to the end of the file

  CrcVariant variant() const { return flags & kFlagXmodem ? CrcVariant::xmodem : CrcVariant::ccitt_false; }
  uint64_t blocks() const { return (frames_bytes + kBlockBytes - 1) / kBlockBytes; }
};
static_assert(sizeof(ContainerHeader) == 112 && offsetof(ContainerHeader, header_hash) == 96);

struct IndexEntry {
  uint64_t offset;  // of the record's first frame, from frames_offset
  uint32_t tokens;
  uint32_t loss_tokens;  // tokens that are targets; the first of a document never is, nothing stands before it
  uint16_t frames;       // more than token_frames(tokens) where a document has a loss mask
  uint8_t src, dst;
  uint32_t zero;
};
static_assert(sizeof(IndexEntry) == 24);

uint64_t xxh3(const void* data, size_t bytes);

// The header of a whole file, checked: magic, version, hash, that the parts lie where their sizes say and end with the
// file, and the tail's hash. Anything else is Error("format") that begins with `path`. arrival: of a file that is still
// coming, or nullptr.
ContainerHeader parse_header(std::span<const uint8_t> file, const std::string& path, Arrival* arrival = nullptr);

// The 4096 bytes, with header_hash filled in.
std::string header_bytes(ContainerHeader header);

}  // namespace qeng
