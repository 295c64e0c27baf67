// Peers: processes, mostly on other machines, that come and go, each known by its key. Two of them exchange frames
// (frame.h) over one connection, encrypted by CURVE; either may have dialed the other. A thread has the connections and
// gives signs of life (every kPingSeconds), so that a peer is known to be gone within 1.5 s even while its
// process is stopped or its cable is out, and is not gone because it computes.
//
// libqeng_peers.so has it by ZeroMQ and CZMQ, opened at the first use (peer_library).
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/peers/certificate.h"
#include "engine/peers/frame.h"

namespace qeng {

constexpr double kPingSeconds = 0.25;

struct PeerOptions {
  std::string listen;           // "HOST:PORT", port 0: any free one; "": nobody can dial this process
  size_t limit = kMaxPeerData;  // the most bytes of a frame's data, sent or received
  std::string public_key, secret_key;
  // The name of a key that may connect, "" for others. Called from another thread, and again while a peer is here.
  std::function<std::string(const std::string& key)> who;
  std::function<void(const std::string& key, const std::string& address)> refused;  // told of others, by another thread
  bool plain = false;  // neither keys nor encryption, to measure what they cost; nothing in Lua sets it
};

struct PeerEvent {
  enum class Kind { here, gone, frame } kind = Kind::frame;
  int peer = 0;
  std::string key, name;  // of here
  std::string why;        // of gone
  PeerFramePtr frame;
};

// bytes: of frames, with their headers, those of the transport too. unsent: of frames that send() has taken.
struct PeerStats {
  bool here = false;
  double round_trip = 0;  // seconds, a moving mean of pings: it waits behind what is being sent
  uint64_t bytes_sent = 0, bytes_received = 0, frames_sent = 0, frames_received = 0, unsent = 0;
  uint64_t times_here = 0;
};

// Calls may come from several threads. A number of a peer that never was is Error("value").
class Peers {
 public:
  virtual ~Peers() = default;  // as close(0)

  virtual int port() const = 0;  // 0: it does not listen
  // Dials the peer there, again and again (250 ms to 5 s apart) until hang_up, whenever it is not here. keys: those that
  // it may have, which are tried in turn; to the others it is silent.
  virtual int dial(const std::string& address, const std::vector<std::string>& keys) = 0;
  virtual void hang_up(int peer) = 0;  // of either side: it is gone, and a dialed one is not dialed again

  // Queues a frame, which arrives whole, once and in order, or else the peer goes. Error("peer") where it is not here, or
  // was gone and came back, which the caller has not heard from wait() yet. Error("full") where frames of room() bytes
  // wait: the peer does not take what it gets. Error("value") over the limit.
  virtual void send(int peer, PeerFramePtr frame) = 0;
  virtual size_t room(int peer) = 0;  // bytes that send() takes now; 0 where it is not here
  // The next event; nothing where none comes in time. What a peer has sent counts as taken when it is given here: a peer
  // sends no more than it is allowed to beyond that.
  virtual std::optional<PeerEvent> wait(double seconds) = 0;
  virtual PeerStats stats(int peer) = 0;

  virtual bool sent(double seconds) = 0;   // waits until nothing that send() took is left here
  virtual void close(double seconds) = 0;  // what is left may go out for so long; others hear of it at once
};

// A datagram to everybody on the network, again and again, and those of others. One object does either.
class PeerBroadcast {
 public:
  virtual ~PeerBroadcast() = default;
  // The next datagram of another: its sender's address and its bytes; false where none comes in time.
  virtual bool hear(double seconds, std::string* address, std::string* datagram) = 0;
  // Goes out, or listens, on the networks that there are now. Returns this machine's addresses there.
  virtual std::vector<std::string> refresh() = 0;
};

// What libqeng_peers.so shows: one function, found by name.
class PeerLibrary {
 public:
  virtual ~PeerLibrary() = default;
  virtual std::unique_ptr<Peers> open(const PeerOptions& options) = 0;
  virtual PeerCertificate new_certificate(const std::string& name) = 0;
  virtual std::string public_key_of(const std::string& secret_key) = 0;
  // datagram: sent every half second; "": this one listens. interface: "" is all that can broadcast. Error("io") where
  // that one cannot, or there is none to listen on.
  virtual std::unique_ptr<PeerBroadcast> broadcast(int port, const std::string& interface,
                                                   const std::string& datagram) = 0;
};
using PeerLibraryEntry = PeerLibrary* (*)();
constexpr const char* kPeerLibraryEntry = "qeng_peer_library";

// Error("unsupported") where this qeng has none, with what to install.
PeerLibrary& peer_library();

}  // namespace qeng
