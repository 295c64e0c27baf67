// A TCP proxy of a bad network, for tests of what connects through it: everything that is dialed at port() goes to one
// target. Orders, one a line, for all connections:
//   delay MS        what comes is passed on so much later, each way
//   rate BYTES      a second, each way; 0: any
//   stall, go       nothing passes, and no connection ends: a cable that is out; and in again
//   cut             ends the connections that there are
//   refuse, accept  ends them, and every new one at once; and takes new ones again
//   corrupt N       flips a bit of the N-th next byte, each way of each connection
// What is lost on the way is no affair of TCP's users, who see delay.
#pragma once
#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <list>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

class FlakyProxy {
 public:
  // port 0: any free one.
  FlakyProxy(const std::string& target_host, int target_port, int port = 0) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_family = AF_INET, hints.ai_socktype = SOCK_STREAM;
    if (::getaddrinfo(target_host.c_str(), std::to_string(target_port).c_str(), &hints, &found) != 0)
      throw std::runtime_error("flaky_proxy: no host " + target_host);
    std::memcpy(&target_, found->ai_addr, sizeof target_);
    ::freeaddrinfo(found);
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const int on = 1;
    ::setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in own{};
    own.sin_family = AF_INET, own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    own.sin_port = htons(static_cast<uint16_t>(port));
    socklen_t size = sizeof own;
    if (::bind(listener_, reinterpret_cast<sockaddr*>(&own), size) != 0 || ::listen(listener_, 64) != 0 ||
        ::getsockname(listener_, reinterpret_cast<sockaddr*>(&own), &size) != 0)
      throw std::runtime_error(std::string("flaky_proxy: cannot listen: ") + std::strerror(errno));
    port_ = ntohs(own.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  ~FlakyProxy() {
    stop_ = true;
    thread_.join();
    links_.clear();
    ::close(listener_);
  }
  FlakyProxy(const FlakyProxy&) = delete;

  int port() const { return port_; }
  // What the dialing side sent in its latest connection, at most a megabyte.
  std::string recorded() {
    const std::lock_guard<std::mutex> lock(lock_);
    return recorded_;
  }
  int connections() const { return connections_; }  // so far

  void order(const std::string& line) {
    std::istringstream words(line);
    std::string word;
    double number = 0;
    words >> word >> number;
    const std::lock_guard<std::mutex> lock(lock_);
    if (word == "delay")
      delay_ = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::milli>(number));
    else if (word == "rate")
      rate_ = number;
    else if (word == "stall" || word == "go")
      stalled_ = word == "stall";
    else if (word == "cut" || word == "refuse")
      cut_ = true, refuses_ = word == "refuse" || refuses_;
    else if (word == "accept")
      refuses_ = false;
    else if (word == "corrupt")
      corrupt_ = static_cast<size_t>(std::max(number, 1.0));
    else
      throw std::runtime_error("flaky_proxy: unknown order '" + line + "'");
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kMostWaiting = 16 << 20, kAtOnce = 64 << 10;

  // One way of a connection.
  struct Flow {
    struct Chunk {
      Clock::time_point due;
      std::string bytes;
    };
    int from = -1, to = -1;
    bool ended = false;
    std::deque<Chunk> chunks;
    size_t waiting = 0, corrupt_in = 0;
    double allowance = 0;  // bytes that the rate lets pass now
  };
  struct Link {
    Flow there, back;
    bool over = false;
    Link(int client, int server) : there{.from = client, .to = server}, back{.from = server, .to = client} {}
    ~Link() { ::close(there.from), ::close(there.to); }
    Link(const Link&) = delete;
  };

  void run() {
    auto before = Clock::now();
    while (!stop_) {
      std::vector<pollfd> waiting = {{listener_, POLLIN, 0}};
      bool due_soon = false;
      {
        const std::lock_guard<std::mutex> lock(lock_);
        for (const Link& link : links_)
          for (const Flow* flow : {&link.there, &link.back}) {
            if (!stalled_ && !flow->ended && flow->waiting < kMostWaiting) waiting.push_back({flow->from, POLLIN, 0});
            due_soon = due_soon || !flow->chunks.empty();
          }
      }
      ::poll(waiting.data(), waiting.size(), due_soon ? 1 : 10);
      const auto now = Clock::now();
      const double seconds = std::chrono::duration<double>(now - before).count();
      before = now;
      const std::lock_guard<std::mutex> lock(lock_);
      if (std::exchange(cut_, false)) links_.clear();
      accept_new();
      if (const size_t at = std::exchange(corrupt_, 0))
        for (Link& link : links_) link.there.corrupt_in = link.back.corrupt_in = at;
      if (stalled_) continue;
      for (Link& link : links_)
        link.over = !pass(link.there, now, seconds, true) || !pass(link.back, now, seconds, false);
      links_.remove_if([](const Link& link) { return link.over; });
    }
  }

  void accept_new() {
    for (;;) {
      const int client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (client < 0) return;
      const int server = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
      if (refuses_ || ::connect(server, reinterpret_cast<const sockaddr*>(&target_), sizeof target_) != 0) {
        ::close(client), ::close(server);
        continue;
      }
      ::fcntl(server, F_SETFL, O_NONBLOCK);
      for (int fd : {client, server}) ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      links_.emplace_back(client, server);
      recorded_.clear();
      ++connections_;
    }
  }

  // False: the connection is over.
  bool pass(Flow& flow, Clock::time_point now, double seconds, bool record) {
    char buffer[kAtOnce];
    while (!flow.ended && flow.waiting < kMostWaiting) {
      const ssize_t got = ::recv(flow.from, buffer, sizeof buffer, 0);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) break;
      if (got < 0) return false;
      if (got == 0) flow.ended = true;
      const size_t count = static_cast<size_t>(got);
      if (flow.corrupt_in > count)
        flow.corrupt_in -= count;
      else if (flow.corrupt_in > 0)
        buffer[flow.corrupt_in - 1] ^= 4, flow.corrupt_in = 0;
      if (record && recorded_.size() < (1 << 20)) recorded_.append(buffer, count);
      if (count) flow.chunks.push_back({now + delay_, std::string(buffer, count)});
      flow.waiting += count;
    }
    flow.allowance = std::min(flow.allowance + rate_ * seconds, std::max(rate_ / 20, 1500.0));
    while (!flow.chunks.empty() && flow.chunks.front().due <= now) {
      std::string& bytes = flow.chunks.front().bytes;
      const size_t most = rate_ > 0 ? std::min(bytes.size(), static_cast<size_t>(flow.allowance)) : bytes.size();
      if (most == 0) break;
      const ssize_t sent = ::send(flow.to, bytes.data(), most, MSG_NOSIGNAL);
      if (sent < 0 && (errno == EAGAIN || errno == EINTR)) break;
      if (sent < 0) return false;
      flow.waiting -= static_cast<size_t>(sent);
      flow.allowance -= static_cast<double>(sent);
      if (static_cast<size_t>(sent) < bytes.size()) {
        bytes.erase(0, static_cast<size_t>(sent));
        break;
      }
      flow.chunks.pop_front();
    }
    return !flow.ended || !flow.chunks.empty();
  }

  sockaddr_in target_{};
  int listener_ = -1, port_ = 0;
  std::atomic<bool> stop_{false};
  std::atomic<int> connections_{0};
  std::mutex lock_;
  std::list<Link> links_;
  std::string recorded_;
  Clock::duration delay_{};
  double rate_ = 0;
  bool stalled_ = false, cut_ = false, refuses_ = false;
  size_t corrupt_ = 0;
  std::thread thread_;
};
