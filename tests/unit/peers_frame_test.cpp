// Frames of peers, the pieces that they travel in, and beacons, without a network.
#include <cstring>
#include <random>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "engine/peers/beacon.h"
#include "engine/peers/wire.h"
#include "kernels/error.h"
#include "tests/catch.h"

namespace qeng {
namespace {

using Bytes = std::vector<uint8_t>;

std::shared_ptr<PeerData> data_of(size_t size, unsigned seed = 1) {
  auto data = PeerData::of(size);
  std::mt19937 engine(seed);
  for (size_t i = 0; i < size; ++i) data->bytes[i] = static_cast<uint8_t>(engine());
  return data;
}

PeerFrame step_frame(size_t size, const std::string& text = "{}") {
  return PeerFrame({peer_frame_type("step"), 7, uint64_t{1} << 40, 3}, text, size ? data_of(size) : nullptr);
}

Bytes bytes_of(const PeerFrame& frame) {
  Bytes bytes(frame.bytes());
  frame.copy(0, bytes.size(), bytes.data());
  return bytes;
}

// The bytes with another field, and the checksum that belongs to it.
template <class T>
Bytes with(Bytes bytes, size_t at, T value) {
  std::memcpy(&bytes.at(at), &value, sizeof value);
  std::memset(&bytes.at(40), 0, 8);
  const uint64_t sum = XXH64(bytes.data(), bytes.size(), 0);
  std::memcpy(&bytes.at(40), &sum, sizeof sum);
  return bytes;
}

std::string refusal(const Bytes& bytes, size_t most = kMaxPeerData) {
  try {
    parse_peer_frame(bytes, most);
  } catch (const Error& error) {
    CHECK(error.code == "format");
    return error.what();
  }
  return "taken";
}

bool same(const PeerFrame& a, const PeerFrame& b) { return bytes_of(a) == bytes_of(b); }

}  // namespace

TEST_CASE("a frame of peers has the bytes that its header file says, and parses to itself") {
  const PeerFrame frame = step_frame(5, "abc");
  const Bytes bytes = bytes_of(frame);
  REQUIRE(bytes.size() == 48 + 3 + 5);
  CHECK(std::memcmp(bytes.data(), "qpf1", 4) == 0);
  const Bytes head = {1, 0, 21, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 3, 0, 0, 0, 3, 0, 0, 0, 5};
  CHECK(Bytes(bytes.begin() + 4, bytes.begin() + 33) == head);
  CHECK(with(bytes, 44, uint8_t{0}) == bytes);  // XXH64 over all, by another implementation of the hash
  for (size_t size : {0, 1, 5, 4096, 300000}) {
    const PeerFrame sent = step_frame(size, std::string(size % 977, 't'));
    const PeerFramePtr got = parse_peer_frame(bytes_of(sent));
    CHECK(same(*got, sent));
    CHECK(got->header.request == 7);
    CHECK(got->header.position == uint64_t{1} << 40);
    CHECK(got->header.epoch == 3);
    CHECK(got->text() == sent.text());
  }
}

TEST_CASE("a frame of peers that is not one is refused, and the refusal says why") {
  const Bytes good = bytes_of(step_frame(100, "text"));
  CHECK_THAT(refusal(with(good, 0, 'Q')), containing("magic"));
  CHECK_THAT(refusal(with(good, 4, uint16_t{2})), containing("version 2"));
  CHECK_THAT(refusal(with(good, 6, uint16_t{9})), containing("unknown type 9"));
  CHECK_THAT(refusal(with(good, 28, uint32_t{(1 << 20) + 1})), containing("a text of 1048577 bytes, at most"));
  CHECK_THAT(refusal(with(good, 32, uint64_t{1} << 60)), containing("bytes of data, at most"));
  CHECK_THAT(refusal(good, 99), containing("100 bytes of data, at most 99"));
  CHECK_THAT(refusal(with(good, 32, uint64_t{101})), containing("ends after 152 bytes"));
  CHECK_THAT(refusal(with(good, 32, uint64_t{99})), containing("followed by 1 more"));
  CHECK_THAT(refusal({}), containing("ends after 0 bytes"));
  CHECK_THAT(refusal(Bytes(good.begin(), good.begin() + 47)), containing("ends after 47 bytes"));
  for (size_t at = 0; at < good.size(); ++at) {
    Bytes flipped = good;
    flipped[at] ^= 1;
    CAPTURE(at);
    CHECK(refusal(flipped) != "taken");
  }
}

TEST_CASE("a frame of peers is not made over its limits, nor of a type that is none") {
  CHECK_THROWS_WITH(PeerFrame({}, std::string(kMaxPeerText + 1, 'x'), nullptr), containing("send more as data"));
  CHECK_THROWS_WITH(peer_frame_type("stepp"), containing("'stepp' is no type of frame; there are hello, load"));
  CHECK_THROWS_WITH(peer_frame_type("ping"), containing("is no type of frame"));
  for (const PeerFrameName& each : kPeerFrames) {
    CHECK(std::string(peer_frame_name(static_cast<PeerFrameType>(each.number))) == each.name);
    if (each.number >= kFirstOpenType) CHECK(static_cast<uint16_t>(peer_frame_type(each.name)) == each.number);
  }
}

TEST_CASE("frames of peers come whole out of pieces, with signs of life between them") {
  PeerWire from(kMaxPeerData), to(kMaxPeerData);
  from.greeted(window_for(kMaxPeerData));
  const PeerFrame pong({PeerFrameType::pong, 11}, "", nullptr);
  const std::string sign = own_message(pong);
  for (size_t size : {0, 1, 100, 131023, 131024, 131025, 1000000}) {
    const PeerFrame sent = step_frame(size, "text");
    PeerFramePtr got;
    for (bool more = true; more;) {
      Bytes message(from.next_message(sent));
      from.write_message(sent, message.data());
      CHECK(message.size() <= kWireMessage);
      more = !from.sent_message(sent);
      got = to.receive(message, 0);
      CHECK((got != nullptr) == !more);
      const PeerFramePtr own = to.receive({reinterpret_cast<const uint8_t*>(sign.data()), sign.size()}, 0);
      REQUIRE(own);
      CHECK(own->header.request == 11);
    }
    CAPTURE(size);
    CHECK(same(*got, sent));
  }
}

TEST_CASE("messages of peers that are out of order are refused") {
  const auto refuses = [](std::initializer_list<std::string> messages, const char* why) {
    PeerWire wire(1000);
    const auto receive = [&](const std::string& m) {
      return wire.receive({reinterpret_cast<const uint8_t*>(m.data()), m.size()}, 0);
    };
    for (size_t i = 0; i + 1 < messages.size(); ++i) receive(messages.begin()[i]);
    CHECK_THROWS_WITH(receive(*(messages.end() - 1)), containing(why));
  };
  const Bytes step = bytes_of(step_frame(100));
  const std::string whole(step.begin(), step.end()), head = whole.substr(0, 60), tail = whole.substr(60);
  const std::string ping = own_message(PeerFrame({PeerFrameType::ping}, "", nullptr)).substr(1);
  refuses({""}, "message is of 0 bytes");
  refuses({std::string(kWireMessage + 1, 'F')}, "message is of 131074 bytes");
  refuses({"X" + whole}, "begins with 88");
  refuses({"M" + tail}, "goes on with no frame");
  refuses({"F" + head, "F" + head}, "begins a frame within another");
  refuses({"F" + head, "M" + tail + "x"}, "followed by 1 more");
  refuses({"F" + ping}, "a frame ping where it does not belong");
  refuses({"T" + whole}, "claims 100 bytes of data, at most 0");
  refuses({"T" + head}, "claims 100 bytes of data, at most 0");
}

TEST_CASE("a peer sends what its other side has room for, and one that sends more is refused") {
  constexpr size_t kLimit = 1000;
  PeerWire from(kLimit), to(kLimit);
  from.greeted(window_for(kLimit));
  const PeerFrame frame = step_frame(kLimit, std::string(kMaxPeerText, 't'));
  const auto pass = [&] {
    for (bool more = true; more;) {
      Bytes message(from.next_message(frame));
      from.write_message(frame, message.data());
      more = !from.sent_message(frame);
      to.receive(message, 0);
    }
  };
  pass(), pass();
  CHECK_FALSE(from.may_send(frame));
  CHECK_THROWS_WITH(pass(), containing("more than the"));
  PeerWire again(kLimit);
  again.greeted(window_for(kLimit));
  CHECK(again.may_send(frame));
  again.allow(5), again.allow(3);  // what is heard late takes nothing back
  CHECK(again.may_send(frame));
}

TEST_CASE("a beacon tells who knows the key which port, and nobody else anything") {
  const std::string key(40, 'k'), other(40, 'o');
  const std::string beacon = make_beacon(28766, key);
  CHECK(beacon.size() == kBeaconBytes);
  CHECK(make_beacon(28766, key) != beacon);  // another nonce
  CHECK(beacon.find("kkkk") == beacon.npos);
  HeardBeacon heard;
  REQUIRE(recognise_beacon(beacon, {{"a", other}, {"b", key}}, &heard));
  CHECK(heard.name == "b");
  CHECK(heard.key == key);
  CHECK(heard.port == 28766);
  CHECK_FALSE(recognise_beacon(beacon, {{"a", other}}, &heard));
  CHECK_FALSE(recognise_beacon(beacon, {}, &heard));
  for (size_t at = 0; at < beacon.size(); ++at) {
    if (at == 6 || at == 7) continue;  // the port: a false one leads to nobody who has the key
    std::string flipped = beacon;
    flipped[at] = static_cast<char>(flipped[at] ^ 1);
    CHECK_FALSE(recognise_beacon(flipped, {{"b", key}}, &heard));
  }
  CHECK_FALSE(recognise_beacon(beacon + "x", {{"b", key}}, &heard));
  CHECK_FALSE(recognise_beacon("", {{"b", key}}, &heard));
  CHECK_THROWS_AS(make_beacon(0, key), Error);
}

}  // namespace qeng
