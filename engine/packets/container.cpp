#include "engine/packets/container.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "engine/formats/arrival.h"
#include "kernels/error.h"

namespace qeng {

uint64_t xxh3(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

std::string header_bytes(ContainerHeader header) {
  header.header_hash = 0;
  std::string bytes(kHeaderBytes, '\0');
  std::memcpy(bytes.data(), &header, sizeof header);
  const uint64_t hash = xxh3(bytes.data(), bytes.size());
  std::memcpy(bytes.data() + offsetof(ContainerHeader, header_hash), &hash, sizeof hash);
  return bytes;
}

ContainerHeader parse_header(std::span<const uint8_t> file, const std::string& path, Arrival* arrival) {
  ContainerHeader header, ours;
  if (arrival) arrival->wait(0, kHeaderBytes);
  if (file.size() < sizeof ours.magic || std::memcmp(file.data(), ours.magic, 6) != 0)
    fail("format", path, ": not a .qubgpu file (it does not begin with QUBGPU); text has to be converted");
  if (std::memcmp(file.data(), ours.magic, sizeof ours.magic) != 0)
    fail("format", path, ": .qubgpu version ", int{file[7]}, ", this qeng reads version ", int{ours.magic[7]});
  if (file.size() < kHeaderBytes)
    fail("format", path, ": truncated: ", file.size(), " bytes, the header alone is ", kHeaderBytes);
  std::memcpy(&header, file.data(), sizeof header);
  std::string copy(reinterpret_cast<const char*>(file.data()), kHeaderBytes);
  std::memset(copy.data() + offsetof(ContainerHeader, header_hash), 0, sizeof header.header_hash);
  if (xxh3(copy.data(), copy.size()) != header.header_hash)
    fail("format", path, ": the header's checksum is wrong: the file is damaged, convert it again");
  if (header.header_bytes != kHeaderBytes || header.flags & ~kFlagXmodem)
    fail("format", path, ": header of ", header.header_bytes, " bytes with flags ", header.flags, ", expected ",
         kHeaderBytes, " bytes and flags 0 or ", kFlagXmodem);

  // Each part's size is bounded by the file's before it enters a sum, so that no sum wraps.
  const uint64_t size = file.size();
  const auto lies = [&](const char* what) {
    fail("format", path, ": ", what, " does not agree with the file's ", size, " bytes: it is truncated or damaged");
  };
  if (header.frames_offset != kHeaderBytes || header.frames_bytes > size - kHeaderBytes) lies("the frames' size");
  if (header.records > size / sizeof(IndexEntry)) lies("the number of records");
  if (header.frames > size / kFrameOverhead || header.tokens > size / 4 || header.loss_tokens > header.tokens)
    lies("a count in the header");
  if (header.meta_bytes > size || header.meta_bytes > kMaxMetaBytes) lies("the size of the meta data");
  if (header.index_offset != (kHeaderBytes + header.frames_bytes + 7) / 8 * 8) lies("the index's offset");
  if (header.hashes_offset != header.index_offset + header.records * sizeof(IndexEntry))
    lies("the block hashes' offset");
  if (header.meta_offset != header.hashes_offset + header.blocks() * 8) lies("the meta data's offset");
  if (header.meta_offset + header.meta_bytes != size) lies("the end of the meta data");
  if (arrival) arrival->wait(kHeaderBytes + header.frames_bytes, size);
  const auto gap =
      file.subspan(kHeaderBytes + header.frames_bytes, header.index_offset - kHeaderBytes - header.frames_bytes);
  if (std::any_of(gap.begin(), gap.end(), [](uint8_t byte) { return byte != 0; })) lies("what stands before the index");
  if (xxh3(file.data() + header.index_offset, size - header.index_offset) != header.tail_hash)
    fail("format", path, ": the checksum of index and meta data is wrong: the file is damaged, convert it again");
  return header;
}

}  // namespace qeng
