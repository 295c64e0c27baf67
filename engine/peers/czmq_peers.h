// Peers by ZeroMQ: a context of its own, a socket that listens (ROUTER), one for each peer that is dialed (DEALER, which
// connects once and is replaced by the next).
//
// Sockets are read, written and timed in turns, one at a time, by whichever thread is there: a caller who waits takes them
// itself, and so does one who sends, so that a frame is not handed from thread to thread, which would double the time of a
// small one. A thread of its own takes them while no caller does.
#pragma once
#include <poll.h>

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
  enum class Sent { yes, not_now, lost };
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

  PeerEvent take_event();  // under the lock

  // What is done in turns, in czmq_turns.cpp.
  void run();
  void turn(Milliseconds most, bool by_caller);
  bool look(std::vector<pollfd>* sleep_on);
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
  void send_signs(const PeerLinkPtr& link);
  Sent send_sign(PeerLink& link, PeerFrameType type, uint64_t request);
  void send_waiting(const PeerLinkPtr& link);
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
  int wake_fd_ = -1, event_fd_ = -1;  // there is something to do; a caller who sleeps has an event
  int port_ = 0;

  // Of turns: locked before lock_, which is held for moments only.
  std::mutex turns_;
  std::optional<CzmqGate> gate_;
  ZmqSocket listener_;
  std::vector<PeerLinkPtr> links_;
  std::map<std::string, PeerLinkPtr> routes_;
  PeerClock::time_point now_, tick_at_;
  bool held_up_ = false;  // a socket took no more: it is asked again soon
  bool by_caller_ = false;
  bool over_ = false;

  std::mutex lock_;
  std::condition_variable changed_, standby_;
  int callers_ = 0;     // that take turns
  bool hurry_ = false;  // the thread has to take them too: a caller left something to send
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
