// Frames that peers exchange: a header, a text of at most 1 MiB and data, laid end to end. Numbers are little-endian:
//   "qpf1" | version u16 | type u16 | request u64 | position u64 | epoch u32 | text bytes u32 | data bytes u64 |
//   XXH64 u64 of the header, with zero in this place, the text and the data
// What the fields mean is for those who send them; types below kFirstOpenType are the transport's own. On its way a frame
// is cut into pieces (link.h), so that a large one keeps no sign of life waiting.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace qeng {

// Every type and its name in Lua. A number never changes its meaning; new ones come at the end of a line.
struct PeerFrameName {
  uint16_t number;
  const char* name;
};
constexpr PeerFrameName kPeerFrames[] = {
    {1, "greet"},    {2, "ping"},   {3, "pong"},  // peers.h
    {16, "hello"},   {17, "load"},  {18, "ready"},    {19, "open"},   {20, "close"},   {21, "step"},
    {22, "result"},  {23, "error"}, {24, "done"},     {25, "unload"}, {26, "adapter"}, {27, "state"},
    {28, "probe"},   {29, "fetch"},                                                                   // layers
    {48, "list"},    {49, "files"}, {50, "manifest"}, {51, "blocks"}, {52, "block"},   {53, "have"},  // files
    {54, "lacking"}, {55, "push"},  {56, "pull"},     {57, "stop"},   {58, "packets"}, {59, "wait"},
};
enum class PeerFrameType : uint16_t { greet = 1, ping = 2, pong = 3 };  // and those of the list above
constexpr uint16_t kFirstOpenType = 16;

const char* peer_frame_name(PeerFrameType type);  // nullptr: there is no such type
// Error("value") for a name that is none, or of the transport's own types.
PeerFrameType peer_frame_type(const std::string& name);

constexpr size_t kPeerHeaderBytes = 48;
constexpr size_t kMaxPeerText = size_t{1} << 20;
constexpr size_t kMaxPeerData = size_t{256} << 20;

// Bytes that frames share: one that was received may be sent on without a copy.
struct PeerData {
  std::unique_ptr<uint8_t[]> bytes;  // not initialised
  size_t size = 0;
  static std::shared_ptr<PeerData> of(size_t size);  // Error("memory") where there is not so much
};

struct PeerHeader {
  PeerFrameType type = PeerFrameType::ping;
  uint64_t request = 0, position = 0;
  uint32_t epoch = 0;
};

class PeerFrame {
 public:
  // data: nullptr for none. Error("value") for a text or data over the most.
  PeerFrame(const PeerHeader& header, std::string_view text, std::shared_ptr<const PeerData> data);

  PeerHeader header;
  std::string_view text() const { return std::string_view(head_).substr(kPeerHeaderBytes); }
  std::span<const uint8_t> data() const;
  const std::shared_ptr<const PeerData>& shared_data() const { return data_; }
  size_t bytes() const { return head_.size() + data().size(); }
  // Writes the bytes first .. first + count of the frame.
  void copy(size_t first, size_t count, uint8_t* to) const;

 private:
  friend class PeerFrameReader;
  PeerFrame() = default;
  std::string head_;  // the header and the text, as they are sent
  std::shared_ptr<const PeerData> data_;
};
using PeerFramePtr = std::shared_ptr<const PeerFrame>;

// Makes frames of bytes that come piece by piece, whoever sent them. Every refusal is an Error("format") that says which:
// magic, version, type, a length over the most, a checksum, bytes after the end. Memory is taken when the header is there,
// and written as the bytes come.
class PeerFrameReader {
 public:
  explicit PeerFrameReader(size_t most_data = kMaxPeerData) : most_data_(most_data) {}
  // A piece of the frame that is coming; true: the frame is whole. A piece reaches over no frame's end.
  bool add(std::span<const uint8_t> piece);
  bool begun() const { return at_ > 0; }
  // What the frame that is coming will count, once its header is there; else 0.
  size_t expected() const { return at_ < kPeerHeaderBytes ? 0 : kPeerHeaderBytes + text_ + data_; }
  PeerFramePtr take();  // the whole frame, after which another begins

 private:
  void read_header();
  const size_t most_data_;
  PeerFrame frame_;
  std::shared_ptr<PeerData> bytes_;
  size_t at_ = 0, text_ = 0, data_ = 0;
};

// A frame that lies in one piece.
PeerFramePtr parse_peer_frame(std::span<const uint8_t> bytes, size_t most_data = kMaxPeerData);

}  // namespace qeng
