#include "engine/packets/frame_writer.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "engine/formats/atomic_file.h"
#include "engine/packets/packet_file.h"
#include "engine/packets/payload.h"
#include "kernels/error.h"

namespace qeng {
namespace {

constexpr size_t kBufferBytes = 1 << 16;  // a pipe's size: the reader has something to do meanwhile

void write_standard_output(const uint8_t* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t written = ::write(STDOUT_FILENO, data, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("io", "standard output: cannot write: ", std::strerror(errno));
    data += written, bytes -= static_cast<size_t>(written);
  }
}

}  // namespace

FrameWriter::FrameWriter(const std::string& path, CrcVariant variant) : path_(path), variant_(variant) {
  if (path == "-") {
    if (::isatty(STDOUT_FILENO)) fail("value", "packets are not for a terminal: give a file, or pipe it on");
  } else {
    file_ = std::make_unique<AtomicFile>(path);
  }
}
FrameWriter::~FrameWriter() = default;

void FrameWriter::require_open() const {
  if (!open_) fail("closed", path_, ": these packets are finished");
}

void FrameWriter::flush() {
  if (file_) {
    file_->write(pending_.data(), pending_.size());
  } else {
    write_standard_output(pending_.data(), pending_.size());
  }
  pending_.clear();
}

void FrameWriter::add(std::span<const int32_t> tokens, std::span<const uint8_t> mask, uint8_t src, uint8_t dst) {
  require_open();
  append_record(pending_, tokens, mask, src, dst, variant_);
  if (pending_.size() >= kBufferBytes) flush();
}

void FrameWriter::payload(FrameType type, std::span<const uint8_t> bytes, uint8_t src, uint8_t dst) {
  require_open();
  append_payload(pending_, type, bytes, src, dst, variant_);
  if (pending_.size() >= kBufferBytes) flush();
}

bool FrameWriter::copy(const PacketFile& file, uint64_t record) {
  require_open();
  if (!append_stored(pending_, file, record, variant_)) return false;
  if (pending_.size() >= kBufferBytes) flush();
  return true;
}

void FrameWriter::finish() {
  require_open();
  flush();
  if (file_) file_->commit();
  open_ = false;
  file_.reset();
}

void FrameWriter::abandon() {
  require_open();
  open_ = false;
  pending_.clear();
  file_.reset();
}

bool append_stored(std::vector<uint8_t>& out, const PacketFile& file, uint64_t record, CrcVariant variant) {
  if (!file.check(record)) return false;
  const auto frames = file.stored(record);
  const size_t before = out.size();
  out.insert(out.end(), frames.begin(), frames.end());
  if (file.variant() != variant) {
    for (size_t at = before; at < out.size();) {
      const size_t payload = static_cast<size_t>(out[at + 4] << 8 | out[at + 5]), sum = at + kFrameHeader + payload;
      const uint16_t crc = frame_crc({&out[at + 1], kFrameHeader - 1 + payload}, variant);
      out[sum] = static_cast<uint8_t>(crc >> 8), out[sum + 1] = static_cast<uint8_t>(crc);
      at += payload + kFrameOverhead;
    }
  }
  try {
    file.require_whole();
  } catch (...) {
    out.resize(before);
    throw;
  }
  return true;
}

}  // namespace qeng
