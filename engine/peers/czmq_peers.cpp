#include "engine/peers/czmq_peers.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <random>

namespace qeng {
namespace {

constexpr int kHandshakeMs = 5000;    // longer, and whoever connects and says nothing is cut off
constexpr int kWaitingMessages = 16;  // in a socket: 2 MiB, which signs of life wait behind

// The address as ZeroMQ has it. It takes more than HOST:PORT, none of which is meant here.
std::string endpoint(const std::string& address, bool listens) {
  const size_t colon = address.rfind(':');
  const std::string host = address.substr(0, colon), port = colon == address.npos ? "" : address.substr(colon + 1);
  const bool digits = !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == port.npos;
  const bool name = !host.empty() && host.find_first_of(" \t\r\n/;,@\\") == host.npos &&
                    (host.find(':') == host.npos || (host.front() == '[' && host.back() == ']'));
  const int number = digits ? std::stoi(port) : -1;
  if (!name || number < (listens ? 0 : 1) || number > 65535)
    fail("value", "'", address, "' is no address of a peer: HOST:PORT is, ", listens ? "127.0.0.1:0" : "10.0.0.7:28766",
         " for instance, and [::1]:28766");
  return "tcp://" + host + ":" + (number == 0 ? "*" : port);
}

// Of a peer that is dialed: each address of a name, those of IPv4 first, where a listener is by default.
std::vector<std::string> endpoints(const std::string& address) {
  const std::string whole = endpoint(address, false);
  const size_t colon = address.rfind(':');
  const std::string host = address.substr(0, colon), port = address.substr(colon);
  in_addr numbers;
  if (host.front() == '[' || inet_pton(AF_INET, host.c_str(), &numbers) == 1) return {whole};
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &list))
    fail("value", "no machine is known as ", host, ": ", gai_strerror(error));
  std::vector<std::string> found, later;
  for (const addrinfo* each = list; each; each = each->ai_next) {
    char text[NI_MAXHOST];
    if (getnameinfo(each->ai_addr, each->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) continue;
    if (each->ai_family == AF_INET) found.push_back("tcp://" + std::string(text) + port);
    if (each->ai_family == AF_INET6) later.push_back("tcp://[" + std::string(text) + "]" + port);
  }
  freeaddrinfo(list);
  found.insert(found.end(), later.begin(), later.end());
  if (found.empty()) fail("value", "no address is known of ", host);
  return found;
}

uint64_t drawn_number() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace

CzmqPeers::CzmqPeers(const PeerOptions& options)
    : options_(options),
      who_(drawn_number()),
      context_(zmq_ctx_new()),
      wake_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      event_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!context_ || wake_fd_ < 0 || event_fd_ < 0) fail("io", "no context for peers: ", std::strerror(errno));
  if (options_.limit < 1 || options_.limit > kMaxPeerData)
    fail("value", "peers: limit is ", options_.limit, " bytes of a frame's data, expected 1 to ", kMaxPeerData);
  if (!options_.listen.empty()) {
    gate_.emplace(context_.get(), [this](const std::string& key, const std::string& address) {
      const bool enters = !name_of(key).empty();
      if (!enters && options_.refused) options_.refused(key, address);
      return enters;
    });
    listener_ = ZmqSocket(context_.get(), ZMQ_ROUTER);
    set_up(listener_);
    listener_.set(ZMQ_ROUTER_MANDATORY, 1);  // a message to a connection that has ended is an error
    if (options_.listen.front() == '[') listener_.set(ZMQ_IPV6, 1);
    if (!options_.plain) listener_.set(ZMQ_CURVE_SERVER, 1);
    if (zmq_bind(listener_.get(), endpoint(options_.listen, true).c_str()) != 0)
      fail("io", "peers: cannot listen at ", options_.listen, ": ", zmq_strerror(zmq_errno()));
    char bound[256];
    size_t size = sizeof bound;
    if (zmq_getsockopt(listener_.get(), ZMQ_LAST_ENDPOINT, bound, &size) == 0)
      port_ = std::stoi(std::string(bound).substr(std::string(bound).rfind(':') + 1));
  }
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the threads that were there
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// What a socket of either kind has.
void CzmqPeers::set_up(ZmqSocket& socket) const {
  socket.set(ZMQ_SNDHWM, kWaitingMessages);
  socket.set(ZMQ_RCVHWM, kWaitingMessages);
  socket.set(ZMQ_HANDSHAKE_IVL, kHandshakeMs);
  const int64_t most = kWireMessage + 1024;  // what encryption adds counts
  socket.set(ZMQ_MAXMSGSIZE, &most, sizeof most);
  if (options_.plain) return;
  socket.set(ZMQ_CURVE_PUBLICKEY, options_.public_key);
  socket.set(ZMQ_CURVE_SECRETKEY, options_.secret_key);
}

CzmqPeers::~CzmqPeers() {
  close(0);
  ::close(wake_fd_), ::close(event_fd_);
}

void CzmqPeers::close(double seconds) {
  using Seconds = std::chrono::duration<double>;
  const auto end = PeerClock::now() + Seconds(std::clamp(seconds, 0.0, 1e6));
  sent(seconds);
  {
    const std::lock_guard<std::mutex> lock(lock_);
    const double left = Seconds(end - PeerClock::now()).count();
    linger_ms_ = seconds > 0 ? std::clamp(static_cast<int>(left * 1000), 50, 2000) : 0;
    stop_ = true;
  }
  standby_.notify_all();
  wake();
  if (thread_.joinable()) thread_.join();
}

void CzmqPeers::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_fd_, &one, sizeof one);
}

void CzmqPeers::check_open() const {
  if (!broken_.empty()) fail("internal", "peers: ", broken_);
  if (stop_) fail("closed", "peers: they were closed");
}

PeerLinkPtr CzmqPeers::link_of(int peer) {
  check_open();
  const auto found = by_number_.find(peer);
  if (found == by_number_.end()) fail("value", "peers: there is no peer ", peer);
  return found->second;
}

int CzmqPeers::dial(const std::string& address, const std::vector<std::string>& keys) {
  const std::vector<std::string> where = endpoints(address);
  if (keys.empty()) fail("value", "peers: no key is known that ", address, " could have");
  for (const std::string& key : keys)
    if (name_of(key).empty()) fail("value", "peers: ", key, " is not a known key");
  const std::lock_guard<std::mutex> lock(lock_);
  check_open();
  const auto link = std::make_shared<PeerLink>(PeerLink{.number = ++last_number_,
                                                        .dialed = true,
                                                        .addresses = where,
                                                        .keys = keys,
                                                        .key = keys[0],
                                                        .own_dial = ++last_dial_});
  by_number_[link->number] = link;
  dialed_.push_back(link);
  wake();
  return link->number;
}

void CzmqPeers::hang_up(int peer) {
  const std::lock_guard<std::mutex> lock(lock_);
  link_of(peer)->hang_up = true;
  wake();
}

size_t CzmqPeers::room_of(const PeerLink& link) const {
  if (!link.here || link.told != link.stats.times_here) return 0;
  const uint64_t most = window_for(options_.limit);
  return most > link.stats.unsent ? most - link.stats.unsent : 0;
}

size_t CzmqPeers::room(int peer) {
  const std::lock_guard<std::mutex> lock(lock_);
  return room_of(*link_of(peer));
}

void CzmqPeers::send(int peer, PeerFramePtr frame) {
  if (is_transports_own(*frame))
    fail("value", "peers: frames ", peer_frame_name(frame->header.type), " are the transport's own");
  std::unique_lock<std::mutex> lock(lock_);
  const PeerLinkPtr link = link_of(peer);
  if (!link->here) fail("peer", "peer ", peer, " is not here");
  if (link->told != link->stats.times_here) fail("peer", "peer ", peer, " was gone and came back: wait() tells of it");
  const uint64_t most = std::min<uint64_t>(options_.limit, link->limit);
  if (frame->data().size() > most)
    fail("value", "a frame's data is ", frame->data().size(), " bytes, and peer ", peer, " takes at most ", most);
  if (room_of(*link) < cost_of(*frame) && !link->out.empty())
    fail("full", "peer ", peer, " does not take what it gets: ", link->stats.unsent, " bytes wait for it");
  link->stats.unsent += cost_of(*frame);
  link->out.push_back(std::move(frame));
  if (link->out.size() > 1) return;
  lock.unlock();
  const std::unique_lock<std::mutex> mine(turns_, std::try_to_lock);
  if (!mine) return wake();
  now_ = PeerClock::now();
  held_up_ = false;
  if (link->state == State::here) send_waiting(link);
  if (!held_up_) return;
  lock.lock();
  hurry_ = true;
  lock.unlock();
  standby_.notify_all();
  wake();
}

std::optional<PeerEvent> CzmqPeers::wait(double seconds) {
  const auto end = PeerClock::now() + std::chrono::duration<double>(std::clamp(seconds, 0.0, 1e6));
  for (bool looked = false;; looked = true) {
    const auto left = std::chrono::ceil<Milliseconds>(end - PeerClock::now());
    {
      const std::lock_guard<std::mutex> lock(lock_);
      if (!events_.empty()) return take_event();
      check_open();
      if (looked && left.count() <= 0) return std::nullopt;
      ++callers_;
    }
    struct Leaving {
      CzmqPeers& peers;
      ~Leaving() {
        const std::lock_guard<std::mutex> lock(peers.lock_);
        --peers.callers_;
      }
    } leaving{*this};
    turn(std::clamp(left, Milliseconds(0), kTick), true);
  }
}

PeerEvent CzmqPeers::take_event() {
  Queued next = std::move(events_.front());
  events_.pop_front();
  PeerLink& link = *next.link;
  if (next.event.kind == PeerEvent::Kind::here) link.told = next.times_here;
  if (next.event.kind == PeerEvent::Kind::frame && next.times_here == link.stats.times_here) {
    link.taken += cost_of(*next.event.frame);
    if (link.taken - link.taken_told > window_for(options_.limit) / 4 && !link.tell_taken) {
      link.tell_taken = true;
      wake();
    }
  }
  return std::move(next.event);
}

PeerStats CzmqPeers::stats(int peer) {
  const std::lock_guard<std::mutex> lock(lock_);
  return link_of(peer)->stats;
}

bool CzmqPeers::sent(double seconds) {
  std::unique_lock<std::mutex> lock(lock_);
  const auto nothing_waits = [this] {
    return std::all_of(by_number_.begin(), by_number_.end(), [](const auto& each) { return each.second->out.empty(); });
  };
  changed_.wait_for(lock, std::chrono::duration<double>(std::clamp(seconds, 0.0, 1e6)),
                    [&] { return stop_ || !broken_.empty() || nothing_waits(); });
  return nothing_waits();
}

}  // namespace qeng
