// Peers in one process, each with a folder of keys, for the tests of engine/peers.
#pragma once
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>

#include "engine/peers/keys.h"
#include "engine/peers/peers.h"
#include "kernels/error.h"
#include "tests/catch.h"

namespace qeng::peers_test {

namespace fs = std::filesystem;

// Seconds that a test waits for what has to come: other processes may have the machine.
constexpr double kPatience = 20;

class Scratch {
 public:
  Scratch() {
    static int count = 0;
    folder_ = fs::temp_directory_path() / ("qeng_peers_" + std::to_string(::getpid()) + "_" + std::to_string(count++));
    fs::remove_all(folder_), fs::create_directories(folder_);
  }
  ~Scratch() { fs::remove_all(folder_); }
  Scratch(const Scratch&) = delete;
  std::string operator/(const std::string& name) const { return (folder_ / name).string(); }

 private:
  fs::path folder_;
};

inline void acquaint(PeerKeys& a, PeerKeys& b) {
  a.know(b.own().name, b.own().public_key);
  b.know(a.own().name, a.own().public_key);
}

inline std::unique_ptr<Peers> open_peers(const PeerKeys& keys, const std::string& listen = "",
                                         size_t limit = kMaxPeerData) {
  return peer_library().open({.listen = listen,
                              .limit = limit,
                              .public_key = keys.own().public_key,
                              .secret_key = keys.own().secret_key,
                              .who = [&keys](const std::string& key) { return keys.name_of(key); }});
}

inline std::string local(int port) { return "127.0.0.1:" + std::to_string(port); }

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The next event of that kind; others before it are an error, but for those of signs that a test does not ask for.
inline PeerEvent next(Peers& peers, PeerEvent::Kind kind) {
  const std::optional<PeerEvent> event = peers.wait(kPatience);
  if (!event) FAIL("no event came");
  if (event->kind != kind) FAIL("another event came: " << event->why << event->name);
  return *event;
}
inline PeerEvent here(Peers& peers) { return next(peers, PeerEvent::Kind::here); }
inline PeerEvent gone(Peers& peers) { return next(peers, PeerEvent::Kind::gone); }
inline PeerFramePtr frame(Peers& peers) { return next(peers, PeerEvent::Kind::frame).frame; }

inline PeerFramePtr step(uint64_t request, std::shared_ptr<const PeerData> data = nullptr,
                         const std::string& text = "") {
  return std::make_shared<const PeerFrame>(PeerHeader{peer_frame_type("step"), request}, text, std::move(data));
}

// A listening side and one that dials it, both known to each other.
struct Pair {
  Scratch scratch;
  PeerKeys anna{scratch / "anna", "anna"}, ben{scratch / "ben", "ben"};
  std::unique_ptr<Peers> listener, dialer;
  int to_listener = 0, to_dialer = 0;  // as the other side numbers them

  explicit Pair(size_t listener_limit = kMaxPeerData, size_t dialer_limit = kMaxPeerData) {
    acquaint(anna, ben);
    listener = open_peers(anna, "127.0.0.1:0", listener_limit);
    dialer = open_peers(ben, "", dialer_limit);
  }
  // Through what listens at this port; 0: straight.
  void connect(int port = 0) {
    to_listener = dialer->dial(local(port ? port : listener->port()), {anna.own().public_key});
    meet();
  }
  void meet() {
    const PeerEvent there = here(*dialer), back = here(*listener);
    CHECK(there.peer == to_listener);
    CHECK(there.name == "anna");
    CHECK(back.name == "ben");
    CHECK(back.key == ben.own().public_key);
    to_dialer = back.peer;
  }
};

}  // namespace qeng::peers_test
