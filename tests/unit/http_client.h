// The other side of a connection, by plain POSIX calls: what the tests of engine/net compare with.
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>

struct Reply {
  int status = 0;  // 0: the connection ended before a whole answer
  std::map<std::string, std::string> headers;
  std::string body;
};

class HttpClient {
 public:
  explicit HttpClient(uint16_t port, int receive_buffer = 0) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer) setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    const timeval patience{10, 0};  // a test that waits longer has failed
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
      throw std::runtime_error("cannot connect");
  }
  ~HttpClient() { close(); }
  HttpClient(HttpClient&& other) noexcept : fd_(other.fd_), came_(std::move(other.came_)) { other.fd_ = -1; }

  int fd() const { return fd_; }
  void send(const std::string& text) const { (void)!::send(fd_, text.data(), text.size(), MSG_NOSIGNAL); }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  void reset() {  // RST instead of FIN
    const linger none{1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    close();
  }

  // Bytes up to and with `end`; "" where the connection ends before.
  std::string until(const std::string& end) {
    for (size_t at; (at = came_.find(end)) == came_.npos;)
      if (!more()) return "";
    const size_t size = came_.find(end) + end.size();
    const std::string text = came_.substr(0, size);
    came_.erase(0, size);
    return text;
  }
  std::string bytes(size_t count) {
    while (came_.size() < count && more()) continue;
    const std::string text = came_.substr(0, count);
    came_.erase(0, count);
    return text;
  }
  std::string rest() {  // up to the end of the connection
    while (more()) continue;
    return std::move(came_);
  }

  Reply head() {
    Reply reply;
    const std::string text = until("\r\n\r\n");
    if (text.size() < 12) return reply;
    reply.status = std::stoi(text.substr(9, 3));
    for (size_t at = text.find("\r\n") + 2; at + 2 < text.size();) {
      const size_t end = text.find("\r\n", at), colon = text.find(": ", at);
      std::string name = text.substr(at, colon - at);
      for (char& c : name) c = static_cast<char>(tolower(c));
      reply.headers[name] = text.substr(colon + 2, end - colon - 2);
      at = end + 2;
    }
    return reply;
  }
  Reply reply() {
    Reply reply = head();
    if (reply.headers.count("content-length")) reply.body = bytes(std::stoul(reply.headers["content-length"]));
    if (reply.headers.count("transfer-encoding")) {
      for (size_t size = 1; size != 0;) {
        size = std::stoul(until("\r\n"), nullptr, 16);
        reply.body += bytes(size);
        until("\r\n");
      }
    }
    return reply;
  }

 private:
  bool more() {
    char buffer[65536];
    const ssize_t size = ::recv(fd_, buffer, sizeof buffer, 0);
    if (size > 0) came_.append(buffer, static_cast<size_t>(size));
    return size > 0;
  }
  int fd_;
  std::string came_;
};

// Waits until it is true, for at most ten seconds.
inline bool eventually(const std::function<bool()>& is) {
  for (int i = 0; i < 2000 && !is(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return is();
}
