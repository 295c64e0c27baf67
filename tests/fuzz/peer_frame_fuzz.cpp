// A frame of peers: as given, and with its checksum made right, so that what lies behind it is reached too; whole and a
// byte at a time, which have to end alike. Then the same bytes as messages of a connection, each after two bytes of length.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "engine/peers/wire.h"
#include "kernels/error.h"

namespace {
using namespace qeng;
using Bytes = std::vector<uint8_t>;

constexpr size_t kMostData = 4096, kChecksumAt = 40;

void require(bool is, const char* what) {
  if (is) return;
  std::fprintf(stderr, "finding: %s\n", what);
  std::abort();
}

Bytes sealed(Bytes bytes) {
  if (bytes.size() < kPeerHeaderBytes) return bytes;
  std::memset(bytes.data() + kChecksumAt, 0, 8);
  const uint64_t sum = XXH64(bytes.data(), bytes.size(), 0);
  std::memcpy(bytes.data() + kChecksumAt, &sum, sizeof sum);
  return bytes;
}

PeerFramePtr whole(const Bytes& bytes) {
  try {
    return parse_peer_frame(bytes, kMostData);
  } catch (const Error& error) {
    require(error.code == "format", "a refusal of another code");
    return nullptr;
  }
}

PeerFramePtr by_bytes(const Bytes& bytes) {
  PeerFrameReader reader(kMostData);
  try {
    for (const uint8_t& byte : bytes) reader.add({&byte, 1});
    return reader.take();
  } catch (const Error&) {
    return nullptr;
  }
}

void parse(const Bytes& bytes) {
  const PeerFramePtr first = whole(bytes), second = by_bytes(bytes);
  require((first == nullptr) == (second == nullptr), "bytes that come one by one are taken differently");
  if (!first) return;
  for (const PeerFramePtr& frame : {first, second}) {
    require(frame->data().size() <= kMostData && peer_frame_name(frame->header.type), "a frame outside its limits");
    Bytes again(frame->bytes());
    frame->copy(0, again.size(), again.data());
    require(again == bytes, "a frame has other bytes than were parsed");
  }
  const PeerFrame made(first->header, first->text(), first->shared_data());
  Bytes again(made.bytes());
  made.copy(0, again.size(), again.data());
  require(again == bytes, "the same frame, made anew, has other bytes");
}

void receive(const Bytes& bytes) {
  PeerWire wire(kMostData);
  uint64_t taken = 0;
  try {
    for (size_t at = 0; at + 2 <= bytes.size();) {
      const size_t length = std::min<size_t>(bytes[at] | bytes[at + 1] << 8, bytes.size() - at - 2);
      const PeerFramePtr frame = wire.receive({bytes.data() + at + 2, length}, taken);
      at += 2 + length;
      if (!frame) continue;
      if (is_transports_own(*frame)) {
        require(frame->data().empty(), "a frame of the transport has data");
        if (frame->header.type == PeerFrameType::greet) greeting_of(*frame);
      } else {
        taken += cost_of(*frame) / 2;
      }
    }
  } catch (const Error& error) {
    require(error.code == "format", "a refusal of another code");
  }
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Bytes bytes(data, data + size);
  parse(bytes);
  parse(sealed(bytes));
  receive(bytes);
  return 0;
}
