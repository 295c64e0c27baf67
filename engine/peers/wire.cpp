#include "engine/peers/wire.h"

#include <cstring>

#include "kernels/error.h"

namespace qeng {
namespace {

constexpr uint8_t kBegins = 'F', kGoesOn = 'M', kOwn = 'T';

void check_own(const PeerFrame& frame, bool own) {
  if (is_transports_own(frame) != own)
    fail("format", "a peer sends a frame ", peer_frame_name(frame.header.type), " where it does not belong");
}

}  // namespace

PeerFramePtr PeerWire::receive(std::span<const uint8_t> message, uint64_t taken) {
  if (message.empty() || message.size() > kWireMessage)
    fail("format", "a peer's message is of ", message.size(), " bytes, expected 1 to ", kWireMessage);
  const std::span<const uint8_t> piece = message.subspan(1);
  if (message[0] == kOwn) {
    PeerFramePtr frame = parse_peer_frame(piece, 0);
    check_own(*frame, true);
    return frame;
  }
  if (message[0] != kBegins && message[0] != kGoesOn) fail("format", "a peer's message begins with ", int{message[0]});
  if (reader_.begun() != (message[0] == kGoesOn))
    fail("format", reader_.begun() ? "a peer begins a frame within another" : "a peer goes on with no frame");
  const bool whole = reader_.add(piece);
  if (received_ + reader_.expected() + kFrameCost > taken + window_)
    fail("format", "a peer sends more than the ", window_, " bytes that are waited for");
  if (!whole) return nullptr;
  PeerFramePtr frame = reader_.take();
  check_own(*frame, false);
  received_ += cost_of(*frame);
  return frame;
}

void PeerWire::write_message(const PeerFrame& frame, uint8_t* to) const {
  to[0] = sent_of_it_ == 0 ? kBegins : kGoesOn;
  frame.copy(sent_of_it_, next_message(frame) - 1, to + 1);
}

bool PeerWire::sent_message(const PeerFrame& frame) {
  if (sent_of_it_ == 0) sent_ += cost_of(frame);
  sent_of_it_ += next_message(frame) - 1;
  if (sent_of_it_ < frame.bytes()) return false;
  sent_of_it_ = 0;
  return true;
}

std::string own_message(const PeerFrame& frame) {
  std::string message(1 + frame.bytes(), static_cast<char>(kOwn));
  frame.copy(0, frame.bytes(), reinterpret_cast<uint8_t*>(message.data()) + 1);
  return message;
}

PeerFrame greet_frame(const PeerGreeting& greeting) {
  return PeerFrame({PeerFrameType::greet}, {reinterpret_cast<const char*>(&greeting), sizeof greeting}, nullptr);
}

PeerGreeting greeting_of(const PeerFrame& frame) {
  PeerGreeting greeting;
  if (frame.header.type != PeerFrameType::greet || frame.text().size() != sizeof greeting)
    fail("format", "a peer does not greet: its first frame is ", peer_frame_name(frame.header.type), " with ",
         frame.text().size(), " bytes of text");
  std::memcpy(&greeting, frame.text().data(), sizeof greeting);
  return greeting;
}

}  // namespace qeng
