#include "engine/peers/frame.h"

#define XXH_STATIC_LINKING_ONLY  // its state on the stack
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

#include "kernels/error.h"

namespace qeng {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr char kMagic[4] = {'q', 'p', 'f', '1'};
constexpr uint16_t kVersion = 1;

struct WireHeader {
  char magic[4];
  uint16_t version, type;
  uint64_t request, position;
  uint32_t epoch, text;
  uint64_t data, checksum;
};
static_assert(sizeof(WireHeader) == kPeerHeaderBytes);

// Of the header as it is, its checksum zero, and what follows it.
uint64_t checksum(WireHeader header, std::string_view text, std::span<const uint8_t> data) {
  header.checksum = 0;
  XXH64_state_t state;
  XXH64_reset(&state, 0);
  XXH64_update(&state, &header, sizeof header);
  XXH64_update(&state, text.data(), text.size());
  XXH64_update(&state, data.data(), data.size());
  return XXH64_digest(&state);
}

}  // namespace

const char* peer_frame_name(PeerFrameType type) {
  for (const PeerFrameName& known : kPeerFrames)
    if (known.number == static_cast<uint16_t>(type)) return known.name;
  return nullptr;
}

PeerFrameType peer_frame_type(const std::string& name) {
  std::string names;
  for (const PeerFrameName& known : kPeerFrames) {
    if (known.number < kFirstOpenType) continue;
    if (name == known.name) return static_cast<PeerFrameType>(known.number);
    names += (names.empty() ? "" : ", ") + std::string(known.name);
  }
  fail("value", "'", name, "' is no type of frame; there are ", names);
}

std::shared_ptr<PeerData> PeerData::of(size_t size) {
  auto data = std::make_shared<PeerData>();
  data->bytes.reset(new (std::nothrow) uint8_t[std::max<size_t>(size, 1)]);
  if (!data->bytes) fail("memory", "no memory for a frame of ", size, " bytes");
  data->size = size;
  return data;
}

PeerFrame::PeerFrame(const PeerHeader& fields, std::string_view text, std::shared_ptr<const PeerData> data)
    : header(fields), data_(std::move(data)) {
  if (text.size() > kMaxPeerText)
    fail("value", "a frame's text is ", text.size(), " bytes, at most ", kMaxPeerText, ": send more as data");
  if (this->data().size() > kMaxPeerData)
    fail("value", "a frame's data is ", this->data().size(), " bytes, at most ", kMaxPeerData, ": send it in parts");
  WireHeader wire{{},
                  kVersion,
                  static_cast<uint16_t>(header.type),
                  header.request,
                  header.position,
                  header.epoch,
                  static_cast<uint32_t>(text.size()),
                  this->data().size(),
                  0};
  std::memcpy(wire.magic, kMagic, sizeof kMagic);
  wire.checksum = checksum(wire, text, this->data());
  head_.reserve(sizeof wire + text.size());
  head_.assign(reinterpret_cast<const char*>(&wire), sizeof wire).append(text);
}

std::span<const uint8_t> PeerFrame::data() const {
  return data_ ? std::span<const uint8_t>(data_->bytes.get(), data_->size) : std::span<const uint8_t>();
}

void PeerFrame::copy(size_t first, size_t count, uint8_t* to) const {
  if (first < head_.size()) {
    const size_t part = std::min(count, head_.size() - first);
    std::memcpy(to, head_.data() + first, part);
    first += part, to += part, count -= part;
  }
  if (count) std::memcpy(to, data().data() + (first - head_.size()), count);
}

void PeerFrameReader::read_header() {
  WireHeader wire;
  std::memcpy(&wire, frame_.head_.data(), sizeof wire);
  if (std::memcmp(wire.magic, kMagic, sizeof kMagic) != 0) fail("format", "a peer's frame has not the magic of one");
  if (wire.version != kVersion)
    fail("format", "a peer's frame is of version ", wire.version, ", this qeng's of ", kVersion,
         ": use the same qeng on both");
  const auto type = static_cast<PeerFrameType>(wire.type);
  if (!peer_frame_name(type)) fail("format", "a peer's frame has the unknown type ", wire.type);
  if (wire.text > kMaxPeerText)
    fail("format", "a peer's frame claims a text of ", wire.text, " bytes, at most ", kMaxPeerText);
  if (wire.data > most_data_)
    fail("format", "a peer's frame claims ", wire.data, " bytes of data, at most ", most_data_);
  frame_.header = {type, wire.request, wire.position, wire.epoch};
  text_ = wire.text, data_ = wire.data;
}

bool PeerFrameReader::add(std::span<const uint8_t> piece) {
  // The header may itself come in parts.
  if (at_ < kPeerHeaderBytes) {
    const size_t part = std::min(piece.size(), kPeerHeaderBytes - at_);
    frame_.head_.append(reinterpret_cast<const char*>(piece.data()), part);
    at_ += part, piece = piece.subspan(part);
    if (at_ < kPeerHeaderBytes) return false;
    read_header();
  }
  const size_t whole = kPeerHeaderBytes + text_ + data_;
  if (piece.size() > whole - at_)
    fail("format", "a peer's frame of ", whole, " bytes is followed by ", piece.size() - (whole - at_), " more");
  if (at_ < kPeerHeaderBytes + text_) {
    const size_t part = std::min(piece.size(), kPeerHeaderBytes + text_ - at_);
    frame_.head_.append(reinterpret_cast<const char*>(piece.data()), part);
    at_ += part, piece = piece.subspan(part);
  }
  if (!piece.empty()) {
    if (!bytes_) bytes_ = PeerData::of(data_);
    std::memcpy(bytes_->bytes.get() + (at_ - kPeerHeaderBytes - text_), piece.data(), piece.size());
    at_ += piece.size();
  }
  return at_ == whole;
}

PeerFramePtr PeerFrameReader::take() {
  if (at_ < kPeerHeaderBytes || at_ < kPeerHeaderBytes + text_ + data_)
    fail("format", "a peer's frame ends after ", at_, " bytes");
  frame_.data_ = std::move(bytes_);
  auto whole = std::make_shared<PeerFrame>(std::move(frame_));
  frame_ = PeerFrame();
  bytes_ = nullptr, at_ = text_ = data_ = 0;
  WireHeader wire;
  std::memcpy(&wire, whole->head_.data(), sizeof wire);
  if (checksum(wire, whole->text(), whole->data()) != wire.checksum)
    fail("format", "a peer's frame has not the checksum of its bytes");
  return whole;
}

PeerFramePtr parse_peer_frame(std::span<const uint8_t> bytes, size_t most_data) {
  PeerFrameReader reader(most_data);
  reader.add(bytes);
  return reader.take();
}

}  // namespace qeng
