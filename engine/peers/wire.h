// What one connection between two peers carries, either way, whoever moves the bytes. A message is a byte that says what
// follows ('F': a frame begins, 'M': it goes on, 'T': a frame of the transport's own, whole), and at most kPieceBytes of a
// frame. Those of the transport may stand between the pieces of another, so that a large one keeps no sign of life
// waiting.
//
// Each side says how much it takes in advance (its window, in the first frame) and what has been taken of it since (in
// each ping): a sender begins a frame where it fits the window, so that a receiver's memory is bounded while its thread
// reads whatever comes.
#pragma once
#include <algorithm>

#include "engine/peers/frame.h"

namespace qeng {

constexpr size_t kPieceBytes = size_t{128} << 10;  // a tenth of a second at 10 Mbit/s
constexpr size_t kWireMessage = kPieceBytes + 1;

// What a frame counts in windows and queues: what holds it takes memory too.
constexpr size_t kFrameCost = 256;
inline uint64_t cost_of(const PeerFrame& frame) { return frame.bytes() + kFrameCost; }

// Two of the largest frames: one is computed on while the next one comes.
constexpr uint64_t window_for(size_t limit) { return 2 * (limit + kMaxPeerText + kPeerHeaderBytes + kFrameCost); }

// The text of a greet frame, which each side sends first; the other fields of the header are zero.
struct PeerGreeting {
  uint64_t who = 0;  // a number that the process drew
  uint64_t window = 0, limit = 0;
  uint32_t dial = 0;         // which of the dialer's own connections
  uint32_t incarnation = 0;  // how many times it was dialed: pings have it as their epoch
};
static_assert(sizeof(PeerGreeting) == 32);

class PeerWire {
 public:
  explicit PeerWire(size_t limit) : reader_(limit), window_(window_for(limit)) {}

  // A message of the other side; the frame that it makes whole, if it does. taken: cost_of() the frames that were taken
  // here, all together. Error("format") for anything that no peer sends.
  PeerFramePtr receive(std::span<const uint8_t> message, uint64_t taken);

  // What the other side has said.
  void greeted(uint64_t window) { their_window_ = window; }
  void allow(uint64_t taken) { their_taken_ = std::max(their_taken_, taken); }
  // May it begin, or go on?
  bool may_send(const PeerFrame& frame) const {
    return sent_of_it_ > 0 || sent_ + cost_of(frame) <= their_taken_ + their_window_;
  }
  size_t next_message(const PeerFrame& frame) const { return 1 + std::min(kPieceBytes, frame.bytes() - sent_of_it_); }
  void write_message(const PeerFrame& frame, uint8_t* to) const;
  bool sent_message(const PeerFrame& frame);  // true: that was the last of it

 private:
  PeerFrameReader reader_;
  const uint64_t window_;
  uint64_t received_ = 0, sent_ = 0, their_window_ = 0, their_taken_ = 0;
  size_t sent_of_it_ = 0;
};

inline bool is_transports_own(const PeerFrame& frame) {
  return static_cast<uint16_t>(frame.header.type) < kFirstOpenType;
}
// The message of a frame of the transport's own.
std::string own_message(const PeerFrame& frame);
PeerFrame greet_frame(const PeerGreeting& greeting);
PeerGreeting greeting_of(const PeerFrame& frame);  // Error("format")

}  // namespace qeng
