// Peers by ZeroMQ: a context of its own, a socket that listens (ROUTER), one for each peer that is dialed (DEALER, which
// connects once and is replaced by the next), and the thread that has them all.
#pragma once
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/peers/czmq_gate.h"
#include "engine/peers/czmq_link.h"

namespace qeng {

class CzmqPeers final : public Peers {
 public:
  explicit CzmqPeers(const PeerOptions& options);
  ~CzmqPeers() override;
  int port() const override { return port_; }
  int dial(const std::string& address, const std::vector<std::string>& keys) override;
  void hang_up(int peer) override;
  void send(int peer, PeerFramePtr frame) override;
  size_t room(int peer) override;
  std::optional<PeerEvent> wait(double seconds) override;
  PeerStats stats(int peer) override;
  bool sent(double seconds) override;
  void close(double seconds) override;

 private:
  using State = PeerLink::State;
  struct Queued {
    PeerEvent event;
    PeerLinkPtr link;
    uint64_t times_here;
  };

  // What callers do, in czmq_peers.cpp.
  PeerLinkPtr link_of(int peer);  // under the lock
  void check_open() const;        // under the lock
  size_t room_of(const PeerLink& link) const;
  void wake();
  void set_up(ZmqSocket& socket) const;

  // What the thread does, in czmq_thread.cpp.
  void run();
  void turn();
  void poll();
  void take_commands();
  void call(const PeerLinkPtr& link);
  void rest(PeerLink& link);
  void refused(const PeerLinkPtr& link);
  void receive_from_dialers();
  void receive_from_dialed(const PeerLinkPtr& link);
  void received(const PeerLinkPtr& link, std::span<const uint8_t> message);
  void received_own(const PeerLinkPtr& link, const PeerFrame& frame);
  void greeted_by(const std::string& route, const std::string& key, std::span<const uint8_t> message);
  PeerLinkPtr accepted(const std::string& key, const PeerGreeting& greeting);
  void comes(const PeerLinkPtr& link, const PeerGreeting& greeting);
  void goes(const PeerLinkPtr& link, const std::string& why);
  void tick();
  void ping(const PeerLinkPtr& link);
  void send_waiting(const PeerLinkPtr& link);
  enum class Sent { yes, not_now, lost };
  Sent send_message(PeerLink& link, ZmqMessage& message);
  Sent send_own(PeerLink& link, const PeerFrame& frame);
  void queue(const PeerLinkPtr& link, PeerEvent event);
  std::string name_of(const std::string& key) const;  // "": it may not connect
  PeerGreeting own_greeting(const PeerLink& link) const;

  const PeerOptions options_;
  const uint64_t who_;
  struct EndContext {
    void operator()(void* context) const { zmq_ctx_term(context); }
  };
  const std::unique_ptr<void, EndContext> context_;
  int wake_fd_ = -1, port_ = 0;

  // The thread's own.
  std::optional<CzmqGate> gate_;
  ZmqSocket listener_;
  std::vector<PeerLinkPtr> links_;
  std::map<std::string, PeerLinkPtr> routes_;
  PeerClock::time_point now_, tick_at_;
  bool held_up_ = false;  // a socket took no more: it is asked again soon

  std::mutex lock_;
  std::condition_variable changed_;
  std::map<int, PeerLinkPtr> by_number_;
  int last_number_ = 0;
  uint32_t last_dial_ = 0;
  std::vector<PeerLinkPtr> dialed_;  // that the thread has not heard of
  std::deque<Queued> events_;
  bool stop_ = false;
  int linger_ms_ = 0;
  std::string broken_;  // why the thread has ended by itself
  std::thread thread_;
};

}  // namespace qeng
