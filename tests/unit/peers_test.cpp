// Peers that exchange frames over loopback, straight and through a bad network.
#include <algorithm>
#include <random>
#include <thread>

#include "engine/peers/beacon.h"
#include "tests/flaky_proxy.h"
#include "tests/unit/peers_fixture.h"

namespace qeng {
using namespace peers_test;

namespace {

std::shared_ptr<const PeerData> random_data(size_t size) {
  auto data = PeerData::of(size);
  std::mt19937_64 engine(size);
  size_t at = 0;
  for (; at + 8 <= size; at += 8) {
    const uint64_t word = engine();
    std::memcpy(data->bytes.get() + at, &word, 8);
  }
  for (; at < size; ++at) data->bytes[at] = static_cast<uint8_t>(engine());
  return data;
}

bool same(const PeerFrame& a, const PeerFrame& b) {
  return a.header.request == b.header.request && a.text() == b.text() &&
         std::equal(a.data().begin(), a.data().end(), b.data().begin(), b.data().end());
}

// No event within the seconds.
bool silent(Peers& peers, double seconds) {
  const auto event = peers.wait(seconds);
  if (event) WARN("came: " << event->why << event->name);
  return !event;
}

// Plain bytes to a port, and what is answered until the other side ends or a second is over.
std::string answer_to(int port, const std::string& bytes) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET, address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  const timeval second{1, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second);
  std::string got;
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    [[maybe_unused]] const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    char buffer[4096];
    for (ssize_t n; (n = ::recv(fd, buffer, sizeof buffer, 0)) > 0;) got.append(buffer, static_cast<size_t>(n));
  }
  ::close(fd);
  return got;
}

}  // namespace

TEST_CASE("peers exchange frames of every size, bit for bit and in order") {
  Pair pair;
  pair.connect();
  const size_t sizes[] = {0, 1, 7, 8192, 130000, 131024, 262144, 1000003, 4 << 20, 64 << 20};
  std::vector<PeerFramePtr> sent;
  for (size_t size : sizes) sent.push_back(step(sent.size(), random_data(size), std::string(size % 1000, 't')));
  sent.push_back(step(99, random_data(3), std::string(kMaxPeerText, 'T')));
  for (const PeerFramePtr& each : sent) {
    pair.dialer->send(pair.to_listener, each);
    pair.listener->send(pair.to_dialer, each);
  }
  for (const PeerFramePtr& each : sent) {
    CAPTURE(each->bytes());
    CHECK(same(*frame(*pair.listener), *each));
    CHECK(same(*frame(*pair.dialer), *each));
  }
  CHECK(pair.dialer->sent(kPatience));
  const PeerStats stats = pair.dialer->stats(pair.to_listener);
  CHECK(stats.here);
  CHECK(stats.times_here == 1);
  CHECK(stats.frames_sent == sent.size());
  CHECK(stats.frames_received == sent.size());
  CHECK(stats.bytes_sent > 69'000'000);
  CHECK(stats.unsent == 0);
}

TEST_CASE("a frame that came is sent on without its bytes being copied") {
  Pair pair;
  pair.connect();
  pair.dialer->send(pair.to_listener, step(1, random_data(300000)));
  const PeerFramePtr came = frame(*pair.listener);
  const PeerFramePtr on = step(2, came->shared_data());
  CHECK(on->data().data() == came->data().data());
  pair.listener->send(pair.to_dialer, on);
  CHECK(same(*frame(*pair.dialer), *on));
}

TEST_CASE("an unknown key gets nothing, while a known one works") {
  Pair pair;
  PeerKeys stranger(pair.scratch / "stranger", "stranger");
  stranger.know("anna", pair.anna.own().public_key);  // it has learned anna's, who does not know it
  const auto outsider = open_peers(stranger);
  FlakyProxy proxy("127.0.0.1", pair.listener->port());
  const int number = outsider->dial(local(proxy.port()), {pair.anna.own().public_key});
  CHECK(silent(*outsider, 1));
  pair.connect();
  pair.dialer->send(pair.to_listener, step(1));
  CHECK(frame(*pair.listener)->header.request == 1);
  CHECK(silent(*outsider, 1));
  CHECK(silent(*pair.listener, 0));
  CHECK_FALSE(outsider->stats(number).here);
  CHECK_THROWS_WITH(outsider->send(number, step(1)), containing("is not here"));
  CHECK(proxy.connections() > 0);  // it has tried

  // Once it is known it comes in.
  pair.anna.know("stranger", stranger.own().public_key);
  outsider->hang_up(number);
  outsider->dial(local(proxy.port()), {pair.anna.own().public_key});
  here(*outsider);
  CHECK(here(*pair.listener).name == "stranger");
  // And goes when it is forgotten.
  pair.anna.forget("stranger");
  CHECK_THAT(gone(*pair.listener).why, containing("not a known one any more"));
  gone(*outsider);
  CHECK(silent(*outsider, 1));
}

TEST_CASE("whoever says something else than a peer is told no more than that CURVE is spoken") {
  Pair pair;
  const int port = pair.listener->port();
  std::string greeting("\xff\0\0\0\0\0\0\0\1\x7f\3\1NULL", 16);  // ZMTP 3.1 without keys
  greeting.resize(64);
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(1000, '\0'), std::string(1000, '\xff'), greeting}) {
    const std::string got = answer_to(port, bytes);
    CAPTURE(got.size());
    CHECK(got.size() <= 64);  // ZMTP's greeting: its version and CURVE
    CHECK(got.find("anna") == got.npos);
  }
  pair.connect();
  CHECK(silent(*pair.listener, 0.1));
}

TEST_CASE("a peer that has another key than expected is not there") {
  Pair pair;
  const PeerKeys carl(pair.scratch / "carl", "carl");
  pair.ben.know("carl", carl.own().public_key);
  const int number = pair.dialer->dial(local(pair.listener->port()), {carl.own().public_key});
  CHECK(silent(*pair.dialer, 2));
  CHECK(silent(*pair.listener, 0));
  CHECK_FALSE(pair.dialer->stats(number).here);
  pair.dialer->hang_up(number);
  // Of several keys the right one is found.
  pair.to_listener =
      pair.dialer->dial(local(pair.listener->port()), {carl.own().public_key, pair.anna.own().public_key});
  pair.meet();
  CHECK_THROWS_WITH(pair.dialer->dial(local(1), {std::string(40, '0')}), containing("is not a known key"));
  CHECK_THROWS_WITH(pair.dialer->dial(local(1), {}), containing("no key is known"));
}

TEST_CASE("a peer that is cut off is gone within 1.5 s, and here again when it can be") {
  Pair pair;
  FlakyProxy proxy("127.0.0.1", pair.listener->port());
  pair.connect(proxy.port());
  pair.dialer->send(pair.to_listener, step(1));
  CHECK(frame(*pair.listener)->header.request == 1);

  proxy.order("stall");
  const double out = now();
  pair.dialer->send(pair.to_listener, step(2));
  CHECK_THAT(gone(*pair.listener).why, containing("no sign of life"));
  const double listener_knew = now() - out;
  CHECK_THAT(gone(*pair.dialer).why, containing("no sign of life"));
  const double dialer_knew = now() - out;
  CHECK(listener_knew < 1.5 + 0.5);  // beside processes that have the machine
  CHECK(dialer_knew < 1.5 + 0.5);
  CHECK_THROWS_WITH(pair.dialer->send(pair.to_listener, step(3)), containing("is not here"));
  CHECK(pair.dialer->room(pair.to_listener) == 0);

  // What was under way is dropped when the cable is in again, and the connection is another one.
  const int before = pair.to_dialer;
  proxy.order("go");
  pair.meet();
  CHECK(pair.to_dialer == before);
  pair.dialer->send(pair.to_listener, step(4));
  CHECK(frame(*pair.listener)->header.request == 4);
  CHECK(pair.dialer->stats(pair.to_listener).times_here == 2);
}

TEST_CASE("a peer whose connection ends is gone at once, and a frame for it is for nobody after it") {
  Pair pair;
  FlakyProxy proxy("127.0.0.1", pair.listener->port());
  pair.connect(proxy.port());
  const double cut = now();
  proxy.order("cut");
  CHECK_THAT(gone(*pair.dialer).why, containing("the connection closed"));
  gone(*pair.listener);
  CHECK(now() - cut < 1.5 + 0.5);
  // It comes back, and until the caller has heard of that nothing is sent to it.
  const double till = now() + kPatience;
  while (!pair.dialer->stats(pair.to_listener).here && now() < till)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK_THROWS_WITH(pair.dialer->send(pair.to_listener, step(1)), containing("was gone and came back"));
  pair.meet();
  pair.dialer->send(pair.to_listener, step(2));
  CHECK(frame(*pair.listener)->header.request == 2);
}

TEST_CASE("a caller that computes for seconds is not gone") {
  Pair pair;
  pair.connect();
  const double till = now() + 3;
  volatile double sum = 0;
  while (now() < till) sum = sum + 1;
  CHECK(pair.dialer->stats(pair.to_listener).here);
  CHECK(silent(*pair.dialer, 0));
  CHECK(silent(*pair.listener, 0));
  const double round_trip = pair.dialer->stats(pair.to_listener).round_trip;
  CHECK(round_trip > 0);
  CHECK(round_trip < 1);
}

TEST_CASE("a large frame on a slow link keeps its peers here, and arrives") {
  Pair pair;
  FlakyProxy proxy("127.0.0.1", pair.listener->port());
  pair.connect(proxy.port());
  proxy.order("rate 2000000");
  proxy.order("delay 30");
  const PeerFramePtr sent = step(1, random_data(6 << 20));  // 3 s, twice what a silent peer has
  pair.dialer->send(pair.to_listener, sent);
  CHECK(same(*frame(*pair.listener), *sent));
  CHECK(pair.dialer->stats(pair.to_listener).times_here == 1);
  CHECK(pair.dialer->stats(pair.to_listener).round_trip > 0.005);  // behind the frame; before it some 0.3 ms
}

TEST_CASE("a frame over the limit of either side is refused, and the link goes on") {
  Pair pair(1000, 5000);
  pair.connect();
  CHECK_THROWS_WITH(pair.dialer->send(pair.to_listener, step(1, random_data(1001))),
                    containing("is 1001 bytes, and peer 1 takes at most 1000"));
  CHECK_THROWS_WITH(pair.listener->send(pair.to_dialer, step(1, random_data(1001))), containing("at most 1000"));
  pair.dialer->send(pair.to_listener, step(2, random_data(1000)));
  CHECK(frame(*pair.listener)->header.request == 2);
  CHECK_THROWS_WITH(pair.dialer->send(pair.to_listener, std::make_shared<PeerFrame>(PeerHeader{}, "", nullptr)),
                    containing("the transport's own"));
  CHECK_THROWS_WITH(pair.dialer->send(77, step(1)), containing("there is no peer 77"));
}

TEST_CASE("a peer that takes nothing holds its senders up, not their memory, and is not gone") {
  constexpr size_t kLimit = 1 << 20;
  Pair pair(kLimit, kLimit);
  pair.connect();
  const auto data = random_data(kLimit);
  uint64_t sent = 0;
  double till = now() + 2;
  std::string code;
  while (now() < till) {
    try {
      pair.dialer->send(pair.to_listener, step(sent, data));
      ++sent;
    } catch (const Error& error) {
      code = error.code;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  CHECK(code == "full");
  CHECK(sent >= 4);   // two windows of two frames each
  CHECK(sent <= 10);  // a frame's text may be a megabyte too, for which there is room
  CHECK(pair.dialer->room(pair.to_listener) < kLimit);
  for (uint64_t i = 0; i < sent; ++i) CHECK(frame(*pair.listener)->header.request == i);
  till = now() + kPatience;
  while (pair.dialer->room(pair.to_listener) < kLimit && now() < till)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (uint64_t i = 0; i < 50; ++i) {  // and on it goes
    pair.dialer->send(pair.to_listener, step(i, data));
    CHECK(frame(*pair.listener)->header.request == i);
  }
}

TEST_CASE("bytes that are changed on the way end the connection, and no false frame comes") {
  Pair pair;
  FlakyProxy proxy("127.0.0.1", pair.listener->port());
  pair.connect(proxy.port());
  const PeerFramePtr sent = step(1, random_data(1 << 20));
  proxy.order("corrupt 500000");
  pair.dialer->send(pair.to_listener, sent);
  gone(*pair.listener);
  gone(*pair.dialer);
  pair.meet();
  pair.dialer->send(pair.to_listener, sent);
  CHECK(same(*frame(*pair.listener), *sent));
}

TEST_CASE("whatever is cut, frames come in order, none twice and none of a former connection") {
  Pair pair;
  FlakyProxy proxy("127.0.0.1", pair.listener->port());
  pair.connect(proxy.port());
  std::mt19937 engine(1);
  uint64_t visit = 1, sent = 0, expected = 0, came = 0;  // request: the visit, then the number of the frame in it
  bool there = true, back = true;
  int cuts = 0;
  const auto look = [&](double seconds) {
    if (const auto event = pair.dialer->wait(0); event && event->kind == PeerEvent::Kind::here)
      there = true, ++visit, sent = 0;
    else if (event && event->kind == PeerEvent::Kind::gone)
      there = false;
    const auto event = pair.listener->wait(seconds);
    if (!event) return;
    if (event->kind == PeerEvent::Kind::here) back = true, expected = 0;
    if (event->kind == PeerEvent::Kind::gone) back = false;
    if (event->kind != PeerEvent::Kind::frame) return;
    const uint64_t request = event->frame->header.request;
    REQUIRE(back);
    REQUIRE(request % 100000 == expected);
    REQUIRE(event->frame->data().size() == request % 7 * 50000);
    if (expected == 0) REQUIRE(request / 100000 == pair.dialer->stats(pair.to_listener).times_here);
    ++expected, ++came;
  };
  while (cuts < 25) {
    try {
      const uint64_t request = visit * 100000 + sent;
      pair.dialer->send(pair.to_listener, step(request, random_data(request % 7 * 50000)));
      ++sent;
    } catch (const Error& error) {
      REQUIRE((error.code == "peer" || error.code == "full"));
    }
    look(there ? 0 : 0.02);
    if (there && back && sent > 5 && engine() % 40 == 0) {
      proxy.order(engine() % 2 ? "cut" : "corrupt " + std::to_string(1 + engine() % 100000));
      ++cuts;
    }
  }
  CHECK(came > 100);
}

TEST_CASE("bytes of a connection that are sent once more gain nothing") {
  Pair pair;
  FlakyProxy proxy("127.0.0.1", pair.listener->port());
  pair.connect(proxy.port());
  pair.dialer->send(pair.to_listener, step(1, random_data(1000)));
  CHECK(frame(*pair.listener)->header.request == 1);
  const std::string recorded = proxy.recorded();
  CHECK(recorded.size() > 1000);
  for (int i = 0; i < 3; ++i) CHECK(answer_to(pair.listener->port(), recorded).size() < 300);  // greeting and WELCOME
  CHECK(silent(*pair.listener, 0.2));
  CHECK(pair.listener->stats(pair.to_dialer).here);
}

TEST_CASE("peers that close are gone for others at once, what was sent before arrives, and closing does not hang") {
  Pair pair;
  pair.connect();
  pair.dialer->send(pair.to_listener, step(1, random_data(3 << 20)));
  pair.dialer->close(kPatience);
  CHECK(frame(*pair.listener)->header.request == 1);
  gone(*pair.listener);
  CHECK_THROWS_WITH(pair.dialer->wait(0), containing("were closed"));
  pair.dialer->close(1);

  FlakyProxy proxy("127.0.0.1", pair.listener->port());
  auto other = open_peers(pair.ben);
  const int number = other->dial(local(proxy.port()), {pair.anna.own().public_key});
  here(*other), here(*pair.listener);
  const PeerFramePtr large = step(2, random_data(64 << 20));
  proxy.order("stall");
  other->send(number, large);
  const double began = now();
  other.reset();
  CHECK(now() - began < 1);
}

TEST_CASE("a hung up peer is gone on both sides and is not dialed again") {
  Pair pair;
  pair.connect();
  pair.dialer->hang_up(pair.to_listener);
  gone(*pair.dialer);
  gone(*pair.listener);
  CHECK(silent(*pair.dialer, 0.7));
  CHECK(silent(*pair.listener, 0));
}

TEST_CASE("many peers of one process and one key meet") {
  const Scratch scratch;
  const PeerKeys keys(scratch / "keys", "anna");
  const auto listener = open_peers(keys, "127.0.0.1:0");
  std::vector<std::unique_ptr<Peers>> dialers;
  for (int i = 0; i < 6; ++i) {
    dialers.push_back(open_peers(keys));
    const int number = dialers.back()->dial(local(listener->port()), {keys.own().public_key});
    CHECK(here(*dialers.back()).name == "anna");
    dialers.back()->send(number, step(static_cast<uint64_t>(i)));
  }
  std::map<int, int> frames;
  for (int i = 0; i < 12; ++i) {
    const auto event = listener->wait(kPatience);
    REQUIRE(event);
    if (event->kind == PeerEvent::Kind::frame) ++frames[event->peer];
  }
  CHECK(frames.size() == 6);
}

TEST_CASE("addresses that are none are refused") {
  const Scratch scratch;
  const PeerKeys keys(scratch / "keys");
  const auto peers = open_peers(keys);
  CHECK(peers->port() == 0);
  for (const char* bad :
       {"", "host", ":1", "host:", "host:0", "host:65536", "host:1a", "a b:1", "x;y:1", "tcp://h:1", "::1:5"})
    CHECK_THROWS_WITH(peers->dial(bad, {keys.own().public_key}), containing("is no address of a peer"));
  CHECK_THROWS_WITH(peers->dial("no..name:28766", {keys.own().public_key}),
                    containing("no machine is known as no..name"));
  const auto listener = open_peers(keys, "127.0.0.1:0");
  CHECK_THROWS_WITH(open_peers(keys, local(listener->port())), containing("cannot listen at 127.0.0.1:"));
}

TEST_CASE("who knows its key hears the beacon of a peer that listens, beside datagrams of others") {
  Pair pair;
  constexpr int kPort = 28799;  // no one's
  std::unique_ptr<PeerBroadcast> ear, voice, noise;
  try {
    ear = peer_library().broadcast(kPort, "", "");
    voice = peer_library().broadcast(kPort, "", make_beacon(pair.listener->port(), pair.anna.own().public_key));
    noise = peer_library().broadcast(kPort, "", "no beacon of a peer");
  } catch (const Error& error) {
    WARN("SKIPPED: " << error.what());
    return;
  }
  std::string address, datagram;
  HeardBeacon heard;
  bool found = false;
  for (const double till = now() + kPatience; !found && now() < till;)
    found = ear->hear(0.1, &address, &datagram) && recognise_beacon(datagram, pair.ben.known(), &heard);
  REQUIRE(found);
  CHECK(heard.name == "anna");
  CHECK(heard.port == pair.listener->port());
  CHECK_THROWS_WITH(peer_library().broadcast(kPort, "nothere", ""), containing("nothere cannot broadcast"));
}

}  // namespace qeng
