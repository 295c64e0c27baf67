// ZeroMQ's sockets and messages, each freed by its owner. For libqeng_peers.so.
#pragma once
#include <zmq.h>

#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/error.h"

namespace qeng {

class ZmqMessage {
 public:
  ZmqMessage() { zmq_msg_init(&message_); }
  explicit ZmqMessage(size_t size) {
    if (zmq_msg_init_size(&message_, size) != 0) fail("memory", "no memory for a message of ", size, " bytes");
  }
  explicit ZmqMessage(std::string_view text) : ZmqMessage(text.size()) {
    std::memcpy(data(), text.data(), text.size());
  }
  ~ZmqMessage() { zmq_msg_close(&message_); }
  ZmqMessage(const ZmqMessage&) = delete;

  zmq_msg_t* get() { return &message_; }
  uint8_t* data() { return static_cast<uint8_t*>(zmq_msg_data(&message_)); }
  size_t size() { return zmq_msg_size(&message_); }
  std::string text() { return {reinterpret_cast<const char*>(data()), size()}; }
  bool more() { return zmq_msg_more(&message_) != 0; }

 private:
  zmq_msg_t message_;
};

class ZmqSocket {
 public:
  ZmqSocket() = default;
  ZmqSocket(void* context, int type) : socket_(zmq_socket(context, type)) {
    if (!socket_) fail("io", "no socket for peers: ", zmq_strerror(zmq_errno()));
    set(ZMQ_LINGER, 0);
  }
  ~ZmqSocket() { reset(); }
  ZmqSocket(ZmqSocket&& other) noexcept : socket_(std::exchange(other.socket_, nullptr)) {}
  ZmqSocket& operator=(ZmqSocket&& other) noexcept {
    std::swap(socket_, other.socket_);
    return *this;
  }
  void reset() {
    if (socket_) zmq_close(socket_);
    socket_ = nullptr;
  }

  explicit operator bool() const { return socket_ != nullptr; }
  void* get() const { return socket_; }
  void set(int option, int value) { set(option, &value, sizeof value); }
  void set(int option, const std::string& value) { set(option, value.data(), value.size()); }
  void set(int option, const void* value, size_t size) {
    if (zmq_setsockopt(socket_, option, value, size) != 0)
      fail("internal", "a socket's option ", option, ": ", zmq_strerror(zmq_errno()));
  }
  // False: not now, or (error set) not at all.
  bool send(ZmqMessage& message, int flags = 0) {
    return zmq_msg_send(message.get(), socket_, flags | ZMQ_DONTWAIT) >= 0;
  }
  // Is there something to receive? Where not, fd() becomes readable before there is. A call of another thread on this
  // socket may take that sign away: whoever sleeps on it does so for a short while.
  bool readable() { return (get_option<int>(ZMQ_EVENTS) & ZMQ_POLLIN) != 0; }
  int fd() { return get_option<int>(ZMQ_FD); }
  bool receive(ZmqMessage& message) { return zmq_msg_recv(message.get(), socket_, ZMQ_DONTWAIT) >= 0; }

 private:
  template <class T>
  T get_option(int option) {
    T value{};
    size_t size = sizeof value;
    if (zmq_getsockopt(socket_, option, &value, &size) != 0) fail("internal", "a socket: ", zmq_strerror(zmq_errno()));
    return value;
  }
  void* socket_ = nullptr;
};

}  // namespace qeng
