// One peer as libqeng_peers.so sees it.
#pragma once
#include <chrono>
#include <deque>
#include <optional>

#include "engine/peers/czmq_socket.h"
#include "engine/peers/peers.h"
#include "engine/peers/wire.h"

namespace qeng {

using PeerClock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kPingEvery(static_cast<int>(kPingSeconds * 1000));
constexpr Milliseconds kTick(50);                            // how finely time is looked at
constexpr Milliseconds kSilence(1400);                       // then it is gone: with a tick, within 1.5 s
constexpr Milliseconds kPatience(5000);                      // a connection that has not come to a greeting
constexpr Milliseconds kFirstRest(250), kLongestRest(5000);  // between dials

struct PeerLink {
  enum class State { resting, calling, here };

  const int number;
  const bool dialed;                         // by this process
  const std::vector<std::string> addresses;  // of a dialed one: tried in turn
  const std::vector<std::string> keys;       // of a dialed one: those that it may have, of which one is tried
  std::string key;
  const uint64_t their_who = 0;  // of one that dials: which of its connections this is
  const uint32_t their_dial = 0;
  const uint32_t own_dial = 0;  // of a dialed one, likewise

  // The thread's own.
  State state = State::resting;
  std::string route;          // of one that dials: what the listening socket calls it
  ZmqSocket dealer, monitor;  // of a dialed one
  uint32_t incarnation = 0;
  size_t tried = 0;  // of keys, since the last rest
  size_t rests = 0;  // so far: each is followed by the next of the addresses
  std::optional<PeerWire> wire;
  std::optional<uint64_t> pong_for;  // the request of a ping that is to be answered
  PeerClock::time_point heard, ping_at, call_until, rest_until;
  Milliseconds rest = kFirstRest;

  // Under the lock of Peers.
  bool hang_up = false;
  bool here = false;
  uint64_t limit = 0;  // what it takes of a frame's data
  uint64_t told = 0;   // the times_here that wait() has told of
  std::deque<PeerFramePtr> out;
  uint64_t taken = 0;       // cost of the frames that wait() has given since it came
  uint64_t taken_told = 0;  // what the last ping said of it
  bool tell_taken = false;  // with a ping, before the next is due
  PeerStats stats;

  // The monitor is told first: it would wait for whoever hears it.
  void close_dealer() {
    if (dealer) zmq_socket_monitor(dealer.get(), nullptr, 0);
    monitor.reset();
    dealer.reset();
  }
};
using PeerLinkPtr = std::shared_ptr<PeerLink>;

}  // namespace qeng
