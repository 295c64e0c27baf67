// A .qubgpu file: opened, verified and read; as given, and with its two checksums made right, so that what lies behind
// them is reached too.
#include <cstdlib>
#include <cstring>

#include "engine/packets/packet_file.h"
#include "engine/packets/payload.h"
#include "kernels/error.h"
#include "tests/fuzz/memory_file.h"

namespace {

using namespace qeng;

std::vector<uint8_t> sealed(const uint8_t* data, size_t size) {
  std::vector<uint8_t> bytes(data, data + size);
  if (size < kHeaderBytes) return bytes;
  ContainerHeader header;
  std::memcpy(&header, data, sizeof header);
  if (header.index_offset <= size) header.tail_hash = xxh3(&bytes[0] + header.index_offset, size - header.index_offset);
  header.header_hash = 0;
  std::memcpy(bytes.data(), &header, sizeof header);
  header.header_hash = xxh3(bytes.data(), kHeaderBytes);
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

void read_all(const std::vector<uint8_t>& bytes) {
  const fuzz::MemoryFile memory(bytes.data(), bytes.size());
  std::shared_ptr<const PacketFile> file;
  try {
    file = PacketFile::open(memory.path());
  } catch (const Error&) {
    return;  // refused, which is what hostile files are for
  }
  const PacketReport report = file->verify();
  uint64_t bad = 0;
  std::vector<int32_t> tokens;
  std::vector<uint8_t> mask, payload;
  for (uint64_t record = 0; record < file->records(); ++record) {
    FrameType type;
    const uint32_t count = file->info(record).tokens;
    const bool good = count > 0 ? file->read(record, tokens, mask) : file->read_payload(record, type, payload);
    bad += !good;
    if (good && count > 0 && tokens.size() != count) std::abort();
    if (good && !mask.empty() && mask.size() != tokens.size()) std::abort();
    if (good && count == 0 && !payload_problem(type, payload).empty()) std::abort();
    if (file->stored(record).empty()) std::abort();
  }
  if (bad != report.bad_records || bad != file->errors().total) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  read_all({data, data + size});
  read_all(sealed(data, size));
  return 0;
}
