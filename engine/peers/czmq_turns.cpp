// The turns of CzmqPeers: what is read, sent and looked at.
#include <unistd.h>

#include <algorithm>

#include "engine/peers/czmq_peers.h"

namespace qeng {
namespace {

constexpr int kMessagesATurn = 64;   // of one socket: the others, and time, are looked at between
constexpr size_t kMostLinks = 1024;  // that are remembered: a known peer could dial without end

std::string user_of(ZmqMessage& message) {
  const char* id = zmq_msg_gets(message.get(), "User-Id");
  return id ? id : "";
}

}  // namespace

void CzmqPeers::run() {
  std::string why;
  try {
    for (;;) {
      {
        std::unique_lock<std::mutex> lock(lock_);
        if (callers_ > 0 && !hurry_) standby_.wait_for(lock, kTick, [this] { return stop_ || hurry_; });
        if (stop_) break;
        if (callers_ > 0 && !hurry_) continue;
        hurry_ = false;
      }
      turn(kTick, false);
    }
  } catch (const std::exception& error) {
    why = error.what();
  }
  const std::lock_guard<std::mutex> mine(turns_);
  over_ = true;
  for (const PeerLinkPtr& link : links_) {
    if (link->dealer && linger_ms_) zmq_setsockopt(link->dealer.get(), ZMQ_LINGER, &linger_ms_, sizeof linger_ms_);
    link->close_dealer();
  }
  if (listener_ && linger_ms_) zmq_setsockopt(listener_.get(), ZMQ_LINGER, &linger_ms_, sizeof linger_ms_);
  listener_.reset();
  gate_.reset();
  const std::lock_guard<std::mutex> lock(lock_);
  broken_ = why;
  changed_.notify_all();
}

void CzmqPeers::turn(Milliseconds most, bool by_caller) {
  std::vector<pollfd> sleep_on = {{wake_fd_, POLLIN, 0}};
  if (by_caller) sleep_on.push_back({event_fd_, POLLIN, 0});
  {
    const std::lock_guard<std::mutex> mine(turns_);
    if (over_) return;
    const auto left = std::chrono::ceil<Milliseconds>(tick_at_ - PeerClock::now());
    most = look(&sleep_on) ? Milliseconds(0) : std::clamp(held_up_ ? Milliseconds(1) : left, Milliseconds(0), most);
  }
  ::poll(sleep_on.data(), sleep_on.size(), static_cast<int>(most.count()));
  for (size_t i = 0; i < (by_caller ? 2 : 1); ++i) {
    uint64_t count = 0;
    if (sleep_on[i].revents) [[maybe_unused]]
      const ssize_t got = ::read(sleep_on[i].fd, &count, sizeof count);
  }
  const std::lock_guard<std::mutex> mine(turns_);
  if (over_) return;
  by_caller_ = by_caller;
  take_commands();
  if (gate_) gate_->answer();
  now_ = PeerClock::now();
  if (listener_) receive_from_dialers();
  for (const PeerLinkPtr& link : links_)
    if (link->dealer) receive_from_dialed(link);
  now_ = PeerClock::now();  // after what has come was read: a process that was stopped itself finds others' signs first
  if (now_ >= tick_at_) tick();
  held_up_ = false;
  for (const PeerLinkPtr& link : links_)
    if (link->state == State::here) send_waiting(link);
}

// Is there something to read now? If not, what to sleep on.
bool CzmqPeers::look(std::vector<pollfd>* sleep_on) {
  const auto asks = [&](ZmqSocket& socket) {
    sleep_on->push_back({socket.fd(), POLLIN, 0});
    return socket.readable();
  };
  if (gate_ && asks(gate_->socket())) return true;
  if (listener_ && asks(listener_)) return true;
  for (const PeerLinkPtr& link : links_)
    if (link->dealer && (asks(link->dealer) || asks(link->monitor))) return true;
  return false;
}

void CzmqPeers::take_commands() {
  std::vector<PeerLinkPtr> ended;
  {
    const std::lock_guard<std::mutex> lock(lock_);
    links_.insert(links_.end(), dialed_.begin(), dialed_.end());
    dialed_.clear();
    for (const PeerLinkPtr& link : links_)
      if (std::exchange(link->hang_up, false)) ended.push_back(link);
  }
  for (const PeerLinkPtr& link : ended) {
    if (link->state == State::here) goes(link, "it was hung up");
    link->close_dealer();
    if (link->dialed) std::erase(links_, link);
  }
}

// ---------------------------------------------------------------- connections

std::string CzmqPeers::name_of(const std::string& key) const {
  if (options_.plain) return "plain";
  try {
    return options_.who(key);
  } catch (const std::exception&) {  // a folder that cannot be read lets nobody in
    return "";
  }
}

PeerGreeting CzmqPeers::own_greeting(const PeerLink& link) const {
  return {who_, window_for(options_.limit), options_.limit, link.dialed ? link.own_dial : link.their_dial,
          link.incarnation};
}

void CzmqPeers::call(const PeerLinkPtr& link) {
  if (name_of(link->key).empty()) return refused(link);  // it was forgotten
  ++link->incarnation;
  link->state = State::calling;
  link->call_until = now_ + kPatience;
  link->wire.emplace(options_.limit);
  try {
    link->dealer = ZmqSocket(context_.get(), ZMQ_DEALER);
    ZmqSocket& socket = link->dealer;
    set_up(socket);
    if (!options_.plain) socket.set(ZMQ_CURVE_SERVERKEY, link->key);
    const std::string& address = link->addresses[link->rests % link->addresses.size()];
    if (address.find('[') != std::string::npos) socket.set(ZMQ_IPV6, 1);
    socket.set(ZMQ_RECONNECT_IVL, -1);  // what is lost with a connection is not for the next one
    socket.set(ZMQ_CONNECT_TIMEOUT, static_cast<int>(kPatience.count()));
    const std::string monitor =
        "inproc://monitor-" + std::to_string(link->number) + "-" + std::to_string(link->incarnation);
    link->monitor = ZmqSocket(context_.get(), ZMQ_PAIR);
    if (zmq_socket_monitor(socket.get(), monitor.c_str(), ZMQ_EVENT_CLOSED | ZMQ_EVENT_DISCONNECTED) != 0 ||
        zmq_connect(link->monitor.get(), monitor.c_str()) != 0 || zmq_connect(socket.get(), address.c_str()) != 0 ||
        send_own(*link, greet_frame(own_greeting(*link))) != Sent::yes)
      rest(*link);
  } catch (const Error&) {  // no socket now
    rest(*link);
  }
}

void CzmqPeers::rest(PeerLink& link) {
  link.close_dealer();
  link.state = State::resting;
  link.tried = 0;
  ++link.rests;
  link.rest_until = now_ + link.rest;
  link.rest = std::min(2 * link.rest, kLongestRest);
}

// With this key nobody speaks there, or may be spoken to: with another one, perhaps.
void CzmqPeers::refused(const PeerLinkPtr& link) {
  const auto next = std::find(link->keys.begin(), link->keys.end(), link->key) - link->keys.begin() + 1;
  link->key = link->keys[static_cast<size_t>(next) % link->keys.size()];
  if (++link->tried < link->keys.size()) {
    link->close_dealer();
    return call(link);
  }
  rest(*link);
}

void CzmqPeers::comes(const PeerLinkPtr& link, const PeerGreeting& greeting) {
  PeerEvent event{.kind = PeerEvent::Kind::here, .key = link->key, .name = name_of(link->key)};
  link->state = State::here;
  link->wire->greeted(greeting.window);
  link->heard = link->ping_at = now_;
  link->pong_for.reset();
  link->rest = kFirstRest;
  const std::lock_guard<std::mutex> lock(lock_);
  link->here = link->stats.here = true;
  link->limit = greeting.limit;
  link->taken = link->taken_told = 0;
  link->tell_taken = false;
  ++link->stats.times_here;
  queue(link, std::move(event));
}

void CzmqPeers::goes(const PeerLinkPtr& link, const std::string& why) {
  routes_.erase(link->route);
  link->route.clear();
  link->wire.reset();
  rest(*link);
  const std::lock_guard<std::mutex> lock(lock_);
  link->here = link->stats.here = false;
  link->out.clear();
  link->stats.unsent = 0;
  queue(link, {.kind = PeerEvent::Kind::gone, .why = why});
}

// Under the lock.
void CzmqPeers::queue(const PeerLinkPtr& link, PeerEvent event) {
  event.peer = link->number;
  events_.push_back({std::move(event), link, link->stats.times_here});
  if (by_caller_ || callers_ == 0) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event_fd_, &one, sizeof one);
}

// ---------------------------------------------------------------- what comes

void CzmqPeers::receive_from_dialers() {
  for (int i = 0; i < kMessagesATurn; ++i) {
    ZmqMessage route, message;
    if (!listener_.receive(route)) return;
    if (!route.more() || !listener_.receive(message)) continue;
    bool alone = true;
    for (bool more = message.more(); more; alone = false) {
      ZmqMessage rest;
      more = listener_.receive(rest) && rest.more();
    }
    const auto found = routes_.find(route.text());
    const PeerLinkPtr link = found == routes_.end() ? nullptr : found->second;
    const std::span<const uint8_t> bytes(message.data(), message.size());
    try {
      if (!alone) fail("format", "a peer's message has several parts");
      link ? received(link, bytes) : greeted_by(route.text(), user_of(message), bytes);
    } catch (const Error& error) {
      if (link) goes(link, error.what());
    }
  }
}

void CzmqPeers::receive_from_dialed(const PeerLinkPtr& link) {
  ZmqMessage event;
  const bool ended = link->monitor.receive(event);
  const bool reached = ended && event.size() >= 2 && (event.data()[0] | event.data()[1] << 8) == ZMQ_EVENT_DISCONNECTED;
  try {
    for (int i = 0; i < kMessagesATurn || ended; ++i) {
      ZmqMessage message;
      if (!link->dealer.receive(message)) break;
      if (message.more()) fail("format", "a peer's message has several parts");
      received(link, {message.data(), message.size()});
    }
    if (ended) fail("peer", "the connection closed");
  } catch (const Error& error) {
    link->state == State::here ? goes(link, error.what()) : reached ? refused(link) : rest(*link);
  }
}

void CzmqPeers::greeted_by(const std::string& route, const std::string& key, std::span<const uint8_t> message) {
  PeerWire wire(0);
  const PeerFramePtr first = wire.receive(message, 0);
  if (!first || name_of(key).empty()) return;
  const PeerGreeting greeting = greeting_of(*first);
  const PeerLinkPtr link = accepted(key, greeting);
  if (!link) return;
  if (link->state == State::here) goes(link, "it dialed again");
  link->route = route;
  link->incarnation = greeting.incarnation;
  link->wire.emplace(options_.limit);
  routes_[route] = link;
  comes(link, greeting);
  if (send_own(*link, greet_frame(own_greeting(*link))) != Sent::yes) goes(link, "the connection closed");
}

// The peer that dials so, as it was known before or a new one; nullptr where there are too many.
PeerLinkPtr CzmqPeers::accepted(const std::string& key, const PeerGreeting& greeting) {
  size_t dialers = 0;
  PeerLinkPtr gone;
  for (const PeerLinkPtr& link : links_) {
    if (link->dialed) continue;
    if (link->key == key && link->their_who == greeting.who && link->their_dial == greeting.dial) return link;
    if (link->state != State::here && !gone) gone = link;
    ++dialers;
  }
  const std::lock_guard<std::mutex> lock(lock_);
  if (dialers >= kMostLinks) {
    if (!gone) return nullptr;
    std::erase(links_, gone);
    by_number_.erase(gone->number);
  }
  const auto link = std::make_shared<PeerLink>(PeerLink{
      .number = ++last_number_, .dialed = false, .key = key, .their_who = greeting.who, .their_dial = greeting.dial});
  links_.push_back(link);
  by_number_[link->number] = link;
  return link;
}

void CzmqPeers::received(const PeerLinkPtr& link, std::span<const uint8_t> message) {
  uint64_t taken = 0;
  {
    const std::lock_guard<std::mutex> lock(lock_);
    taken = link->taken;
    link->stats.bytes_received += message.size();
  }
  const PeerFramePtr frame = link->wire->receive(message, taken);
  link->heard = now_;
  if (!frame) return;
  if (link->state == State::calling) {
    const PeerGreeting greeting = greeting_of(*frame);
    if (greeting.incarnation != link->incarnation) fail("format", "a peer greets another connection");
    return comes(link, greeting);
  }
  if (is_transports_own(*frame)) return received_own(link, *frame);
  const std::lock_guard<std::mutex> lock(lock_);
  ++link->stats.frames_received;
  queue(link, {.kind = PeerEvent::Kind::frame, .frame = frame});
}

void CzmqPeers::received_own(const PeerLinkPtr& link, const PeerFrame& frame) {
  const PeerHeader& header = frame.header;
  if (header.type == PeerFrameType::greet) fail("format", "a peer greets twice");
  if (header.epoch != link->incarnation) fail("format", "a peer's sign of life is of another connection");
  link->wire->allow(header.position);
  if (header.type == PeerFrameType::ping) {
    link->pong_for = header.request;
    return;
  }
  const double seconds = std::chrono::duration<double>(PeerClock::now().time_since_epoch()).count() -
                         static_cast<double>(header.request) * 1e-6;
  const std::lock_guard<std::mutex> lock(lock_);
  double& mean = link->stats.round_trip;
  if (seconds >= 0 && seconds < 10) mean = mean == 0 ? seconds : mean + (seconds - mean) / 8;
}

// ---------------------------------------------------------------- what goes

void CzmqPeers::tick() {
  tick_at_ = now_ + kTick;
  for (const PeerLinkPtr& link : links_) {
    if (link->state == State::here) {
      if (now_ - link->heard > kSilence)
        goes(link, "no sign of life for 1.5 s");
      else if (name_of(link->key).empty())
        goes(link, "its key is not a known one any more");
    } else if (link->dialed) {
      if (link->state == State::calling && now_ > link->call_until) rest(*link);
      if (link->state == State::resting && now_ >= link->rest_until) call(link);
    }
  }
}

// The pong that is asked for and the ping that is due, where a socket takes them now: each turn begins with them, so that
// frames that wait do not keep them out.
void CzmqPeers::send_signs(const PeerLinkPtr& link) {
  if (link->pong_for) {
    const Sent sent = send_sign(*link, PeerFrameType::pong, *link->pong_for);
    if (sent == Sent::lost) return goes(link, "the connection closed");
    if (sent == Sent::yes) link->pong_for.reset();
  }
  bool tell = false;
  {
    const std::lock_guard<std::mutex> lock(lock_);
    tell = link->tell_taken;
  }
  if (!tell && now_ < link->ping_at) return;
  const auto now = PeerClock::now().time_since_epoch();
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  const Sent sent = send_sign(*link, PeerFrameType::ping, static_cast<uint64_t>(us));
  if (sent == Sent::lost) return goes(link, "the connection closed");
  if (sent == Sent::yes) link->ping_at = now_ + kPingEvery;
}

CzmqPeers::Sent CzmqPeers::send_sign(PeerLink& link, PeerFrameType type, uint64_t request) {
  uint64_t taken = 0;
  {
    const std::lock_guard<std::mutex> lock(lock_);
    taken = link.taken;
  }
  const Sent sent = send_own(link, PeerFrame({type, request, taken, link.incarnation}, "", nullptr));
  if (sent != Sent::yes) return sent;
  const std::lock_guard<std::mutex> lock(lock_);
  link.taken_told = taken;
  link.tell_taken = false;
  return sent;
}

void CzmqPeers::send_waiting(const PeerLinkPtr& link) {
  send_signs(link);
  if (link->state != State::here) return;
  for (int i = 0; i < kMessagesATurn; ++i) {
    PeerFramePtr frame;
    {
      const std::lock_guard<std::mutex> lock(lock_);
      if (!link->out.empty()) frame = link->out.front();
    }
    if (!frame || !link->wire->may_send(*frame)) return;
    ZmqMessage message(link->wire->next_message(*frame));
    link->wire->write_message(*frame, message.data());
    const Sent sent = send_message(*link, message);
    if (sent == Sent::lost) return goes(link, "the connection closed");
    if (sent == Sent::not_now) {
      held_up_ = true;
      return;
    }
    if (!link->wire->sent_message(*frame)) continue;
    const std::lock_guard<std::mutex> lock(lock_);
    link->out.pop_front();
    link->stats.unsent -= cost_of(*frame);
    ++link->stats.frames_sent;
    if (link->out.empty()) changed_.notify_all();
  }
  held_up_ = true;  // there is more, after a look at the others
}

CzmqPeers::Sent CzmqPeers::send_message(PeerLink& link, ZmqMessage& message) {
  const size_t bytes = message.size();
  const auto failed = [] { return zmq_errno() == EAGAIN ? Sent::not_now : Sent::lost; };
  if (link.dialed) {
    if (!link.dealer.send(message)) return failed();
  } else {
    ZmqMessage route(link.route);
    if (!listener_.send(route, ZMQ_SNDMORE)) return failed();
    if (!listener_.send(message)) return failed();
  }
  const std::lock_guard<std::mutex> lock(lock_);
  link.stats.bytes_sent += bytes;
  return Sent::yes;
}

CzmqPeers::Sent CzmqPeers::send_own(PeerLink& link, const PeerFrame& frame) {
  ZmqMessage message(own_message(frame));
  return send_message(link, message);
}

}  // namespace qeng
